"""The changes of an input pipeline that advice tries, each with the change in words."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tpusim.plan import NO_CODEC, RATES, STORED_COMPRESSED, Input

CODEC = "zstd"
"""The codec that is tried where records are not compressed."""


class InputChange(NamedTuple):
    """Keys of an input pipeline with other values.

    what: the change in words.
    """

    what: str
    keys: Mapping[str, Any]


def input_changes(given: Input) -> Iterator[InputChange]:
    """Yield the changes to try: compression, reads, threads, prefetch, and no slow host."""
    if given.compression != NO_CODEC:
        none = dict.fromkeys(("compression_ratio", "decompressors", "decompress_rate"))
        yield InputChange("records that are not compressed", {"compression": NO_CODEC, **none})
    elif given.kind not in STORED_COMPRESSED:
        ratio = RATES["compression_ratio"][CODEC].value
        yield InputChange(f"records in {CODEC} ({ratio:.3g} to 1)", {"compression": CODEC})
    yield InputChange("reads of 4 times the bytes", {"read_bytes": 4 * given.read_bytes})
    yield _doubled("reads at once", "readers", given.readers)
    if given.workers is not None:
        yield _doubled("threads that decode", "workers", given.workers)
    if given.decompressors is not None:
        yield _doubled("threads that decompress", "decompressors", given.decompressors)
    more = max(2 * given.prefetch, 1)
    yield InputChange(f"{more} batches prefetched", {"prefetch": more})
    if given.slow_host > 1:
        yield InputChange("a slow host that is as fast as the others", {"slow_host": 1.0})


def _doubled(of: str, key: str, count: int) -> InputChange:
    return InputChange(f"twice the {of} ({2 * count})", {key: 2 * count})

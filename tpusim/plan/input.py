"""The input pipeline of the hosts: what each does to make its part of every step's batch.

    [input]
    kind = "jpeg"
    workers = 32          # threads that decode
    prefetch = 4          # batches

A record goes through these stages, each with its own threads; what has no time is left out:

    read        from storage: `readers` requests at once of `read_bytes` each
    decompress  `decompressors` threads, if `compression` is not none
    decode      `workers` threads
    batch       one thread copies records into the batch
    copy        the whole batch crosses PCIe to the host's chips

A host makes at most `prefetch` batches ahead of the step that runs, ready or half made.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.html_text import html_fields
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import check_positive, check_word, is_number, seconds
from tpusim.plan.input_rates import KINDS, RATES, STORED_COMPRESSED, TOKEN_BYTES

NO_CODEC = "none"
MOST_VARIATION = 100
"""Reads vary by at most so many times their mean: one in 10,000 of them takes nearly all time."""

CODECS = (NO_CODEC, *RATES["decompress_rate"])


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The input pipeline of a training run.

    A number that is None is that of `input_rates` for the kind of record and the codec, or of the
    chip's host.

    kind: kind of the records: `tokens`, `jpeg` or `audio`.
    record_bytes: size of a record before compression.
    compression: codec of the stored records: `none`, `zlib`, `zstd`, `snappy` or `lz4`. gzip is
        `zlib`.
    compression_ratio: size before over size after compression; at least 1.
    read_bytes: size of a read.
    read_latency: time until the first byte of a read.
    read_variation: standard deviation over mean of the time of a read. The times are gamma
        distributed.
    readers: concurrent reads of a host.
    reader_bandwidth: bandwidth of one read; inf for no limit.
    storage_bandwidth: bandwidth of all reads of a host; the network of its chips if not given.
    files: files of the records; enough for all readers if not given. They are dealt out to the
        hosts. A host reads each file by one reader, so hosts with fewer files may read more slowly.
    decompressors: decompressing threads of a host; one per vCPU if not given.
    decompress_rate: decompressed output of one thread; inf for no time.
    workers: decoding threads of a host; one per vCPU if not given.
    decode_s: time of one thread for a record.
    shuffle: size of the shuffle buffer, filled before the first batch.
    batch_rate: rate at which one thread copies records into a batch; inf for no time.
    prefetch: batches made ahead. With 0 a host begins a batch when its chips wait for it.
    host_chips: chips that a host feeds; the chips of the chip's host if not given. A slice with
        fewer chips has one host.
    slow_host: factor on the times of one slow host; 1 for none.
    seed: seed of varying read times.
    """

    kind: str = KINDS[0]
    record_bytes: float | None = None
    compression: str = NO_CODEC
    compression_ratio: float | None = None
    read_bytes: float = 8 * 2.0**20
    read_latency: float = RATES["read_latency"].value
    read_variation: float = 0.0
    readers: int = 16
    reader_bandwidth: float = RATES["reader_bandwidth"].value
    storage_bandwidth: float | None = None
    files: int | None = None
    decompressors: int | None = None
    decompress_rate: float | None = None
    workers: int | None = None
    decode_s: float | None = None
    shuffle: int = 0
    batch_rate: float = RATES["batch_rate"].value
    prefetch: int = 2
    host_chips: int | None = None
    slow_host: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_word("input.kind", self.kind, KINDS)
        check_word("input.compression", self.compression, CODECS)
        for key in ("readers", "files", "decompressors", "workers", "host_chips"):
            if (value := getattr(self, key)) is not None:
                check_positive(f"input.{key}", value)
        for key in ("shuffle", "prefetch", "seed"):
            _check_count(key, getattr(self, key))
        for key in ("read_latency", "decode_s"):
            if (value := getattr(self, key)) is not None:
                object.__setattr__(self, key, seconds(f"input.{key}", value))
        for key in ("record_bytes", "read_bytes"):
            _check_above(key, getattr(self, key), finite=True)
        for key in ("reader_bandwidth", "storage_bandwidth", "decompress_rate", "batch_rate"):
            _check_above(key, getattr(self, key), finite=False)
        for key in ("compression_ratio", "slow_host"):
            _check_factor(key, getattr(self, key))
        _check_variation(self.read_variation)
        self._check_codec()

    def _check_codec(self) -> None:
        """Raise PlanError for keys of a codec where there is none."""
        if self.compression != NO_CODEC:
            return
        for key in ("compression_ratio", "decompressors", "decompress_rate"):
            if getattr(self, key) is not None:
                raise PlanError(
                    f"input.{key} is given, but records are not compressed; write compression = "
                    f'"zstd" too, or leave {key} out'
                )

    def replace(self, **changes: Any) -> Self:
        """Return the input pipeline with other values of some fields."""
        unknown = [key for key in changes if key not in self.__slots__]
        if unknown:
            raise PlanError(f"input.{unknown[0]} is no key of an input pipeline")
        return replace(self, **changes)

    def plain_bytes(self, seq_len: int) -> float:
        """Return the bytes of a record before compression.

        Raise PlanError for tokens of a model that reads none, unless `record_bytes` is given.
        """
        if self.record_bytes is not None:
            return self.record_bytes
        if self.kind in RATES["record_bytes"]:
            return _default("record_bytes", self.kind)
        if not seq_len:
            raise PlanError(
                'input.kind is "tokens", but the model reads none (plan.seq_len is 0); write '
                'kind = "jpeg" or "audio", or input.record_bytes'
            )
        return float(TOKEN_BYTES * seq_len)

    def stored_bytes(self, seq_len: int) -> float:
        """Return the bytes of a record as it is read."""
        return self.plain_bytes(seq_len) / self.ratio

    @property
    def ratio(self) -> float:
        """Bytes before compression over bytes after it; 1 for kinds that a codec cannot shrink."""
        if self.compression == NO_CODEC:
            return 1.0
        if self.compression_ratio is not None:
            return self.compression_ratio
        small = self.kind in STORED_COMPRESSED
        return 1.0 if small else _default("compression_ratio", self.compression)

    @property
    def decompress_bandwidth(self) -> float:
        """B/s of one decompressor, in decompressed bytes; inf where nothing is compressed."""
        if self.compression == NO_CODEC:
            return inf
        known = _default("decompress_rate", self.compression)
        return known if self.decompress_rate is None else self.decompress_rate

    @property
    def record_decode_s(self) -> float:
        """Seconds that one worker takes to decode a record."""
        return _default("decode_s", self.kind) if self.decode_s is None else self.decode_s

    def __str__(self) -> str:
        packed = "" if self.compression == NO_CODEC else f" in {self.compression}"
        shuffled = f", {self.shuffle} records shuffled" if self.shuffle else ""
        slow = f", one host {self.slow_host:g} times as slow" if self.slow_host > 1 else ""
        return f"{self.kind}{packed}, {self.prefetch} batches prefetched{shuffled}{slow}"

    def _repr_html_(self) -> str:
        """Return the pipeline in words and the numbers that are given, for a notebook."""
        return html_fields(f"Input: {self}", self)


def _default(key: str, name: str) -> float:
    """Return the default of a key for a kind of record, or for a codec."""
    return float(RATES[key][name].value)


def _check_count(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PlanError(f"input.{key} is {value!r}; write a whole number of at least 0")


def _check_above(key: str, value: Any, *, finite: bool) -> None:
    """Raise PlanError unless a value is None or a number above 0."""
    known = value is None or (is_number(value) and value > 0 and not (finite and value == inf))
    if not known:
        kind = "a finite number" if finite else "a number"
        raise PlanError(f"input.{key} is {value!r}; write {kind} above 0")


def _check_variation(value: Any) -> None:
    if not (is_number(value) and 0 <= value <= MOST_VARIATION):
        raise PlanError(
            f"input.read_variation is {shown(value)}; write a number from 0 to {MOST_VARIATION}"
        )


def _check_factor(key: str, value: Any) -> None:
    if value is not None and not (is_number(value) and 1 <= value < inf):
        raise PlanError(f"input.{key} is {value!r}; write a finite number of at least 1")

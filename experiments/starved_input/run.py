"""ResNet-50 on v3 and v2, fed and starved, as published runs were.

python experiments/starved_input/run.py
"""

from collections.abc import Iterator
from typing import NamedTuple

import tpusim as ts

PIXELS = 224 * 224 * 3
BF16 = 2

V3_IMAGES = 31_247
"""Images per second of MLPerf 0.6 on 16 chips of v3 (batch 4096, evaluation inside)."""

V2_IMAGES, SPLIT_IMAGES = 3_000, 2_650
"""Images per second on a Cloud TPU v2-8, at least, and with a batch split on one thread: the
message of tensorflow commit 6285522, 29 March 2018."""

WORKERS = (96, 32, 16, 8, 4, 1)


class Fed(NamedTuple):
    """A run with an input pipeline."""

    what: str
    images: float
    starved_by: str
    exposed: float

    def __str__(self) -> str:
        return (
            f"| {self.what} | {self.images:,.0f} | {self.starved_by or '-'} | {self.exposed:.1%} |"
        )


def feed(what: str, pod: ts.Slice, batch: int, given: ts.Input) -> Fed:
    """Return a data-parallel run of ResNet-50 with an input pipeline."""
    plan = ts.Plan(mesh={"data": pod.devices}, global_batch=batch)
    found = ts.simulate(ts.models.load("resnet-50"), plan, pod, input=given)
    assert found.input is not None
    exposed = found.input.exposed_s / found.step_time_s
    return Fed(what, found.examples_per_s, found.input.starved_by, exposed)


def rows() -> Iterator[Fed]:
    """Yield v3 with fewer and fewer threads that decode, then v2 with both batch splits."""
    for workers in WORKERS:
        given = ts.Input(kind="jpeg", workers=workers)
        yield feed(f"v3, 4 hosts, {workers} threads each", ts.Slice("v3", "4x4"), 4096, given)
    v2 = ts.Slice("v2", "2x2")
    split = ts.Input(kind="jpeg", batch_rate=SPLIT_IMAGES * PIXELS * BF16)
    yield feed("v2, batches split on one thread", v2, 1024, split)
    yield feed("v2, without the split", v2, 1024, ts.Input(kind="jpeg"))


def main() -> None:
    """Print the table."""
    print("| run | images/s | starved by | exposed input |")
    print("| --- | ---: | --- | ---: |")
    for row in rows():
        print(row)


if __name__ == "__main__":
    main()

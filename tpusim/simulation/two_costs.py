"""The compiler's cost of a program's operations beside the model's: where they are far apart."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tpusim.base.units import format_seconds
from tpusim.costs import work_seconds
from tpusim.hardware import Device
from tpusim.program import Program, Work, kind_of, walk_ops

FAR_APART = 1.5
"""Ratio of the two costs of a kind of work above which a note says so."""

LEAST_SHARE = 0.05
"""Share of the core's time, by either cost, below which a kind of work is left out."""


def far_apart(
    program: Program, estimated: Mapping[str, tuple[Work, int]], device: Device
) -> Iterator[str]:
    """Yield a note for each kind of work whose two costs differ by more than `FAR_APART` in total.

    estimated: the model's work and the compiler's cycles of each operation that has both.
    """
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for op, times in walk_ops(program.body):
        if op.name in estimated:
            work, cycles = estimated[op.name]
            both = totals[kind_of(work)]
            both[0] += times * float(work_seconds(work, device))
            both[1] += times * cycles / device.clock
    all_ours, all_theirs = map(sum, zip(*totals.values(), strict=True)) if totals else (0.0, 0.0)
    for kind, (ours, theirs) in totals.items():
        ratio = max(ours, theirs) / max(min(ours, theirs), 1e-12)
        matters = ours > LEAST_SHARE * all_ours or theirs > LEAST_SHARE * all_theirs
        if matters and ratio > FAR_APART:
            yield (
                f"the two costs of {kind} work are {ratio:.1f} times apart: by shapes "
                f"{format_seconds(ours)} per step, by the compiler's estimates "
                f"{format_seconds(theirs)} (--costs model, --costs compiler)"
            )

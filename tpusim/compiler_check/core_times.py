"""The core's time in each operation of a step, for both sides of a comparison."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.program import Single, walk_ops
from tpusim.results import PICO, Result, core_records, operation_of, operations_by_name
from tpusim.results.result import label_of


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """An operation of one device's step and the core's seconds for it, waits included.

    op: None for what is outside of any, such as waits for the host.
    runs: in a step, the mean of the stages of a pipeline.
    labels_s: the core's seconds by label of the breakdown and phase.
    """

    op: Single | None
    runs: float
    labels_s: Mapping[tuple[str, Phase], float]


def timed_operations(result: Result) -> tuple[TimedOperation, ...]:
    """Return the operations of a result, whose seconds sum to the step; of stages, the means."""
    found: list[TimedOperation] = []
    elsewhere: defaultdict[tuple[str, Phase], float] = defaultdict(float)
    share = 1 / len(result.programs)
    for lane, program in enumerate(result.programs):
        known = operations_by_name(program)
        times = {name: defaultdict[tuple[str, Phase], float](float) for name in known}
        for record in core_records(result.timeline, lane):
            cells = times.get(operation_of(record), elsewhere)
            cells[label_of(record.label), record.phase] += record.total_ps * PICO * share
        runs = {op.name: n * share for op, n in walk_ops(program.body, program.segments)}
        found += (TimedOperation(known[name], runs[name], times[name]) for name in known)
    return (*found, TimedOperation(None, 1.0, elsewhere))

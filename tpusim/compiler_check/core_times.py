"""The core's time in each operation of a step, for both sides of a comparison."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.program import Single, walk_ops
from tpusim.results import PICO, Result, core_records, operation_of, operations_by_name
from tpusim.results.result import label_of


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """An operation of one device's step and the core's seconds for it, waits included.

    runs: in a step, the mean of the stages of a pipeline.
    labels_s: the core's seconds by label of the breakdown and phase.
    """

    op: Single
    runs: float
    labels_s: Mapping[tuple[str, Phase], float]


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """All operations of a step; with `elsewhere_s`, their seconds sum to the step time.

    elsewhere_s: the core's seconds outside of operations, such as waits for the host.
    """

    operations: tuple[TimedOperation, ...]
    elsewhere_s: Mapping[tuple[str, Phase], float]

    @classmethod
    def of(cls, result: Result) -> "CoreTimes":
        """Return the times of a result; of a pipeline, the means of its stages."""
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
        return cls(tuple(found), elsewhere)

    def cells(self) -> Iterator[tuple[Single | None, str, Phase, float]]:
        """Yield operation (None outside of any), label, phase and seconds."""
        for each in self.operations:
            for (label, phase), seconds in each.labels_s.items():
                yield each.op, label, phase, seconds
        for (label, phase), seconds in self.elsewhere_s.items():
            yield None, label, phase, seconds

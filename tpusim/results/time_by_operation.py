"""The core's time in a step by operation, from which reasons are read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.costs import CORE
from tpusim.program import Compute, Single, Work
from tpusim.results.lines import operation_records
from tpusim.results.result import COMPUTE_LABELS, PICO, Result


class OperationTime(NamedTuple):
    """The time of all cores in one operation, or in waits for it.

    op: None for time outside operations.
    label: of the time, such as `matmul`, mesh axes or `bubble`.
    waits: True if the core waits for what runs beside it.
    picoseconds, runs: of all repetitions, and how many they are, on all cores.
    """

    op: Single | None
    label: str
    phase: Phase
    waits: bool
    picoseconds: int
    runs: int


@dataclass(frozen=True)
class TimeByOperation:
    """The operations of a step with their time."""

    result: Result

    @cached_property
    def rows(self) -> Sequence[OperationTime]:
        """All of the cores' time; it sums to the step."""
        return [
            OperationTime(
                op,
                record.label,
                record.phase,
                record.stream != CORE,
                ps,
                ps // record.duration_ps if record.duration_ps else 0,
            )
            for record, op, ps in operation_records(self.result)
        ]

    def share(self, rows: Iterable[OperationTime]) -> float:
        """Return the fraction of the step that some rows take, the mean of all cores."""
        timeline = self.result.timeline
        return sum(row.picoseconds for row in rows) / (timeline.core_count * timeline.total_ps)

    def seconds(self, rows: Iterable[OperationTime]) -> float:
        """Return the seconds of some rows, the mean of all cores."""
        return sum(row.picoseconds for row in rows) * PICO / self.result.timeline.core_count

    def where(self, test: Callable[[OperationTime], bool]) -> list[OperationTime]:
        """Return the rows that pass a test."""
        return [row for row in self.rows if test(row)]

    def works(self, kind: type[Work]) -> list[tuple[OperationTime, Work]]:
        """Return the rows of work of a kind, each with the work."""
        done = ((row, row.op) for row in self.rows if not row.waits)
        return [
            (row, op.work)
            for row, op in done
            if isinstance(op, Compute) and isinstance(op.work, kind)
        ]


def is_exposed(row: OperationTime) -> bool:
    """Return True for time that is no work of the core."""
    return row.label not in COMPUTE_LABELS

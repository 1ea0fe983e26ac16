"""What a simulation predicts of a step: whole picoseconds of each operation."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from tpusim.costs import DISPATCH
from tpusim.costs import INPUT as INPUT_LABEL
from tpusim.diagnosis.kinds import HOST, IDLE, INPUT
from tpusim.diagnosis.measured import apportioned
from tpusim.engine import Record
from tpusim.program import Collective, Loop, Op, Program, Single, Transfer
from tpusim.results import Result, core_records, operation_of, operations_by_name
from tpusim.results.critical_path import lane_bounds

COLUMNS = (
    "operation", "layer", "kind", "axis", "phase", "scope", "line", "bound", "predicted_ps",
)  # fmt: skip

_HOSTS = {DISPATCH: HOST, INPUT_LABEL: INPUT}
_AGAIN = re.compile(r" \(\d+\)$")


def predicted_parts(result: Result) -> pd.DataFrame:
    """Return the parts of a simulated step, with `COLUMNS`; they sum to it.

    An operation has the core's time in it and in waits for it, a mean of all devices. In a loop it
    has a row for each iteration of that loop, its `layer`; else its layer is -1. `bound` is the
    resource that it needs longest.
    """
    timeline, rows = result.timeline, []
    bounds = list(lane_bounds(result))
    for lane in range(len(timeline.lanes)):
        program = result.program_of(lane)
        known, trips = operations_by_name(program), dict(_trips(program))
        devices = timeline.devices[lane] if timeline.devices else 1
        records: dict[str, list[Record]] = {}
        for record in core_records(timeline, lane):
            records.setdefault(operation_of(record), []).append(record)
        layers = _LayerClock.of(records, trips)
        for name, mine in records.items():
            op = known.get(name)
            about = _about(name, op, mine[0].label, str(mine[0].phase))
            bound = bounds[lane].of(name, mine[0].label).resource
            for layer, picoseconds in layers.times(name, mine):
                share = Fraction(devices * picoseconds, timeline.core_count)
                rows.append((_AGAIN.sub("", name), layer, *about, bound, share))
    left = timeline.total_ps - sum((row[-1] for row in rows), Fraction(0))
    rows.append((IDLE, -1, IDLE, "", "", "", "", "", left))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame["predicted_ps"] = apportioned(frame["predicted_ps"])
    first = {name: "first" for name in COLUMNS[2:-1]}
    sums = frame.groupby(["operation", "layer"], sort=False)
    return sums.agg({**first, "predicted_ps": "sum"}).reset_index()


def _about(name: str, op: Single | None, label: str, phase: str) -> tuple[str, str, str, str, str]:
    """Return kind, axes, phase, scope and line of an operation."""
    scope, line = (getattr(op, key, "") for key in ("scope", "source"))
    if isinstance(op, Collective):
        return str(op.kind), ",".join(sorted(op.axes)), phase, scope, line
    kind = str(op.kind) if isinstance(op, Transfer) else label
    return _HOSTS.get(label, kind), "", phase, scope, line


def _trips(program: Program) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the operations in loops, each with the innermost loop and its iterations."""
    for body in (program.body, *(segment.body for segment in program.segments)):
        yield from _inside(body, None)


def _inside(body: Iterable[Op], loop: Loop | None) -> Iterator[tuple[str, tuple[str, int]]]:
    for op in body:
        if isinstance(op, Loop):
            yield from _inside(op.body, op)
        elif loop is not None:
            yield op.name, (loop.name, loop.trips)


@dataclass(frozen=True, slots=True)
class _LayerClock:
    """When the iterations of loops begin.

    begins: for each loop, the starts of the first operation of its body.
    trips: the loop of each operation, and its iterations.
    """

    begins: dict[str, np.ndarray]
    trips: dict[str, tuple[str, int]]

    @classmethod
    def of(
        cls, records: dict[str, list[Record]], trips: dict[str, tuple[str, int]]
    ) -> "_LayerClock":
        first: dict[str, tuple[int, list[Record]]] = {}
        for name, mine in records.items():
            if name not in trips:
                continue
            loop, count = trips[name]
            tasks = [record for record in mine if record.stream == "core"]
            began = min((record.start_ps for record in tasks), default=-1)
            whole = count > 1 and tasks and sum(record.count for record in tasks) % count == 0
            if whole and (loop not in first or began < first[loop][0]):
                first[loop] = began, tasks
        return cls({loop: _starts(tasks) for loop, (_, tasks) in first.items()}, trips)

    def times(self, name: str, records: list[Record]) -> Iterator[tuple[int, int]]:
        """Yield the picoseconds of an operation in each iteration; -1 if it is in no loop."""
        loop, count = self.trips.get(name, ("", 1))
        if loop not in self.begins:
            yield -1, sum(record.total_ps for record in records)
            return
        found = [0] * count
        for record in records:
            at = np.searchsorted(self.begins[loop], _starts([record]), side="right") - 1
            layers = np.unique(at.clip(0) % count, return_counts=True)
            for layer, times in zip(*layers, strict=True):
                found[layer] += int(times) * record.duration_ps
        yield from enumerate(found)


def _starts(records: list[Record]) -> np.ndarray:
    return np.sort(np.concatenate([np.fromiter(record.starts(), np.int64) for record in records]))

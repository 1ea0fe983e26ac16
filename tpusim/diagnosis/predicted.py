"""What a simulation predicts of a step: whole picoseconds of each operation."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pandas as pd

from tpusim.base.phase import Phase
from tpusim.costs import CORE, DISPATCH
from tpusim.costs import INPUT as INPUT_LABEL
from tpusim.diagnosis.kinds import HOST, IDLE, INPUT
from tpusim.diagnosis.measured import apportioned
from tpusim.engine import Record
from tpusim.program import Call, Collective, Loop, Op, Program, Single, Transfer
from tpusim.results import Result, core_records, operation_of, operations_by_name
from tpusim.results.critical_path import lane_bounds

COLUMNS = (
    "operation", "layer", "kind", "axis", "phase", "scope", "line", "bound", "predicted_order",
    "predicted_ps",
)  # fmt: skip

_HOSTS = {DISPATCH: HOST, INPUT_LABEL: INPUT}
_AGAIN = re.compile(r" \(\d+\)$")


def predicted_parts(result: Result, transposed: Collection[str] | None = None) -> pd.DataFrame:
    """Return the parts of a simulated step, with `COLUMNS`; they sum to it.

    An operation has the core's time in it and in waits for it, a mean of all devices. In a loop it
    has a row for each iteration of that loop, its `layer`; else its layer is -1. `bound` is the
    resource that it needs longest, `predicted_order` its place in the order of time.

    transposed: operations of backward passes, whose loops run from the last layer to the first; by
        default those of that phase.
    """
    timeline, rows = result.timeline, []
    bounds = list(lane_bounds(result))
    for lane in range(len(timeline.lanes)):
        known = operations_by_name(result.program_of(lane))
        devices = timeline.devices[lane] if timeline.devices else 1
        records, layers = _core(result, lane, transposed)
        for name, mine in records.items():
            about = _about(known.get(name), mine[0].label, str(mine[0].phase))
            bound = bounds[lane].of(name, mine[0].label).resource
            for layer, picoseconds, begin in layers.times(name, mine):
                share = Fraction(devices * picoseconds, timeline.core_count)
                rows.append((_AGAIN.sub("", name), layer, *about, bound, begin, share))
    left = timeline.total_ps - sum((row[-1] for row in rows), Fraction(0))
    rows.append((IDLE, -1, IDLE, "", "", "", "", "", timeline.total_ps, left))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame["predicted_ps"] = apportioned(frame["predicted_ps"])
    frame = frame.sort_values("predicted_order", kind="stable")
    first = dict.fromkeys(COLUMNS[2:-1], "first")
    sums = frame.groupby(["operation", "layer"], sort=False)
    found = sums.agg({**first, "predicted_ps": "sum"}).reset_index()
    return found.assign(predicted_order=range(len(found)))


def _core(
    result: Result, lane: int, transposed: Collection[str] | None
) -> "tuple[dict[str, list[Record]], _LayerClock]":
    """Return the records of a lane's core by operation, and when its layers begin."""
    records: dict[str, list[Record]] = {}
    for record in core_records(result.timeline, lane):
        if record.duration_ps:
            records.setdefault(operation_of(record), []).append(record)
    if transposed is None:
        transposed = {name for name, mine in records.items() if mine[0].phase is Phase.BACKWARD}
    return records, _LayerClock.of(records, result.program_of(lane), transposed)


def _about(op: Single | None, label: str, phase: str) -> tuple[str, str, str, str, str]:
    """Return kind, axes, phase, scope and line of an operation."""
    scope, line = (getattr(op, key, "") for key in ("scope", "source"))
    if isinstance(op, Collective):
        return str(op.kind), ",".join(sorted(op.axes)), phase, scope, line
    kind = str(op.kind) if isinstance(op, Transfer) else label
    return _HOSTS.get(label, kind), "", phase, scope, line


_Loops: TypeAlias = tuple[tuple[str, int], ...]
"""Loops inside each other, the outermost first: name and iterations."""


def _loops(body: Iterable[Op | Call], around: _Loops = ()) -> Iterator[tuple[str, _Loops]]:
    """Yield the operations in loops, each with those around it."""
    for op in body:
        if isinstance(op, Loop):
            yield from _loops(op.body, (*around, (op.name, op.trips)))
        elif around:
            yield op.name, around


@dataclass(frozen=True, slots=True)
class _LayerClock:
    """When the iterations of the loops of layers begin.

    begins: for each loop, the starts of the first operation of its body.
    loops: the loop of each operation, and its iterations. Of loops inside each other it is the one
        whose body has the most operations, as in `Profile.operations`.
    backward: loops that run from the last layer to the first.
    """

    begins: dict[str, np.ndarray]
    loops: dict[str, tuple[str, int]]
    backward: frozenset[str]

    @classmethod
    def of(
        cls, records: dict[str, list[Record]], program: Program, transposed: Collection[str]
    ) -> "_LayerClock":
        bodies = (program.body, *(segment.body for segment in program.segments))
        chains = {name: loops for body in bodies for name, loops in _loops(body) if name in records}
        sizes = Counter(loops[-1] for loops in chains.values())
        sizes += Counter(around[-2] for around in set(chains.values()) if len(around) > 1)
        chosen = {name: max(reversed(loops), key=lambda loop: sizes[loop])
                  for name, loops in chains.items()}  # fmt: skip
        first: dict[str, list[Record]] = {}
        for name, (loop, count) in chosen.items():
            tasks = [record for record in records[name] if record.stream == CORE]
            inside = chains[name][-1] == (loop, count)
            if inside and count > 1 and tasks and sum(each.count for each in tasks) % count == 0:
                began = tasks[0].start_ps
                if loop not in first or began < first[loop][0].start_ps:
                    first[loop] = tasks
        backward = frozenset(chosen[name][0] for name in transposed if name in chosen)
        return cls({loop: _starts(tasks) for loop, tasks in first.items()}, chosen, backward)

    def times(self, name: str, records: list[Record]) -> Iterator[tuple[int, int, int]]:
        """Yield the picoseconds of an operation in each iteration, and when it first begins.

        The iteration is -1 if it is in no loop.
        """
        loop, count = self.loops.get(name, ("", 1))
        if loop not in self.begins:
            first = min(record.start_ps for record in records)
            yield -1, sum(record.total_ps for record in records), first
            return
        found, begins = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
        for record in records:
            starts = _starts([record])
            layers = self._layers(loop, count, starts)
            found += record.duration_ps * np.bincount(layers, minlength=count)
            np.minimum.at(begins, layers, starts)
        yield from zip(range(count), found.tolist(), begins.tolist(), strict=True)

    def _layers(self, loop: str, count: int, starts: np.ndarray) -> np.ndarray:
        at = (np.searchsorted(self.begins[loop], starts, side="right") - 1).clip(0) % count
        return np.asarray(count - 1 - at if loop in self.backward else at)


def _starts(records: list[Record]) -> np.ndarray:
    return np.sort(np.concatenate([np.fromiter(record.starts(), np.int64) for record in records]))

"""What a compiled step does: its work by shape, and what the core does beside its transfers."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.compiler import Compiled
from tpusim.compiler.to_program.translate_module import translate_compiled
from tpusim.engine import Record
from tpusim.program import (
    Collective,
    CombinedWork,
    Compute,
    EstimatedWork,
    MatmulWork,
    VectorWork,
    Work,
    walk_ops,
)
from tpusim.results import PICO, ReplayResult, operation_of

LEAST = 1e-3
"""The least share of the step of a row; what is less is in one row of others."""


def inventory(compiled: Compiled, program: ReplayResult) -> dict[str, Any]:
    """Return the work of a replayed program by shape, and what runs beside its transfers."""
    return {"work": _work(compiled, program), "beside": _beside(program)}


def _work(compiled: Compiled, program: ReplayResult) -> list[dict[str, Any]]:
    """Return the core's work by phase and shape: runs and seconds of a step, longest first.

    cycles: the compiler's estimate for all runs, for programs that are compiled until their code.
    """
    seconds = _core_seconds(program)
    cycles = _cycles(compiled) if compiled.until == "code" else {}
    found: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for op, runs in walk_ops(program.program.body, program.program.segments):
        if isinstance(op, Compute):
            row = {"runs": runs, "s": seconds[op.name], "cycles": runs * cycles.get(op.name, 0)}
            found[str(op.phase), *_shape(op.work)].update(row)
    least, others = LEAST * program.step_time_s, Counter[str]()
    rows: list[dict[str, Any]] = []
    for (phase, kind, *shape), row in sorted(found.items(), key=lambda each: -each[1]["s"]):
        if row["s"] >= least:
            rows.append({"phase": phase, "kind": kind, "shape": shape} | row)
        else:
            others.update(row)
    return [*rows, {"phase": "", "kind": "others", "shape": []} | others]


def _shape(work: Work) -> tuple[Any, ...]:
    """Return the kind of work and its sizes: [batch, m, k, n] of each matmul, or bytes moved."""
    if isinstance(work, MatmulWork):
        return "matmul", work.dtype, *_sizes(work)
    if isinstance(work, CombinedWork):
        parts = [part for part in work.parts if isinstance(part, MatmulWork)]
        return "matmuls", *(size for part in parts for size in _sizes(part))
    if isinstance(work, VectorWork):
        return "vector", round(work.read_bytes), round(work.write_bytes)
    return type(work).__name__, round(work.read_bytes), round(work.write_bytes)


def _sizes(work: MatmulWork) -> tuple[Any, ...]:
    return work.batch, work.m, work.k, work.n


def _core_seconds(program: ReplayResult) -> Counter[str]:
    found: Counter[str] = Counter()
    for record in program.timeline.tasks:
        if record.stream == "core" and record.lane == program.lane:
            found[operation_of(record)] += record.total_ps * PICO
    return found


def _cycles(compiled: Compiled) -> dict[str, float]:
    """Return the compiler's estimate of cycles for one run of each operation that has one."""
    lowered = translate_compiled(compiled, costs="compiler")
    ops = (op for op, _ in walk_ops(lowered.program.body, lowered.program.segments))
    works = ((op.name, op.work) for op in ops if isinstance(op, Compute))
    return {name: work.cycles for name, work in works if isinstance(work, EstimatedWork)}


def _beside(program: ReplayResult) -> list[dict[str, Any]]:
    """Return the transfers that do not hold the core, by what they are, and what runs beside them.

    in_flight_s: the sum over the transfers; `core_s`: of it, the core's time by its label.
    """
    tasks = [task for task in program.timeline.tasks if task.lane == program.lane]
    core = [task for task in tasks if task.stream == "core"]
    named = sorted({task.label for task in core})
    labels = {label: _spans(task for task in core if task.label == label) for label in named}
    ops = {
        op.name: op
        for op, _ in walk_ops(program.program.body, program.program.segments)
        if isinstance(op, Collective)
    }
    found: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for task in tasks:
        op = ops.get(operation_of(task))
        if task.stream == "core" or op is None:
            continue
        row = found[str(op.phase), str(op.kind), tuple(op.axes)]
        row.update({"number": task.count, "in_flight_s": task.total_ps * PICO})
        flights = _spans([task])
        row.update({f"core_s {label}": _overlap(flights, spans) for label, spans in labels.items()})
    return [
        {"phase": phase, "kind": kind, "axes": list(axes)} | {k: v for k, v in row.items() if v}
        for (phase, kind, axes), row in found.items()
    ]


def _spans(tasks: Iterable[Record]) -> NDArray[np.int64]:
    """Return the starts and ends of tasks and their repetitions, [span, 2], in order."""
    spans = [(start, start + task.duration_ps) for task in tasks for start in task.starts()]
    return np.array(sorted(spans), dtype=np.int64).reshape(-1, 2)


def _overlap(flights: NDArray[np.int64], busy: NDArray[np.int64]) -> float:
    """Return the seconds that flights have in common with spans that do not overlap one another."""
    return sum(_common(flight, busy) for flight in flights) * PICO


def _common(flight: NDArray[np.int64], busy: NDArray[np.int64]) -> int:
    first, last = np.searchsorted(busy[:, 1], flight[0]), np.searchsorted(busy[:, 0], flight[1])
    part = busy[first:last]
    ends, starts = np.minimum(part[:, 1], flight[1]), np.maximum(part[:, 0], flight[0])
    return int(np.clip(ends - starts, 0, None).sum())

"""Why the core waits: for collectives, other stages, the host, and slow parts of the slice."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from tpusim.base.units import format_bytes
from tpusim.costs import CORE, DISPATCH, HOST_LABEL, INPUT, ON_HOST, SKEW, STRAGGLERS
from tpusim.hardware import DCN_PREFIX
from tpusim.program import Collective, walk_ops
from tpusim.results.limit import LEAST_SHOWN
from tpusim.results.plan_result import PlanResult
from tpusim.results.reason import Reason, ReasonKind
from tpusim.results.result import BUBBLE_LABEL, Result
from tpusim.results.time_by_operation import OperationTime, TimeByOperation, is_exposed

SHORTEST_RING = 3
"""Positions of a dimension below which a missing link between its ends changes nothing."""


def wait_reasons(parts: TimeByOperation) -> Iterator[Reason]:
    """Yield why the core waits, a reason for each group of devices or cause."""
    groups: dict[str, list[OperationTime]] = {}
    for row in parts.rows:
        if is_exposed(row):
            groups.setdefault(row.label, []).append(row)
    for label, rows in groups.items():
        if (known := _other(parts, label, parts.share(rows))) is not None:
            yield known
        elif any(isinstance(row.op, Collective) for row in rows):
            yield _collectives(parts, rows)
    if isinstance(parts.result, PlanResult) and BUBBLE_LABEL not in groups and parts.result.bubble:
        yield _bubble(parts.result, parts.result.bubble)


def _collectives(parts: TimeByOperation, rows: Sequence[OperationTime]) -> Reason:
    """Return why the core waits for collectives: their mode, their bytes, and where they run."""
    result, share = parts.result, parts.share(rows)
    times: Counter[str] = Counter()
    for row in rows:
        if isinstance(row.op, Collective):
            times[f"{row.op.kind}s"] += row.picoseconds
    ops = [row.op for row in rows if isinstance(row.op, Collective)]
    axes = max((op.axes for op in ops), key=lambda each: sum(op.axes == each for op in ops))
    sync = parts.share(row for row in rows if not row.waits)
    moved = _moved_bytes(result, axes)
    shape, where = _shape(result, axes)
    kinds = " and ".join(kind for kind, _ in times.most_common(2))
    across = any(axis.startswith(DCN_PREFIX) for axis in axes)
    kind = ReasonKind.DCN if across else ReasonKind.TORUS if where else ReasonKind.COLLECTIVES
    busy = _busy_share(result, rows[0].label)
    how = "nothing runs beside them"
    hidden = max(0.0, busy - (share - sync))
    if sync <= share / 2 and hidden >= LEAST_SHOWN:
        how = f"they take {busy:.1%} of the step, {hidden:.1%} of it beside work"
    over = "+".join(axes)
    what = f"the core waits {share:.1%} of the step for {kinds} over {over}"
    network = " across slices (DCN)" if across else ""
    return Reason(
        kind=kind,
        share=share,
        because=f"{what}{network} ({format_bytes(moved)} per step): {how}{where}",
        evidence={"share": share, "synchronous": sync, "busy": busy, "bytes": moved, **shape},
        axes=tuple(axes),
    )


def _busy_share(result: Result, label: str) -> float:
    """Return the fraction of the step in which transfers of a label run beside the core."""
    timeline = result.timeline
    busy = sum(
        record.total_ps * (timeline.devices[record.lane] if timeline.devices else 1)
        for record in timeline.tasks
        if record.label == label and record.stream not in (CORE, ON_HOST)
    )
    return busy / (timeline.core_count * timeline.total_ps)


def _moved_bytes(result: Result, axes: Sequence[str]) -> float:
    """Return the bytes of the tensors on a device that collectives over some axes move in a step.

    Of a pipeline, those of the stage that `result.lane` is.
    """
    program = result.program
    return sum(
        times * float(op.bytes)
        for op, times in walk_ops(program.body, program.segments)
        if isinstance(op, Collective) and tuple(op.axes) == tuple(axes)
    )


def _shape(result: Result, axes: Sequence[str]) -> tuple[dict[str, float], str]:
    """Return how a group lies on the torus, as numbers and in words; empty where it lies well."""
    written, topology = result.placement.written, result.pod.topology
    cut = {axis: written[axis] for axis in axes if any("[" in p for p in written.get(axis, ()))}
    if cut:
        on = " and ".join(f"{axis} on {','.join(spans)}" for axis, spans in cut.items())
        return {"cut": 1.0}, f"; {on} has parts of torus dimensions: lines, not rings"
    spans = dict(result.placement.axes)
    dims = {span.dim for axis in axes for span in spans.get(axis, ()) if span.dim >= 0}
    names = [
        topology.names[dim]
        for dim in sorted(dims)
        if not topology.wrap[dim] and topology.dims[dim] >= SHORTEST_RING
    ]
    if not names:
        return {}, ""
    do = "does" if len(names) == 1 else "do"
    return {"open": 1.0}, f"; {','.join(names)} {do} not close to a ring on this slice"


def _other(parts: TimeByOperation, label: str, share: float) -> Reason | None:
    """Return why the core waits for anything but collectives; None where nothing is known."""
    result = parts.result
    if label == BUBBLE_LABEL and isinstance(result, PlanResult):
        return _bubble(result, share)
    if label not in _WAITS:
        return None
    kind, what = _WAITS[label]
    because = f"the core waits {share:.1%} of the step for {what(result)}"
    return Reason(kind=kind, share=share, because=because, evidence={"share": share})


def _starved(result: Result) -> str:
    found = result.input if isinstance(result, PlanResult) else None
    if found is None or not found.starved_by:
        return ""
    busy = found.busy.get(found.starved_by, 0.0)
    return f": the hosts' threads that {found.starved_by} are busy {busy:.0%} of the time"


def _bubble(result: PlanResult, share: float) -> Reason:
    plan = result.plan
    return Reason(
        kind=ReasonKind.BUBBLE,
        share=share,
        because=(
            f"the pipeline loses {share:.1%} of the step: {plan.microbatches} microbatches go "
            f"through {plan.stages} stages ({plan.active_schedule})"
        ),
        evidence={"share": share, "microbatches": plan.microbatches, "stages": plan.stages},
    )


_WAITS: Mapping[str, tuple[ReasonKind, Callable[[Result], str]]] = {
    STRAGGLERS: (ReasonKind.SLOW_PARTS, lambda r: f"devices with {r.pod.impaired}"),
    SKEW: (ReasonKind.DCN, lambda r: f"the slowest of {r.pod.num_slices} slices"),
    INPUT: (ReasonKind.INPUT, lambda r: f"its input{_starved(r)}"),
    DISPATCH: (
        ReasonKind.HOST,
        lambda r: "the host: its dispatch takes longer than the step on the devices",
    ),
    HOST_LABEL: (ReasonKind.HOST, lambda r: "what is offloaded to the host"),
}
"""What the core waits for besides collectives, by the label of the time: its kind, and words."""

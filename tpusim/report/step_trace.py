"""The step as a Chrome trace, for Perfetto and XProf.

The JSON object format of the "Trace Event Format" document (catapult project): complete events
(`ph` X) with `ts` and `dur` in microseconds, counters (C) and metadata (M). Processes and threads
have the names that XProf gives those of a TPU: `/device:TPU:0`, `Steps`, `XLA Ops`, `Async XLA Ops`
(openxla/xla, xplane_schema.cc). A viewer drops slices that overlap on one thread, so each stream
has threads of its own, as many as it has transfers in flight at once.

A stage of a pipeline is a process; stages that run one program share one. The thread
`Microbatches` has the slots of a stage, and flow events (s, f) lead from a slot to the slot of the
next stage that uses its output.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal, TypeAlias

import numpy as np

from tpusim.base.errors import TpusimError, nearest
from tpusim.base.plain_text import plain
from tpusim.base.units import format_seconds
from tpusim.costs import CORE, ON_HOST
from tpusim.engine import Timeline
from tpusim.program import Collective, Compute, Program, Schedule, Transfer, walk_ops
from tpusim.report.chrome_events import Event, complete, metadata, microseconds, named, packed
from tpusim.report.figures.utilisation import resource_name
from tpusim.report.link_traffic import link_series
from tpusim.report.track_slices import TrackSlice, core_slices, memory_levels, stream_tracks
from tpusim.results import PICO, Result, StageSlot, StageUse, operation_of, pipelined
from tpusim.results.stage_uses import stage_uses

Expand: TypeAlias = Literal["ends", "all"]

COUNTER_COLUMNS = 480
"""Parts of the step in which the counters of links are given."""

STEPS_THREAD, OPS_THREAD = 0, 1
"""Threads of a process; those of the streams follow."""

SLOT_THREAD = 1000
"""The thread of a stage's slots, or the first of those of all stages; shown at the top."""


def trace(result: Result, expand: Expand = "ends") -> dict[str, Any]:
    """Return the trace as plain data; times in microseconds, right to the picosecond.

    Counters have the bytes in HBM, and the busy share of HBM, each ICI dimension, DCN and PCIe in
    each of `COUNTER_COLUMNS` parts of the step, for the lane of `result.lane`.

    Raise TpusimError if `expand` is neither of its values.

    expand: `ends` shows the first and the last iterations of folded loops, one slice with the
        number of those between, and the operations of the first and the last slot of each kind,
        with a slice for each slot between; `all` shows the operations of every iteration and slot.
    """
    if expand not in ("ends", "all"):
        raise TpusimError(f"expand is {expand!r} ({nearest(expand, ('ends', 'all'))})")
    lanes = range(len(result.timeline.lanes))
    uses = stage_uses(result)
    events = [event for lane in lanes for event in _lane(result, lane, expand == "all")]
    if len(result.programs) > 1 and expand == "ends":
        events += [event for use in uses for event in _hidden_slots(result.timeline, use)]
    events += [*_stages(result, uses), *_busy_counters(result)]
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0)))
    return {
        "displayTimeUnit": "ns",
        "otherData": {"model": plain(result.name), "slice": str(result.pod)},
        "traceEvents": events,
    }


def trace_bytes(result: Result, expand: Expand = "ends") -> bytes:
    """Return the content of `trace.json.gz`: the same result gives the same bytes."""
    return packed(trace(result, expand))


def _lane(result: Result, lane: int, every: bool) -> Iterator[Event]:
    """Yield process, threads and counter of one lane."""
    stage = f" stage {lane}" if len(result.programs) > 1 else ""
    stage += f" {result.timeline.lanes[lane][0]}" if result.timeline.devices else ""
    yield metadata("process_name", lane, name=f"/device:TPU:{lane}{stage}")
    yield metadata("process_sort_index", lane, sort_index=lane)
    about = dict(_about(result.program_of(lane)))
    for thread, (name, slices) in enumerate(
        _threads(result.timeline, lane, every).items(), STEPS_THREAD + 1
    ):
        yield from named(lane, thread, name)
        yield from (_slice_event(lane, thread, each, about) for each in slices)
    _, end = result.timeline.lanes[lane]
    yield from named(lane, STEPS_THREAD, "Steps")
    mfu = {} if result.mfu is None else {"mfu": result.mfu}
    numbers = {"step_time_s": result.step_time_s, **mfu, "hfu": result.hfu}
    yield complete(lane, STEPS_THREAD, result.name, (0, end), numbers)
    for time, level in memory_levels(result, lane, every=every):
        at = {"pid": lane, "tid": STEPS_THREAD, "ts": microseconds(time)}
        yield {"ph": "C", "name": "HBM", **at, "args": {"bytes": level}}


def _busy_counters(result: Result) -> Iterator[Event]:
    """Yield the busy share of each link in use over the step, where it changes."""
    edges = np.linspace(0, result.timeline.total_ps, COUNTER_COLUMNS + 1)
    for link, shares in link_series(result, edges).items():
        if not shares.any():
            continue
        before = -1.0
        for start, share in zip(
            edges[:-1], (round(float(value), 4) for value in shares), strict=True
        ):
            if share != before:
                at = {"pid": result.lane, "tid": STEPS_THREAD, "ts": microseconds(float(start))}
                yield {
                    "ph": "C",
                    "name": f"busy {resource_name(link)}",
                    **at,
                    "args": {"share": share},
                }
            before = share


def _hidden_slots(timeline: Timeline, use: StageUse) -> Iterator[Event]:
    """Yield a slice for each slot of a stage whose operations are not shown, in their place."""
    shown = [(each.start_ps, each.end_ps) for each in core_slices(timeline, use.stage)]
    ends = [0, *(end for _, end in shown)]
    starts = [*(start for start, _ in shown), timeline.lanes[use.stage][1]]
    for begin, until in zip(ends, starts, strict=True):
        for timed in use.slots:
            span = max(begin, timed.start_ps), min(until, timed.end_ps)
            if span[0] < span[1]:
                about = {"microbatch": timed.slot.microbatch, "chunk": timed.slot.chunk}
                name = f"{timed.slot}, with operations like the first's"
                yield complete(use.stage, OPS_THREAD, name, span, about)


def _stages(result: Result, uses: Sequence[StageUse]) -> Iterator[Event]:
    """Yield the slots of each stage of a pipeline, on a thread each, and the flows between them."""
    planned = pipelined(result)
    if planned is None:
        return
    plan = planned.plan
    order = Schedule(
        plan.active_schedule, plan.microbatches, plan.pipeline.virtual_stages, ((),) * len(uses)
    )
    several = len(result.programs) > 1
    places = [(use.stage, SLOT_THREAD) if several else (0, SLOT_THREAD + use.stage) for use in uses]
    at = {(use.stage, timed.slot): timed for use in uses for timed in use.slots}
    number = count(1)
    for use, place in zip(uses, places, strict=True):
        name = "Microbatches" if several else f"Microbatches of stage {use.stage}"
        yield metadata("thread_name", *place, name=name)
        yield metadata("thread_sort_index", *place, sort_index=-1)
        for timed in use.slots:
            about = {"microbatch": timed.slot.microbatch, "chunk": timed.slot.chunk}
            yield complete(*place, str(timed.slot), (timed.start_ps, timed.end_ps), about)
            for stage, operand in order.operands(use.stage, timed.slot):
                if stage != use.stage:
                    source = (places[stage], at[stage, operand])
                    yield from _arrow(
                        f"{operand} of stage {stage}", next(number), source, (place, timed)
                    )


def _arrow(
    name: str,
    number: int,
    source: tuple[tuple[int, int], StageSlot],
    target: tuple[tuple[int, int], StageSlot],
) -> Iterator[Event]:
    """Yield the flow events from a slot to another, in their middles as rounding moves edges."""
    for kind, (place, timed) in (("s", source), ("f", target)):
        middle = microseconds((timed.start_ps + timed.end_ps) // 2)
        at = {"pid": place[0], "tid": place[1], "ts": middle}
        enclosing = {"bp": "e"} if kind == "f" else {}
        yield {"ph": kind, "name": name, "cat": "pipeline", "id": number, **at, **enclosing}


def _threads(timeline: Timeline, lane: int, every: bool) -> dict[str, list[TrackSlice]]:
    """Return the slices of each thread below `Steps`, by name."""
    threads = {"XLA Ops": core_slices(timeline, lane, every=every)}
    for stream, tracks in stream_tracks(timeline, lane, every=every).items():
        for number, track in enumerate(tracks, 1):
            kind = "Host" if stream.startswith(f"{ON_HOST} ") else "Async XLA Ops"
            name = f"{kind} {stream.removeprefix(f'{ON_HOST} ')}"
            threads[f"{name}{f' ({number})' if number > 1 else ''}"] = track
    return threads


def _slice_event(lane: int, thread: int, each: TrackSlice, about: dict[str, Event]) -> Event:
    span, record = (each.start_ps, each.end_ps), each.record
    if record is None:
        took = format_seconds((span[1] - span[0]) * PICO)
        name = f"{each.trips:,} more iterations like the first, {took}"
        return complete(lane, thread, name, span, {"trips": each.trips})
    waits = thread == OPS_THREAD and record.stream != CORE
    args = {
        "phase": str(record.phase),
        "label": record.label,
        "repeats": record.count,
        **about.get(operation_of(record), {}),
    }
    return complete(lane, thread, f"wait for {record.name}" if waits else record.name, span, args)


def _about(program: Program) -> Iterator[tuple[str, Event]]:
    """Yield the trace arguments of each operation, by name."""
    for op, _ in walk_ops(program.body, program.segments):
        if isinstance(op, Compute):
            moved = float(op.work.read_bytes + op.work.write_bytes)
            yield op.name, {"bytes": moved, "flops": float(op.flops.total), **_where(op)}
        elif isinstance(op, Collective):
            how = {"axes": "+".join(op.axes), "mode": str(op.mode), "dtype": op.dtype}
            yield op.name, {"bytes": float(op.bytes), "kind": str(op.kind), **how, **_where(op)}
        elif isinstance(op, Transfer):
            yield op.name, {"bytes": float(op.bytes), "kind": str(op.kind), **_where(op)}


def _where(op: Compute | Collective | Transfer) -> Event:
    """Return the lines of the user's code and of a package; the scope unless in the name."""
    lines = {"source": op.source, "library": op.library}
    scope = {"scope": op.scope} if op.scope and op.scope not in op.name else {}
    return scope | {key: line for key, line in lines.items() if line}

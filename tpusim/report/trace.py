"""The step as a Chrome trace, for Perfetto and XProf.

The JSON object format of the "Trace Event Format" document (catapult project): complete events
(`ph` X) with `ts` and `dur` in microseconds, counters (C) and metadata (M). Processes and threads
have the names that XProf gives those of a TPU: `/device:TPU:0`, `Steps`, `XLA Ops`, `Async XLA Ops`
(openxla/xla, xplane_schema.cc). A viewer drops slices that overlap on one thread, so each stream
has threads of its own, as many as it has transfers in flight at once.

A stage of a pipeline is a process; where one program runs all stages, they share one. The thread
`Microbatches` has the slots of a stage, and flow events (s, f) lead from a slot to the one of the
next stage that takes what it made.
"""

import gzip
import json
from collections.abc import Iterator
from itertools import count
from typing import Any, Literal, TypeAlias

from tpusim.costs.tasks import CORE
from tpusim.engine import Timeline
from tpusim.errors import TpusimError, nearest
from tpusim.lines import operation_of
from tpusim.program import Collective, Compute, Program, Schedule, Transfer, counted
from tpusim.report.slices import Slice, core_slices, memory_levels, stream_tracks
from tpusim.result import PICO, Result
from tpusim.stages import Ran, stage_uses
from tpusim.units import format_seconds

Event: TypeAlias = dict[str, Any]
Expand: TypeAlias = Literal["ends", "all"]

MICROSECOND = 10**6
"""Picoseconds of one."""

LEVEL = 6
"""Of compression: the highest takes three times as long for 7 % less."""

STEPS, OPS = 0, 1
"""Threads of a process; those of the streams follow."""

SLOTS = 1000
"""The thread of the slots of a stage, or the first of those of all stages; shown above all."""


def trace(result: Result, expand: Expand = "ends") -> dict[str, Any]:
    """The trace as plain data; times are exact to the picosecond, in microseconds with decimals.

    expand: `ends` shows the first and the last trips of folded loops, and one slice that says how
    many lie between; `all` shows every trip. Raises TpusimError for anything else. Of the slots of
    a pipeline `ends` shows the operations of the first and the last of each kind.
    """
    if expand not in ("ends", "all"):
        raise TpusimError(f"expand is {expand!r} ({nearest(expand, ('ends', 'all'))})")
    lanes = range(len(result.timeline.lanes))
    events = [event for lane in lanes for event in _lane(result, lane, expand == "all")]
    events += _stages(result)
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0)))
    return {
        "displayTimeUnit": "ns",
        "otherData": {"model": result.name, "slice": str(result.pod)},
        "traceEvents": events,
    }


def trace_bytes(result: Result, expand: Expand = "ends") -> bytes:
    """`trace.json.gz`: the same result gives the same bytes."""
    written = json.dumps(trace(result, expand), separators=(",", ":"), ensure_ascii=False)
    return gzip.compress(written.encode(), LEVEL, mtime=0)


def _lane(result: Result, lane: int, every: bool) -> Iterator[Event]:
    """Process, threads and counter of one lane."""
    stage = f" stage {lane}" if len(result.programs) > 1 else ""
    yield _metadata("process_name", lane, name=f"/device:TPU:{lane}{stage}")
    yield _metadata("process_sort_index", lane, sort_index=lane)
    about = dict(_about(result.programs[lane]))
    for thread, (name, slices) in enumerate(
        _threads(result.timeline, lane, every).items(), STEPS + 1
    ):
        yield from _named(lane, thread, name)
        yield from (_slice_event(lane, thread, each, about) for each in slices)
    _, end = result.timeline.lanes[lane]
    yield from _named(lane, STEPS, "Steps")
    mfu = {} if result.mfu is None else {"mfu": result.mfu}
    numbers = {"step_time_s": result.step_time_s, **mfu, "hfu": result.hfu}
    yield _complete(lane, STEPS, result.name, (0, end), numbers)
    for time, level in memory_levels(result, lane, every=every):
        at = {"pid": lane, "tid": STEPS, "ts": time / MICROSECOND}
        yield {"ph": "C", "name": "HBM", **at, "args": {"bytes": level}}


def _stages(result: Result) -> Iterator[Event]:
    """The slots of each stage of a pipeline, on a thread of its own, and the ways between them."""
    piped = result.pipelined
    if piped is None:
        return
    plan, uses = piped.plan, stage_uses(piped)
    order = Schedule(plan.pipeline, plan.microbatches, plan.virtual_stages, ((),) * len(uses))
    several = len(result.programs) > 1
    places = [(use.stage, SLOTS) if several else (0, SLOTS + use.stage) for use in uses]
    at = {(use.stage, ran.slot): ran for use in uses for ran in use.ran}
    number = count(1)
    for use, place in zip(uses, places, strict=True):
        name = "Microbatches" if several else f"Microbatches of stage {use.stage}"
        yield _metadata("thread_name", *place, name=name)
        yield _metadata("thread_sort_index", *place, sort_index=-1)
        for ran in use.ran:
            about = {"microbatch": ran.slot.microbatch, "chunk": ran.slot.chunk}
            yield _complete(*place, str(ran.slot), (ran.start_ps, ran.end_ps), about)
            for stage, operand in order.operands(use.stage, ran.slot):
                if stage != use.stage:
                    giver = (places[stage], at[stage, operand])
                    yield from _arrow(f"{operand} of stage {stage}", next(number), giver,
                                      (place, ran))  # fmt: skip


def _arrow(
    name: str, number: int, giver: tuple[tuple[int, int], Ran], taker: tuple[tuple[int, int], Ran]
) -> Iterator[Event]:
    """The flow events from a slice to another, each in its middle, so that rounding keeps it in."""
    for kind, (place, ran) in (("s", giver), ("f", taker)):
        middle = (ran.start_ps + ran.end_ps) // 2 / MICROSECOND
        at = {"pid": place[0], "tid": place[1], "ts": middle}
        enclosing = {"bp": "e"} if kind == "f" else {}
        yield {"ph": kind, "name": name, "cat": "pipeline", "id": number, **at, **enclosing}


def _threads(timeline: Timeline, lane: int, every: bool) -> dict[str, list[Slice]]:
    """The slices of each thread below `Steps`, by name."""
    threads = {"XLA Ops": core_slices(timeline, lane, every=every)}
    for stream, tracks in stream_tracks(timeline, lane, every=every).items():
        for number, track in enumerate(tracks, 1):
            threads[f"Async XLA Ops {stream}{f' ({number})' if number > 1 else ''}"] = track
    return threads


def _named(lane: int, thread: int, name: str) -> Iterator[Event]:
    """The events that name a thread and keep its place."""
    yield _metadata("thread_name", lane, thread, name=name)
    yield _metadata("thread_sort_index", lane, thread, sort_index=thread)


def _metadata(what: str, lane: int, thread: int = STEPS, **args: str | int) -> Event:
    return {"ph": "M", "name": what, "pid": lane, "tid": thread, "args": args}


def _complete(
    lane: int, thread: int, name: str, span_ps: tuple[int, int], args: dict[str, Any]
) -> Event:
    start, end = span_ps
    when = {"ts": start / MICROSECOND, "dur": (end - start) / MICROSECOND}
    return {"ph": "X", "name": name, "pid": lane, "tid": thread, **when, "args": args}


def _slice_event(lane: int, thread: int, each: Slice, about: dict[str, Event]) -> Event:
    span, record = (each.start_ps, each.end_ps), each.record
    if record is None:
        name = f"{each.trips:,} more trips, {format_seconds((span[1] - span[0]) * PICO)}"
        return _complete(lane, thread, name, span, {"trips": each.trips})
    waits = thread == OPS and record.stream != CORE
    args = {
        "phase": str(record.phase),
        "label": record.label,
        "repeats": record.count,
        **about.get(operation_of(record), {}),
    }
    return _complete(lane, thread, f"wait for {record.name}" if waits else record.name, span, args)


def _about(program: Program) -> Iterator[tuple[str, Event]]:
    """What the program says of each operation, by name."""
    for op, _ in counted(program.body, program.segments):
        if isinstance(op, Compute):
            moved = float(op.work.read_bytes + op.work.write_bytes)
            yield op.name, {"bytes": moved, "flops": float(op.flops.total), **_where(op)}
        elif isinstance(op, Collective):
            how = {"axes": "+".join(op.axes), "mode": str(op.mode), "dtype": op.dtype}
            yield op.name, {"bytes": float(op.bytes), "kind": str(op.kind), **how, **_where(op)}
        elif isinstance(op, Transfer):
            yield op.name, {"bytes": float(op.bytes), "kind": str(op.kind), **_where(op)}


def _where(op: Compute | Collective | Transfer) -> Event:
    """The lines of the user's code and of a package; the scope where the name does not say it."""
    lines = {"source": op.source, "library": op.library}
    scope = {"scope": op.scope} if op.scope and op.scope not in op.name else {}
    return scope | {key: line for key, line in lines.items() if line}

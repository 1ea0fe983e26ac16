"""Reading a trace in Chrome's format (`*.trace.json.gz`), which profilers write beside an XSpace.

It has the events of devices, without programs.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.base.errors import FileError
from tpusim.profiles.recorded import About, DeviceEvents, Event, Recorded
from tpusim.profiles.xspace import DEVICE, DURATION, LINES, OFFSET, TPU, about_of

PS = 1e6
"""Picoseconds of a microsecond, the unit of a trace."""

BROKEN = "broken JSON; copy the file again, or profile the step again"
NONE = "JSON without `traceEvents`; give the trace of a profile, `*.trace.json.gz`"
LIMIT = 1_000_000
"""Events at which the profiler cuts a trace."""

_Event = Mapping[str, Any]


def read_trace(data: bytes) -> Recorded:
    """Return what a trace holds. Raise FileError for data that is none."""
    events = _trace_events(data)
    processes, threads = _names(events)
    recorded, devices = Recorded(), {}
    for number, name in processes.items():
        if name.startswith(TPU):
            devices[number] = DeviceEvents(name.removeprefix(DEVICE))
        elif name.startswith(DEVICE):
            recorded.others.append(name.removeprefix(DEVICE))
    for (number, thread), found in _by_thread(events, devices).items():
        if field := LINES.get(threads.get((number, thread), "")):
            setattr(devices[number], field, found)
    recorded.devices = sorted(devices.values(), key=lambda each: (len(each.name), each.name))
    if len(events) >= LIMIT:
        recorded.cut = (f"the profiler cut the trace at {LIMIT:,} events",)
    return recorded


def _trace_events(data: bytes) -> list[_Event]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(BROKEN) from error
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list):
        raise FileError(NONE)
    return [event for event in events if isinstance(event, dict)]


def _names(events: list[_Event]) -> tuple[dict[Any, str], dict[tuple[Any, Any], str]]:
    """Return the names of processes, which are devices, and of their threads, which are lines."""
    processes: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    for event in events:
        if event.get("ph") == "M" and isinstance(event.get("args"), dict):
            name, key = str(event["args"].get("name", "")), str(event.get("pid"))
            if event.get("name") == "process_name":
                processes[key] = name
            elif event.get("name") == "thread_name":
                threads[key, str(event.get("tid"))] = name
    return processes, threads


def _by_thread(
    events: list[_Event], devices: Mapping[Any, DeviceEvents]
) -> dict[tuple[str, str], list[Event]]:
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    known: dict[Any, About] = {}
    for event in events:
        number = str(event.get("pid"))
        if event.get("ph") == "X" and number in devices:
            found[number, str(event.get("tid"))] += _event(event, known)
    return found


def _event(event: _Event, known: dict[Any, About]) -> Iterator[Event]:
    """Yield an event; none whose times are no numbers."""
    args = event.get("args")
    facts = args if isinstance(args, dict) else {}
    try:
        start = int(facts[OFFSET]) if OFFSET in facts else round(PS * float(event["ts"]))
        lasts = int(facts[DURATION]) if DURATION in facts else round(PS * float(event["dur"]))
    except (KeyError, ValueError, TypeError, OverflowError):
        return
    name = str(event.get("name", ""))
    key = name, facts.get("long_name"), facts.get("tf_op")
    if key not in known:
        known[key] = about_of(name, facts)
    yield Event(start, lasts, known[key])

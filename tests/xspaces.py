"""XSpaces and traces written by hand, as a profiler writes them, for tests of what reads them.

`SpaceWriter` takes devices, programs, steps and operations one by one; `synthetic_profiles` writes
those of a simulated step.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpusim.profiles.xspace_schema import Event, Line, Plane, Space

PROGRAMS, STEPS, OPERATIONS, ASYNCHRONOUS = "XLA Modules", "Steps", "XLA Ops", "Async XLA Ops"
TIMES = ("device_offset_ps", "device_duration_ps")


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of a line: `name` from `start_ps` on for `duration_ps`; facts are its statistics."""

    name: str
    start_ps: int
    duration_ps: int
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PlaneWriter:
    """One plane: lines of events, and statistics.

    about: facts of all events of a name, such as `hlo_category`; `long_name` is the HLO line.
    """

    name: str
    lines: dict[str, list[Happened]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, line: str, name: str, start_ps: int, duration_ps: int, **facts: Any) -> None:
        """Add an event."""
        self.lines.setdefault(line, []).append(Happened(name, start_ps, duration_ps, facts))

    def packed(self) -> bytes:
        """Return the plane as bytes."""
        plane, numbers, kinds = Plane(name=encoded(self.name)), {}, {}
        for name, value in self.facts.items():
            _write(plane.stats.add(), name, value, numbers)
        for line, events in self.lines.items():
            found = Line(name=encoded(line))
            for each in events:
                kind = kinds.setdefault(each.name, len(kinds) + 1)
                event = Event(kind=kind, offset_ps=each.start_ps, duration_ps=each.duration_ps)
                times = dict(zip(TIMES, (each.start_ps, each.duration_ps), strict=True))
                for name, value in (times | dict(each.facts)).items():
                    _write(event.stats.add(), name, value, numbers)
                found.events.append(event.SerializeToString())
            plane.lines.append(found.SerializeToString())
        for name in (*kinds, *(name for name in self.about if name not in kinds)):
            entry = plane.events.add(key=kinds.get(name, len(plane.events) + 1))
            facts = dict(self.about.get(name, {}))
            text = str(facts.pop("long_name", name))
            entry.value.name = encoded(text)
            if text != name:
                entry.value.display_name = encoded(name)
            for key, value in facts.items():
                _write(entry.value.stats.add(), key, value, numbers)
        for name, number in numbers.items():
            plane.statistics.add(key=number).value.name = encoded(name)
        return plane.SerializeToString()


@dataclass(slots=True)
class SpaceWriter:
    """A profile: planes of devices, and HLO protos by the names of programs."""

    planes: list[PlaneWriter] = field(default_factory=list)
    programs: dict[str, bytes] = field(default_factory=dict)

    def plane(self, name: str = "/device:TPU:0", **facts: Any) -> PlaneWriter:
        """Add a plane, and return it."""
        self.planes.append(PlaneWriter(name, facts=facts))
        return self.planes[-1]

    def xspace(self) -> bytes:
        """Return the profile as the bytes of an `*.xplane.pb`."""
        metadata = PlaneWriter("/host:metadata")
        metadata.about = {name: {"Hlo Proto": data} for name, data in self.programs.items()}
        planes = [metadata, *self.planes] if self.programs else self.planes
        return Space(planes=[plane.packed() for plane in planes]).SerializeToString()

    def trace(self, cut: int = 300) -> bytes:
        """Return the profile as the bytes of a `*.trace.json.gz`. cut: characters of HLO lines."""
        events: list[dict[str, Any]] = []
        for pid, plane in enumerate(self.planes, 3):
            events.append(_names("process_name", plane.name, pid, 0))
            events += [_names("thread_name", line, pid, at) for at, line in enumerate(plane.lines)]
        for pid, plane in enumerate(self.planes, 3):
            for thread, line in enumerate(plane.lines.values()):
                events += [_complete(each, plane, pid, thread, cut) for each in line]
        whole = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
        text = json.dumps(whole | {"traceEvents": [*events, {}]})
        return gzip.compress(text.encode(), 6, mtime=0)


def _names(what: str, name: str, pid: int, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": {"name": name}}


def _complete(
    each: Happened, plane: PlaneWriter, pid: int, thread: int, cut: int
) -> dict[str, Any]:
    times = dict(zip(TIMES, map(str, (each.start_ps, each.duration_ps)), strict=True))
    facts = plane.about.get(each.name, {}) | dict(each.facts)
    facts = {key: str(value)[:cut] for key, value in facts.items()}
    return {
        "ph": "X", "name": each.name, "pid": pid, "tid": thread, "ts": each.start_ps / 1e6,
        "dur": each.duration_ps / 1e6, "args": facts | times,
    }  # fmt: skip


def encoded(text: str) -> bytes:
    """Return a text as bytes, which are no UTF-8 where it has half of a pair."""
    return text.encode("utf-8", "surrogatepass")


def _write(stat: Any, name: str, value: Any, numbers: dict[str, int]) -> None:
    stat.kind = numbers.setdefault(name, len(numbers) + 1)
    if isinstance(value, bytes):
        stat.data = value
    elif isinstance(value, float):
        stat.double = value
    elif isinstance(value, int):
        setattr(stat, "uint64" if value >= 0 else "int64", value)
    else:
        stat.text = encoded(str(value))

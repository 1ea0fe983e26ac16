"""Reading an XSpace (`*.xplane.pb`), the profile that JAX, TensorFlow and PyTorch/XLA write."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from tpusim.base.errors import FileError
from tpusim.profiles.recorded import About, DeviceEvents, Event, Recorded, place_of
from tpusim.profiles.xspace_schema import Line, Plane, Space

DEVICE, METADATA = "/device:", "/host:metadata"
TPU = f"{DEVICE}TPU:"
LINES = {
    "XLA Modules": "programs",
    "Steps": "steps",
    "XLA Ops": "operations",
    "Async XLA Ops": "asynchronous",
}
"""Lines of a device that are read, and the field that holds their events."""

OFFSET, DURATION = "device_offset_ps", "device_duration_ps"
"""Times of an event in ticks of the device's clock; those of the event itself are rounded."""

CORRUPT = "broken: it ends early or is no XSpace; copy the file again, or profile the step again"


def read_xspace(data: bytes) -> Recorded:
    """Return what an XSpace holds. Raise FileError for data that is none."""
    recorded = Recorded()
    programs: dict[str, bytes] = {}
    for plane in _planes(data):
        name = _text(plane.name)
        if name == METADATA:
            programs |= _programs(plane)
        elif name.startswith(TPU):
            table = _PlaneTable.of(plane)
            recorded.devices.append(_device(plane, name, table))
            facts = dict(_facts(plane.stats, table.statistics))
            recorded.kind = recorded.kind or str(facts.get("device_type_string", ""))
            recorded.peak_flops = recorded.peak_flops or _peak(facts)
        elif name.startswith(DEVICE):
            recorded.others.append(name.removeprefix(DEVICE))
    recorded.programs = programs
    recorded.devices.sort(key=lambda device: (len(device.name), device.name))
    return recorded


def _planes(data: bytes) -> Iterator[Any]:
    space = _decoded(Space, data)
    if not space.planes:
        raise FileError(CORRUPT)
    for plane in space.planes:
        yield _decoded(Plane, plane)


def _decoded(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise FileError(CORRUPT) from error


def _peak(facts: Mapping[str, Any]) -> float:
    peak = facts.get("peak_teraflops_per_second", 0.0)
    return 1e12 * peak if isinstance(peak, (int, float)) else 0.0


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class _PlaneTable(NamedTuple):
    """What a plane's events refer to: statistics by their numbers, and kinds of events."""

    statistics: dict[int, str]
    kinds: dict[int, Any]

    @classmethod
    def of(cls, plane: Any) -> "_PlaneTable":
        statistics = {each.key: _text(each.value.name) for each in plane.statistics}
        return cls(statistics, {each.key: each.value for each in plane.events})


def _facts(stats: Any, statistics: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of statistics."""
    for stat in stats:
        name = statistics.get(stat.kind, "")
        if stat.HasField("ref"):
            yield name, statistics.get(stat.ref, "")
        elif stat.HasField("text"):
            yield name, _text(stat.text)
        else:
            numbers = (getattr(stat, n) for n in ("double", "uint64", "int64") if stat.HasField(n))
            yield name, next(numbers, stat.data)


def _programs(plane: Any) -> dict[str, bytes]:
    """Return the HLO protos of the metadata plane, by the names of their programs."""
    statistics = _PlaneTable.of(plane).statistics
    found = {}
    for entry in plane.events:
        for stat in entry.value.stats:
            if statistics.get(stat.kind, "").lower() in ("hlo proto", "hlo_proto") and stat.data:
                found[_text(entry.value.name)] = stat.data
    return found


def _device(plane: Any, name: str, table: _PlaneTable) -> DeviceEvents:
    device = DeviceEvents(name.removeprefix(DEVICE))
    for data in plane.lines:
        line = _decoded(Line, data)
        if field := LINES.get(_text(line.name)):
            setattr(device, field, list(_events(line, table)))
    return device


def _events(line: Any, table: _PlaneTable) -> Iterator[Event]:
    """Yield the events of a line, whose facts are looked up once for each kind."""
    numbers = {name: number for number, name in table.statistics.items()}
    offset, duration = numbers.get(OFFSET, -1), numbers.get(DURATION, -1)
    known: dict[int, About] = {}
    base = 1000 * line.timestamp_ns
    for event in line.events:
        if (about := known.get(event.kind)) is None:
            about = known[event.kind] = _about(event, table)
        start, lasts = base + event.offset_ps, event.duration_ps
        for stat in event.stats:
            if stat.kind == offset:
                start = stat.uint64
            elif stat.kind == duration:
                lasts = stat.uint64
                break
        yield Event(start, lasts, about)


def _about(event: Any, table: _PlaneTable) -> About:
    kind = table.kinds.get(event.kind)
    if kind is None:
        return About("")
    facts = dict(_facts(kind.stats, table.statistics)) | dict(_facts(event.stats, table.statistics))
    name, display = _text(kind.name), _text(kind.display_name)
    return about_of(display or name, facts | {"long_name": facts.get("long_name", name)})


def about_of(name: str, facts: Mapping[str, Any]) -> About:
    """Return what a profiler's statistics say of an operation.

    name: of the instruction, or its HLO line.
    facts: by XProf's names, such as `hlo_category`.
    """
    text = str(facts.get("long_name", ""))
    return About(
        instruction=name.split(" = ")[0].lstrip("%"),
        category=str(facts.get("hlo_category", "")),
        text=text if " = " in text else "",
        flops=_number(facts, "model_flops", "flops"),
        bytes=_number(facts, "raw_bytes_accessed", "bytes_accessed"),
        source=place_of(str(facts.get("source", ""))),
        scope=str(facts.get("tf_op", "")).rstrip(":"),
    )


def _number(facts: Mapping[str, Any], *keys: str) -> float:
    for key in keys:
        try:
            return float(facts[key])
        except (KeyError, ValueError, TypeError):
            continue
    return -1.0

"""Reading an XSpace (`*.xplane.pb`), the profile that JAX, TensorFlow and PyTorch/XLA write."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from tpusim.base.errors import FileError
from tpusim.profiles.recorded import About, Events, Recorded, about_of, clean
from tpusim.profiles.xspace_schema import Event, Line, Plane, Space

METADATA, HOST, CPU = "/host:metadata", "/host:CPU", "CPU"
NO_HLO = "the profile has no HLO, so each operation is known by its line alone"
ON_CPU = "a profile of CPUs: its times say nothing of TPUs"
OFFSET, DURATION = "device_offset_ps", "device_duration_ps"
"""Times of an event in ticks of the device's clock; those of the event itself are rounded."""

EPOCH_NS = 2**50
"""Timestamps above it, 13 days, count from 1970."""

CORRUPT = (
    "neither an XSpace nor a trace, or a broken one; give the `*.xplane.pb` or `*.trace.json.gz` "
    "of a profile, or copy it again"
)


def read_xspace(data: bytes) -> Recorded:
    """Return what an XSpace holds. Raise FileError for data that is none."""
    recorded = Recorded()
    space = _decoded(Space, data)
    if not space.planes:
        raise FileError(CORRUPT)
    del data
    host = b""
    for packed in space.planes:
        plane = _decoded(Plane, packed)
        name = _text(plane.name)
        if name == METADATA:
            recorded.programs = {**recorded.programs, **dict(_programs(plane))}
        elif recorded.add_plane(name):
            _read_device(plane, name, recorded)
        elif name == HOST:
            host = packed
    if host and not recorded.devices and not recorded.others:
        _read_cpus(_decoded(Plane, host), recorded)
    if not recorded.programs:
        recorded.notes = (*recorded.notes, NO_HLO)
    if recorded.epoch_ns:
        recorded.begin_at_zero()
    return recorded


def _decoded(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise FileError(CORRUPT) from error


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


def _programs(plane: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the names of the programs in the metadata plane, and their HLO protos."""
    statistics = _PlaneTable.of(plane).statistics
    for entry in plane.events:
        for stat in entry.value.stats:
            if statistics.get(stat.kind, "").lower() in ("hlo proto", "hlo_proto") and stat.data:
                yield clean(_text(entry.value.name)), stat.data


def _read_device(plane: Any, name: str, recorded: Recorded) -> None:
    table = _PlaneTable.of(plane)
    facts = dict(_facts(plane.stats, table.statistics))
    recorded.kind = recorded.kind or clean(str(facts.get("device_type_string", "")))
    peak = facts.get("peak_teraflops_per_second")
    recorded.peak_flops = recorded.peak_flops or 1e12 * (peak if isinstance(peak, float) else 0.0)
    for packed in plane.lines:
        line = _decoded(Line, packed)
        events = recorded.events(name, _text(line.name))
        if events is None or not line.events:
            continue
        since_ns = line.timestamp_ns
        if since_ns > EPOCH_NS:
            recorded.epoch_ns = recorded.epoch_ns or since_ns
            since_ns -= recorded.epoch_ns
        _read_line(line, 1000 * since_ns, table, events)


def _read_cpus(plane: Any, recorded: Recorded) -> None:
    """Read XLA's operations on the CPUs of a host, with an execution of a program for each run.

    Several threads run them. The self times of operations that overlap count once, so those of an
    execution still sum to the time in which any thread works.
    """
    statistics = _PlaneTable.of(plane).statistics
    lines = [_decoded(Line, packed) for packed in plane.lines]
    first_ns = min((line.timestamp_ns for line in lines), default=0)
    spans: dict[tuple[str, str, Any], tuple[int, int]] = {}
    for since_ns, packed in [(line.timestamp_ns, each) for line in lines for each in line.events]:
        event = _decoded(Event, packed)
        facts = dict(_facts(event.stats, statistics))
        if "hlo_op" not in facts or "hlo_module" not in facts:
            continue
        begin = 1000 * (since_ns - first_ns) + event.offset_ps
        end = begin + event.duration_ps
        device = clean(f"{CPU}:{facts.get('device_ordinal', 0)}")
        module = clean(str(facts["hlo_module"]))
        known = (name for name in recorded.programs if name.startswith(f"{module}("))
        program = next(known, module)
        events = recorded.device(device).operations
        events.add(begin, end - begin, events.number(About(clean(str(facts["hlo_op"])))))
        run = device, program, facts.get("run_id")
        earliest, latest = spans.get(run, (begin, end))
        spans[run] = min(earliest, begin), max(latest, end)
    for (device, program, _), (begin, end) in spans.items():
        programs = recorded.device(device).programs
        programs.add(begin, end - begin, programs.number(About(program)))
    if spans:
        recorded.kind, recorded.notes = CPU, (*recorded.notes, ON_CPU)
        recorded.begin_at_zero()


def _read_line(line: Any, base: int, table: _PlaneTable, events: Events) -> None:
    """Read the events of a line, whose facts are looked up once for each kind."""
    numbers = {name: number for number, name in table.statistics.items()}
    offset, duration = numbers.get(OFFSET), numbers.get(DURATION)
    known: dict[int, int] = {}
    add = events.add
    for packed in line.events:
        event = _decoded(Event, packed)
        if (kind := known.get(event.kind)) is None:
            kind = known[event.kind] = events.number(_about(event, table))
        start, lasts = base + event.offset_ps, event.duration_ps
        for stat in event.stats:
            if stat.kind == offset:
                start = stat.uint64 or stat.int64
            elif stat.kind == duration:
                lasts = stat.uint64 or stat.int64
                break
        add(start, lasts, kind)


def _about(event: Any, table: _PlaneTable) -> About:
    kind = table.kinds.get(event.kind)
    if kind is None:
        return About("")
    facts = dict(_facts(kind.stats, table.statistics)) | dict(_facts(event.stats, table.statistics))
    name, display = _text(kind.name), _text(kind.display_name)
    return about_of(display or name, facts | {"long_name": facts.get("long_name", name)})

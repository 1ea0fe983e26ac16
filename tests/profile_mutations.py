"""Changes of profiles: of their bytes, of protobuf fields, of JSON, of times and names, of gzip."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from hlo_mutations import another_number, cut, flipped
from hostile_names import PARTS
from xspaces import ASYNCHRONOUS, OPERATIONS, PROGRAMS, STEPS, SpaceWriter

from tpusim.profiles.xspace_schema import Event, Line, Plane, Space

NUMBERS = (0, 1, -1, 7, 127, 128, 2**31, 2**32, 2**53, 2**56, 2**61, 2**62, 2**63 - 1, 2**64 - 1)
NAMES = (
    "/device:TPU:0", "/device:TPU:", "/device:TPU:0 SparseCore 1", "/device:TPU:99999999999",
    "/device:GPU:0", "/host:metadata", "XLA Ops", "XLA Modules", "Hlo Proto", "device_offset_ps",
    "while", "while.1", " = while(", "%a = (((((f32[8]", "%a = f32[99999999999999999999] dot(%b)",
    "%a = f32[-1]{0:T(8,128)S(9)} copy-done(%b)", "(" * 5000, "/" * 5000, "/a " * 5000, "\x00" * 99,
    "\x1b]0;gone\x07", "/home/ann/" * 500, "layers_99999999999999999999", "x" * 100_000, "=cmd()",
)  # fmt: skip
VALUES = (
    None, True, [], {}, [[]], {"a": 1}, -1, 2**70, 10**400, 1e308, float("nan"), float("inf"),
    "", "1e999", "NaN", "-5", "0x1", "1_0", [1] * 50, {"args": {"args": {}}},
)  # fmt: skip


def small_profile(draw: random.Random) -> SpaceWriter:
    """A profile of one or two devices with some of everything."""
    space = SpaceWriter(programs={"jit_step(1)": b"\n\x04HloM" + bytes(range(256))})
    for number in range(draw.randint(1, 2)):
        plane = space.plane(
            f"/device:TPU:{number}",
            device_type_string="TPU v6 Lite",
            peak_teraflops_per_second=946.7,
        )
        plane.about = {
            "while.1": {"hlo_category": "while"},
            "dot.7": {
                "long_name": "%dot.7 = bf16[64,128]{1,0:T(8,128)(2,1)S(1)} dot(%p, %q)",
                "hlo_category": "convolution", "tf_op": "jit(step)/layers_3/dot_general:",
                "source": "/home/ann/model.py:3", "flops": 5, "model_flops": 7,
            },
        }  # fmt: skip
        for start in range(1000, 4000, 1000):
            plane.add(PROGRAMS, "jit_step(1)", start, 900)
            plane.add(STEPS, str(start), start, 900)
            plane.add(OPERATIONS, "while.1", start, 800)
            for at in range(0, 800, 200):
                plane.add(OPERATIONS, "dot.7", start + at, 150)
                plane.add(OPERATIONS, "copy-done.2", start + at + 150, 40)
            plane.add(ASYNCHRONOUS, "copy-start.2", start, 700)
    return space


def hostile_name(draw: random.Random) -> str:
    """A name that could break what reads or shows it."""
    return draw.choice(NAMES) if draw.random() < 0.5 else "".join(draw.choices(PARTS, k=3))


def hostile_space(draw: random.Random) -> SpaceWriter:
    """A profile whose times, names and facts are what no profiler writes."""
    space = small_profile(draw)
    plane = draw.choice(space.planes)
    kind = draw.randrange(6)
    if kind == 0:
        line = draw.choice([*plane.lines])
        for _ in range(draw.choice((1, 30))):
            start, lasts = (draw.choice(NUMBERS[:-1]) for _ in "ab")
            plane.add(line, draw.choice((*plane.about, "odd")), start, min(lasts, 2**62))
    elif kind == 1:
        for name in [*plane.about]:
            plane.about[name][draw.choice((*plane.about[name], "long_name"))] = hostile_name(draw)
    elif kind == 2:
        plane.name = hostile_name(draw)
    elif kind == 3:
        plane.lines = {hostile_name(draw): events for events in plane.lines.values()}
    elif kind == 4:
        plane.add(draw.choice([*plane.lines]), hostile_name(draw), 1500, 10)
        space.programs = {hostile_name(draw): b"x" * draw.choice((0, 9))}
    else:
        depth = draw.choice((3, 2000))
        for at in range(depth):  # loops inside of loops, and shifted ones across
            plane.add(OPERATIONS, "while.1", 1000 + at, draw.choice((2 * (depth - at), depth)))
        plane.facts |= {"device_type_string": hostile_name(draw)}
        plane.facts |= {"peak_teraflops_per_second": draw.choice((0.0, -1.0, 1e308, "x", 3))}
    return space


def _huge_varint(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + b"\xff" * draw.choice((4, 8, 9, 11)) + b"\x01" + data[place + 1 :]


def _without(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + data[place + draw.choice((1, 2, 30, 300)) :]


def _twice(data: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.choices(range(len(data)), k=2))
    return data[:end] + data[start:end] * draw.choice((1, 3)) + data[end:]


def _swapped(data: bytes, draw: random.Random) -> bytes:
    a, b, c, d = sorted(draw.choices(range(len(data)), k=4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _other_tag(data: bytes, draw: random.Random) -> bytes:
    """Another field number or wire type where one may be."""
    tags = [at for at, byte in enumerate(data) if byte in b"\x08\x10\x12\x1a\x22\x2a\x32"]
    place = draw.choice(tags or [0])
    tag = draw.randrange(1, 9) << 3 | draw.randrange(6)
    return data[:place] + bytes([tag]) + data[place + 1 :]


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    cut, flipped, _huge_varint, _without, _twice, _swapped, _other_tag,
)  # fmt: skip


def _other_json(data: bytes, draw: random.Random) -> bytes:
    """A value of a trace that is of another type, or a whole trace of another shape."""
    whole = json.loads(data)
    events = whole.get("traceEvents") if isinstance(whole, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return data
    if draw.random() < 0.1:
        events = whole["traceEvents"] = draw.choice((VALUES, {}, None, [events], events[::-1], 5))
        return json.dumps(draw.choice((whole, events, [whole]))).encode()
    for _ in range(draw.choice((1, 5))):
        event: Any = draw.choice(events)
        if isinstance(event.get("args"), dict) and draw.random() < 0.5:
            event = event["args"]
        if event:
            event[draw.choice([*event])] = draw.choice((*VALUES, hostile_name(draw)))
    return json.dumps(whole).encode()


def _broken_gzip(data: bytes, draw: random.Random) -> bytes:
    packed = bytearray(gzip.compress(data, 1, mtime=0))
    for _ in range(draw.choice((1, 4))):
        packed[draw.randrange(2, len(packed))] = draw.randrange(256)
    return bytes(packed[: draw.choice((len(packed), draw.randrange(3, len(packed))))])


def _other_field(data: bytes, draw: random.Random) -> bytes:
    """A field of a message that is another number, name or reference, or is gone."""
    space = Space.FromString(data)
    if not space.planes:
        return data
    at = draw.randrange(len(space.planes))
    plane = Plane.FromString(space.planes[at])
    kind = draw.randrange(5)
    if kind == 0 and plane.lines:
        number = draw.randrange(len(plane.lines))
        line = Line.FromString(plane.lines[number])
        if line.events:
            which = draw.randrange(len(line.events))
            event = Event.FromString(line.events[which])
            target = draw.choice([event, *event.stats])
            for field in ("kind", "offset_ps", "duration_ps", "uint64", "int64"):
                if hasattr(target, field) and draw.random() < 0.5:
                    setattr(target, field, draw.choice(NUMBERS[:-1]) & (2**63 - 1))
            line.events[which] = event.SerializeToString()
        line.timestamp_ns = draw.choice((0, 0, *NUMBERS[:-1]))
        plane.lines[number] = line.SerializeToString()
    elif kind == 1 and plane.statistics:
        one, other = draw.choices(plane.statistics, k=2)
        one.key, other.key = other.key, one.key
    elif kind == 2 and plane.events:
        one, other = draw.choices(plane.events, k=2)
        one.key, other.key = draw.choice((other.key, 99)), one.key
    elif kind == 3 and plane.events:
        for stat in draw.choice(plane.events).value.stats:
            stat.double, stat.ref = draw.choice((float("nan"), -1.0)), draw.choice((1, 2, 2**63))
    elif plane.stats:
        del plane.stats[draw.randrange(len(plane.stats))]
    space.planes[at] = plane.SerializeToString()
    return space.SerializeToString()


def mutations(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield names of files and what is in them: half as XSpaces, and half of each still whole."""
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        space = hostile_space(draw) if number % 3 == 0 else small_profile(draw)
        name, times = ("m.trace.json.gz", "m.xplane.pb")[number % 2], draw.choice((1, 1, 3))
        whole = number % 4 < 2
        data = space.xspace() if number % 2 else gzip.decompress(space.trace())
        for _ in range(0 if number % 12 == 0 else times):
            deep = _other_field if number % 2 else _other_json
            data = (deep if whole else draw.choice((*BYTES, another_number)))(data, draw) or b"{"
        if number % 2 == 0:
            data = _broken_gzip(data, draw) if draw.random() < 0.1 else gzip.compress(data, 1)
        yield name, data

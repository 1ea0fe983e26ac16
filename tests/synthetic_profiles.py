"""The profile of a simulated step, as TPUs would record it, with faults that are known.

    result = ts.simulate(compiled)
    data = synthetic_profile(result, compiled, steps=10, faults=[Fault("straggling_step", 2, 4)])
    path.write_bytes(data)                  # an `*.xplane.pb`; form="trace" for a `*.trace.json.gz`

The core of each device runs the operations of the result one after the other, in picoseconds; loops
contain their bodies, waits are the `*-done` that they are for, and collectives begin where a device
arrives and end where the last one would. Without faults, factors and noise each step takes what the
result says.

A fault of a whole machine, such as slow links, is made by simulating the program on that machine:
`synthetic_profile(ts.simulate(compiled, pod=slower), compiled)`.
"""

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from xspaces import ASYNCHRONOUS, OPERATIONS, PROGRAMS, STEPS, PlaneWriter, SpaceWriter

from tpusim.compiler import Compiled
from tpusim.engine import Record
from tpusim.program import Collective, Loop, Op
from tpusim.report.track_slices import core_slices, stream_tracks
from tpusim.results import Result, operation_of

FINGERPRINT = 1234567890123456789
DISPATCH_PS = 3_000_000
"""Between two steps."""

FIRST_PS = 81_000_000_000
"""The beginning of the first step."""

KINDS = {
    "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 Lite", "7x": "TPU7x",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong in a profile.

    kind: `slow_link`: what the core waits for collectives takes `amount` times as long, those of
        the label `what` (as in a result's breakdown, without `exposed`; all without one).
        `slow_operation`: the operations whose names begin with `what` take `amount` times as long.
        `straggling_step`: in step `where` the core's own work takes `amount` times as long.
        `slow_chip`: on device `where` the core's own work does, in all steps; others wait for it.
        `starved_input`: `amount` seconds pass before each step.
        `host_gap`: they pass before step `where` alone.
    """

    kind: Literal[
        "slow_link", "slow_operation", "straggling_step", "slow_chip", "starved_input", "host_gap"
    ]
    amount: float
    where: int = 0
    what: str = ""


class Task(NamedTuple):
    """What the core does next: an operation, or a wait for one."""

    name: str
    start_ps: int
    duration_ps: int
    record: Record
    meets: bool
    loops: tuple[str, ...]

    @property
    def works(self) -> bool:
        """Whether it is the core's own work."""
        return self.record.stream == "core" and not self.meets


def synthetic_profile(
    result: Result,
    compiled: Compiled | None = None,
    *,
    steps: int = 10,
    devices: int = 2,
    faults: Sequence[Fault] = (),
    factor: Callable[[Record], float] | None = None,
    noise: float = 0.0,
    seed: int = 0,
    form: Literal["xspace", "trace"] = "xspace",
) -> bytes:
    """Return the profile of `steps` steps on `devices` devices.

    result: of one program. compiled: what it is a replay of; its HLO goes into an XSpace. A plan
        has none, and its operations have the plan's names.
    factor: what the time of each record is multiplied by, such as 1.1 for a label `matmul`.
    noise: standard deviation of the time of each operation, as a fraction of it.
    """
    tasks = list(core_tasks(result, compiled))
    text = compiled.hlo if compiled is not None else ""
    space = SpaceWriter()
    name = f"jit_{re.sub(r'[^A-Za-z0-9_]', '_', result.name)}({FINGERPRINT})"
    if text:
        space.programs[name] = hlo_proto(text, result.pod.devices)
    about = _about(result, tasks, _lines(text))
    for number in range(devices):
        space.plane(f"/device:TPU:{number}", **_chip_facts(result)).about = about
    times = _Times(tasks, faults, factor or (lambda record: 1.0), noise, random.Random(seed))
    begin = FIRST_PS
    for step in range(steps):
        begin += times.gap_ps(step)
        ends = times.step(step, devices)
        for plane, spans in zip(space.planes, ends, strict=True):
            _write_step(plane, name, step, begin, tasks, spans)
            _write_transfers(plane, result, begin, tasks, spans)
        begin += max(spans[-1][1] for spans in ends) + DISPATCH_PS
    return space.xspace() if form == "xspace" else space.trace()


def core_tasks(result: Result, compiled: Compiled | None = None) -> Iterator[Task]:
    """Yield what the core does in a step, in order and without gaps."""
    loops, ops = dict(_loops(result.program_of(0).body)), dict(_ops(result.program_of(0).body))
    done = _done_of(compiled.hlo) if compiled is not None else {}
    part: tuple[str, int] | None = None
    for each in core_slices(result.timeline, every=True):
        assert each.record is not None
        operation = operation_of(each.record)
        name = operation
        if each.record.stream != "core":
            name = done.get(operation, operation.replace("-start", "-done"))
        start = part[1] if part and part[0] == name else each.start_ps
        part = (name, start) if operation != each.record.name else None
        if part is None:
            meets = isinstance(ops.get(operation), Collective)
            inside = loops.get(operation, ())
            yield Task(name, start, each.end_ps - start, each.record, meets, inside)


Spans = list[tuple[int, int]]
"""Beginnings and ends of the tasks of a step, since it began."""


@dataclass(frozen=True, slots=True)
class _Times:
    """What becomes of the times of a step."""

    tasks: Sequence[Task]
    faults: Sequence[Fault]
    factor: Callable[[Record], float]
    noise: float
    draw: random.Random

    def gap_ps(self, step: int) -> int:
        """Return what passes before a step."""
        gaps = (
            each.amount
            for each in self.faults
            if each.kind == "starved_input" or (each.kind == "host_gap" and each.where == step)
        )
        return round(1e12 * sum(gaps))

    def step(self, step: int, devices: int) -> list[Spans]:
        """Return the times of the tasks on each device: those that meet end together."""
        spans: list[Spans] = [[] for _ in range(devices)]
        now = [0] * devices
        for task in self.tasks:
            common = task.duration_ps * self.factor(task.record) * self._jitter()
            lasts = [round(common * self._slower(task, step, device)) for device in range(devices)]
            arrived = max(now)
            for device in range(devices):
                own = round(lasts[device] * self._jitter()) if task.works else lasts[device]
                end = (arrived if task.meets else now[device]) + own
                spans[device].append((now[device], end))
                now[device] = end
        return spans

    def _jitter(self) -> float:
        return max(0.0, self.draw.gauss(1.0, self.noise)) if self.noise else 1.0

    def _slower(self, task: Task, step: int, device: int) -> float:
        times = 1.0
        for fault in self.faults:
            named = fault.what in ("", task.record.label)
            if (
                (fault.kind == "slow_link" and task.meets and named)
                or (fault.kind == "slow_operation" and task.name.startswith(fault.what))
                or (fault.kind == "straggling_step" and task.works and fault.where == step)
                or (fault.kind == "slow_chip" and task.works and fault.where == device)
            ):
                times *= fault.amount
        return times


def _write_step(
    plane: PlaneWriter, program: str, step: int, begin: int, tasks: Sequence[Task], spans: Spans
) -> None:
    length = spans[-1][1]
    plane.add(PROGRAMS, program, begin, length, run_id=step)
    plane.add(STEPS, str(step), begin, length)
    opened: list[tuple[str, int]] = []
    end = 0
    for task, (start, after) in zip(tasks, spans, strict=True):
        shared = _shared(task.loops, opened)
        _close(plane, opened, shared, begin, end)
        opened += [(loop, start) for loop in task.loops[shared:]]
        plane.add(OPERATIONS, task.name, begin + start, after - start)
        end = after
    _close(plane, opened, 0, begin, end)


def _shared(loops: Sequence[str], opened: Sequence[tuple[str, int]]) -> int:
    """Return how many of the open loops a task is in."""
    count = 0
    for loop, (name, _) in zip(loops, opened, strict=False):
        if loop != name:
            break
        count += 1
    return count


def _close(
    plane: PlaneWriter, opened: list[tuple[str, int]], left: int, begin: int, end: int
) -> None:
    while len(opened) > left:
        name, start = opened.pop()
        plane.add(OPERATIONS, name, begin + start, end - start)


def _write_transfers(
    plane: PlaneWriter, result: Result, begin: int, tasks: Sequence[Task], spans: Spans
) -> None:
    """Write the transfers, moved with the tasks that they run beside."""
    edges = [task.start_ps for task in tasks]

    def moved(time: int) -> int:
        at = max(bisect_right(edges, time) - 1, 0)
        task, (start, end) = tasks[at], spans[at]
        share = min(1.0, (time - task.start_ps) / task.duration_ps)
        return begin + start + round(share * (end - start))

    for tracks in stream_tracks(result.timeline, every=True).values():
        for each in (each for track in tracks for each in track):
            start, end = moved(each.start_ps), moved(each.end_ps)
            plane.add(ASYNCHRONOUS, operation_of(each.record), start, end - start)


def _loops(body: Sequence[Op], around: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for op in body:
        yield op.name, around
        if isinstance(op, Loop):
            yield from _loops(op.body, (*around, op.name))


def _ops(body: Sequence[Op]) -> Iterator[tuple[str, Op]]:
    for op in body:
        yield op.name, op
        if isinstance(op, Loop):
            yield from _ops(op.body)


_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$", re.M)


def _lines(hlo: str) -> dict[str, tuple[str, str]]:
    """Return the HLO lines of instructions, as a profiler shows them, and JAX's names for them."""
    found = {}
    for name, rest in _LINE.findall(hlo):
        shown = re.split(r", (?:metadata|backend_config)=", rest)[0]
        scope = re.search(r'op_name="([^"]*)"', rest)
        found[name] = f"%{name} = {shown}", scope[1] if scope else ""
    return found


def _done_of(hlo: str) -> dict[str, str]:
    """Return the done of each start."""
    found = re.findall(
        r"^\s*(?:ROOT )?%?([\w.-]+) = [^\n]*?-done\((?:[^%\n]*)%([\w.-]+)", hlo, re.M
    )
    return {start: done for done, start in found}


def _about(
    result: Result, tasks: Sequence[Task], lines: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    """Return the facts of each operation, loops and transfers included."""
    ops = dict(_ops(result.program_of(0).body))
    labels = {task.name: task.record.label for task in tasks}
    names = {**labels, **dict.fromkeys(ops)}
    about = {}
    for name in names:
        op = ops.get(name)
        line, scope = lines.get(name) or ("", getattr(op, "scope", ""))
        facts: dict[str, Any] = {"hlo_category": _category(name, line, labels.get(name) or "")}
        if line:
            facts["long_name"] = line
        if source := getattr(op, "source", ""):
            facts["source"] = f"/home/someone/project/{source}"
        if scope:
            facts["tf_op"] = f"{scope}:"
        if flops := float(getattr(getattr(op, "flops", None), "total", 0)):
            facts["model_flops"] = facts["flops"] = round(flops / result.pod.devices)
        if (work := getattr(op, "work", None)) is not None:
            facts["bytes_accessed"] = round(float(work.read_bytes + work.write_bytes))
        about[name] = facts
    return about


def _category(name: str, line: str, label: str) -> str:
    """Return XLA's category of an instruction, as profilers state it."""
    opcode = re.search(r"\s([a-z][\w-]*)\(", line.partition(" = ")[2])
    if opcode is None:
        return "while" if name.startswith("while") else label
    if opcode[1] == "fusion":
        if label == "matmul":
            return "convolution fusion"
        kind = re.search(r"kind=k(\w+)", line)
        return f"{kind[1].lower() if kind else 'loop'} fusion"
    if opcode[1] in ("copy", "transpose", "reshape"):
        return "data formatting"
    return opcode[1]


def _chip_facts(result: Result) -> dict[str, Any]:
    chip = result.pod.chip
    return {
        "device_type_string": KINDS.get(chip.generation, f"TPU {chip.generation}"),
        "peak_teraflops_per_second": chip.full_peak / 1e12,
        "peak_hbm_bw_gigabytes_per_second": chip.hbm_bandwidth / 1e9,
    }


def hlo_proto(text: str, devices: int) -> bytes:
    """Return HLO text as the HloProto of a profile, which is assigned to so many devices."""
    from jaxlib import xla_client

    module = xla_client.hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    places = b"".join(_field(3, _field(1, _varint(each))) for each in range(devices))
    assigned = b"\x08\x01\x10" + _varint(devices) + places
    return _field(1, module + _field(15, assigned))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])

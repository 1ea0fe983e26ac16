"""The critical path of a step: what each of its picoseconds waits for.

It is walked back from the end of the step. Where the core works, its task is on the path. Where it
waits for a transfer, the transfer is on the path from its start, also while the core worked beside
it; from there the path goes on with the transfer that it depends on and that ended then, or with
the core, which issued it. So the parts follow one another without a gap and sum to the step.

Folded loops stay folded: once the path comes to a task again, whole periods earlier, it repeats
itself as far back as the loop goes, and the periods are counted at once.

Each stage of a pipeline, and each device that differs from others, has a path of its own, on which
waits for other stages and devices are what they are: `Limit`s are means over all.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from tpusim.costs import CORE, ON_HOST, CostedProgram, Task, TaskLoop, TopTask
from tpusim.engine import CallTimes, Record, RepeatLevel, Timeline
from tpusim.program import Call
from tpusim.results.limit import Limit
from tpusim.results.repeated_blocks import RepeatedBlock, record_blocks
from tpusim.results.resources import LaneBounds, LaneMachine, operations_by_name
from tpusim.results.result import Result

PathTime: TypeAlias = Counter[tuple[str, str]]
"""Picoseconds by resource and label."""


def limits(result: Result) -> tuple[Limit, ...]:
    """Return what bounds a step, the resource with the largest part of it first."""
    timeline = result.timeline
    times: PathTime = Counter()
    for lane, bounds in enumerate(lane_bounds(result)):
        devices = timeline.devices[lane] if timeline.devices else 1
        for cell, picoseconds in lane_path(timeline, lane, bounds).items():
            times[cell] += devices * picoseconds
    return tuple(_ranked(times, timeline.core_count, timeline.total_ps))


def _ranked(times: PathTime, cores: int, step_ps: int) -> Iterator[Limit]:
    """Yield the limits of times of all cores, as means whose sum is exact."""
    sums: Counter[str] = Counter()
    for (resource, _), picoseconds in times.items():
        sums[resource] += picoseconds
    so_far = 0
    for resource, _ in sorted(sums.items(), key=lambda each: (-each[1], each[0])):
        does: dict[str, int] = {}
        own = {label: ps for (of, label), ps in times.items() if of == resource}
        for label, picoseconds in sorted(own.items(), key=lambda each: (-each[1], each[0])):
            before, so_far = so_far, so_far + picoseconds
            if mean := so_far // cores - before // cores:
                does[label] = mean
        if does:
            yield Limit(resource, does, step_ps)


def lane_bounds(result: Result) -> Iterator[LaneBounds]:
    """Yield the bounds of the tasks of each lane; the messages of all stages are known to each."""
    costed = result.costed()
    device = result.pod.chip.device
    sent = {each.task.name: each.task for program in costed for each in program.messages}
    machines: dict[tuple[tuple[str, float], ...], LaneMachine] = {}
    for lane, program in enumerate(costed):
        if program.links not in machines:
            machines[program.links] = LaneMachine(device, dict(program.links))
        tasks, ops = sent | tasks_by_name(program), operations_by_name(result.program_of(lane))
        yield LaneBounds(tasks, ops, machines[program.links])


def tasks_by_name(program: CostedProgram) -> dict[str, Task]:
    """Return the tasks of a lane, also those of its segments and of its host, by name."""
    return {task.name: task for task in _tasks(program)}


def _tasks(program: CostedProgram) -> Iterator[Task]:
    yield from _flat(program.body)
    for segment in program.segments:
        yield from _flat(segment.body)
    yield from program.host


def _flat(body: Sequence[TopTask]) -> Iterator[Task]:
    for op in body:
        if isinstance(op, TaskLoop):
            yield from _flat(op.body)
        elif not isinstance(op, Call):
            yield op


def lane_path(timeline: Timeline, lane: int, bounds: LaneBounds) -> PathTime:
    """Return the critical path of one lane of a timeline."""
    tasks = [record for record in timeline.tasks if record.lane == lane]
    waits = [record for record in timeline.waits if record.lane == lane]
    if any(wait.stream == ON_HOST for wait in waits):
        return _host_path(tasks, waits, bounds)
    runs: dict[int, _Run] = {}
    for record in tasks:
        if record.stream != ON_HOST:
            _run_of(record, runs).tasks.append(_in_one_call(record))
    for record in waits:
        _run_of(record, runs).waits.append(_in_one_call(record))
    found: PathTime = Counter()
    for run in runs.values():
        for cell, picoseconds in run.path(bounds).items():
            found[cell] += run.times * picoseconds
    return found


def _host_path(tasks: Sequence[Record], waits: Sequence[Record], bounds: LaneBounds) -> PathTime:
    """Return the path of a lane that waits for the host, whose work takes from 0 to its end."""
    host = [record for record in tasks if record.stream == ON_HOST]
    end = max(record.end_ps for record in host)
    return _waited([*host, *(wait for wait in waits if wait.start_ps >= end)], bounds)


def _in_one_call(record: Record) -> Record:
    """Return a record without the times of its calls."""
    if record.repeats and isinstance(record.repeats[0], CallTimes):
        return replace(record, repeats=record.repeats[1:])
    return record


def _run_of(record: Record, runs: "dict[int, _Run]") -> "_Run":
    """Return the run that a record is part of: that of the calls of one part, or of the lane."""
    calls = record.repeats[0] if record.repeats else None
    key = id(calls) if isinstance(calls, CallTimes) else 0
    if key not in runs:
        runs[key] = _Run(calls.repeats if isinstance(calls, CallTimes) else 1)
    return runs[key]


@dataclass(slots=True)
class _Run:
    """What runs from one time to another without anything in flight before and after.

    times: how often it runs.
    """

    times: int
    tasks: list[Record] = field(default_factory=list)
    waits: list[Record] = field(default_factory=list)

    def path(self, bounds: LaneBounds) -> PathTime:
        """Return the critical path of one time; of waits between parts of a stage, the waits."""
        core = [record for record in self.tasks if record.stream == CORE] + self.waits
        if not any(record.stream == CORE for record in self.tasks) and not self._moved():
            return _waited(self.waits, bounds)
        return _Walk(core, self.tasks, bounds).times

    def _moved(self) -> bool:
        """Return True if something was transferred that the core waited for."""
        names = {record.name for record in self.tasks}
        return any(wait.name in names for wait in self.waits)


def _waited(waits: Iterable[Record], bounds: LaneBounds) -> PathTime:
    found: PathTime = Counter()
    for wait in waits:
        for resource, part in bounds.of(wait.name, wait.label).parts(wait.duration_ps):
            found[resource, wait.label] += part
    return found


class _Instance(NamedTuple):
    """One repetition of a record of the core.

    turns: its number in each level of repetition, and the periods of these.
    """

    record: Record
    end_ps: int
    turns: tuple[int, ...]
    periods: tuple[int, ...]

    @property
    def start_ps(self) -> int:
        return self.end_ps - self.record.duration_ps


class _Walk:
    """The path through one run, from its end to its begin."""

    def __init__(self, core: Sequence[Record], tasks: Sequence[Record], bounds: LaneBounds) -> None:
        done = [record for record in core if record.duration_ps]
        self._core = _CoreTimes(sorted(done, key=lambda record: record.end_ps))
        self._bounds = bounds
        self._transfers: dict[str, list[Record]] = {}
        for record in tasks:
            if record.stream != CORE:
                self._transfers.setdefault(record.name, []).append(record)
        self._cells: dict[tuple[str, str, int], list[tuple[tuple[str, str], int]]] = {}
        self._seen: dict[int, tuple[_Instance, PathTime]] = {}
        self.times: PathTime = Counter()
        if done:
            self._walk(min(r.start_ps for r in done), max(_last_end(r) for r in done))

    def _walk(self, begin: int, end: int) -> None:
        now = end
        while now > begin:
            at = self._core.before(now)
            if at.end_ps == now and at.turns:
                now -= self._skip(at)
                at = self._core.before(now)
            now = self._step(at, now)

    def _step(self, at: _Instance, now: int) -> int:
        """Take what the core does before `now`; return the time at which that began."""
        record = at.record
        if record.stream != CORE and at.end_ps == now:
            transfer = self._ended(record.name, now)
            if transfer is not None:
                before = self._follow(transfer, now)
                if before < now:
                    return before
        self._take(record, now - at.start_ps)
        return at.start_ps

    def _follow(self, transfer: Record, end: int) -> int:
        """Take a transfer, and those before it that it depends on; return when the first began."""
        found: Record | None = transfer
        while found is not None:
            self._take(found, found.duration_ps)
            end -= found.duration_ps
            found = self._cause(found, end)
        return end

    def _cause(self, transfer: Record, start: int) -> Record | None:
        """Return the transfer whose end let another one start, or None if the core did."""
        task = self._bounds.tasks.get(transfer.name)
        for dep in task.deps if task else ():
            ended = self._ended(dep.op, start)
            if ended is not None and ended.duration_ps:
                return ended
        if start <= self._core.begin_ps or self._core.before(start).end_ps == start:
            return None
        every = (self._ended(name, start) for name in self._transfers)
        return next((each for each in every if each is not None and each.duration_ps), None)

    def _ended(self, name: str, time: int) -> Record | None:
        """Return the transfer of a name that ended at a time, if one did."""
        for record in self._transfers.get(name, ()):
            left = time - record.end_ps
            for level in record.repeats:
                if isinstance(level, RepeatLevel) and level.period_ps:
                    turn = min(max(left, 0) // level.period_ps, level.repeats - 1)
                    left -= turn * level.period_ps
            if left == 0:
                return record
        return None

    def _take(self, record: Record, length: int) -> None:
        """Add the parts of a length of a record to the path."""
        key = record.name, record.label, length
        cells = self._cells.get(key)
        if cells is None:
            parts = self._bounds.of(record.name, record.label).parts(length)
            cells = self._cells[key] = [((of, record.label), ps) for of, ps in parts if ps]
        for cell, picoseconds in cells:
            self.times[cell] += picoseconds

    def _skip(self, at: _Instance) -> int:
        """Count the periods that the path repeats from here back; return their picoseconds.

        It repeats itself if it was at the same task whole periods later, in one loop: what it met
        in between ended within the loop, where all that ends repeats.
        """
        known = self._seen.get(id(at.record))
        self._seen[id(at.record)] = at, self.times.copy()
        if known is None:
            return 0
        later, times = known
        differ = [level for level, turn in enumerate(at.turns) if turn != later.turns[level]]
        if len(differ) != 1:
            return 0
        level = differ[0]
        distance = later.turns[level] - at.turns[level]
        more = at.turns[level] // distance
        if not more:
            return 0
        for cell, picoseconds in self.times.items():
            self.times[cell] = picoseconds + more * (picoseconds - times[cell])
        return more * distance * at.periods[level]


def _last_end(record: Record) -> int:
    """Return the end of a record's last repetition, of those of one call."""
    return record.end_ps + sum(
        level.last_ps for level in record.repeats if isinstance(level, RepeatLevel)
    )


CoreTree: TypeAlias = "Sequence[Record | RepeatedBlock[Record]]"


class _CoreTimes:
    """The records of a core, found by time."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._tree = record_blocks(records)
        self._starts: dict[int, list[int]] = {}
        self.begin_ps = records[0].start_ps if records else 0

    def before(self, time: int) -> _Instance:
        """Return what the core did just before a time."""
        turns: list[int] = []
        periods: list[int] = []
        tree, shift = self._tree, 0
        while True:
            starts = self._starts_of(tree)
            found = tree[max(bisect_left(starts, time - shift) - 1, 0)]
            if not isinstance(found, RepeatedBlock):
                return _Instance(found, found.end_ps + shift, tuple(turns), tuple(periods))
            level = found.level
            turn = (time - shift - _start(found) - 1) // level.period_ps
            turns.append(min(turn, level.repeats - 1))
            periods.append(level.period_ps)
            shift += turns[-1] * level.period_ps
            tree = found.entries

    def _starts_of(self, tree: CoreTree) -> list[int]:
        known = self._starts.get(id(tree))
        if known is None:
            known = self._starts[id(tree)] = [_start(entry) for entry in tree]
        return known


def _start(entry: Record | RepeatedBlock[Record]) -> int:
    while isinstance(entry, RepeatedBlock):
        entry = entry.entries[0]
    return entry.start_ps

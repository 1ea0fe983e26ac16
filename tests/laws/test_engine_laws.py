"""Laws of every run: order, exclusive use, conservation, determinism, scale, and monotony."""

from dataclasses import replace
from random import Random

import pytest
from engines import nanobytes
from extent import seeds
from random_programs import Generator, printed

from tpusim.costs import CORE, CostedProgram, Task, TaskLoop, TaskOp
from tpusim.engine import picoseconds, run
from tpusim.program import Dep, Phase

SEEDS = seeds(40)


def changed(body: tuple[TaskOp, ...], **factors: float) -> tuple[TaskOp, ...]:
    """`body` with the named fields of each task multiplied."""
    return tuple(
        replace(op, body=changed(op.body, **factors))
        if isinstance(op, TaskLoop)
        else replace(op, **{key: getattr(op, key) * by for key, by in factors.items()})
        for op in body
    )


class Oracle:
    """When a program without flows ends, from the definitions: each instance has its own end.

    A task is known by its name and its trips; an instance is issued, starts and ends at times that
    depend on earlier ones only, so one walk in program order is enough.
    """

    def __init__(self, program: CostedProgram) -> None:
        self.paths: dict[str, tuple[str, ...]] = {}
        self.order: list[str] = []
        self.ends: dict[str, dict[tuple[int, ...], int]] = {}
        self.streams: dict[str, list[int]] = {}
        self.started: dict[str, int] = {}
        self.core = 0
        self._place(program.body, ())
        self._walk(program.body, ())
        self.end = max([self.core, *(end for ends in self.streams.values() for end in ends)])

    def _place(self, body: tuple[TaskOp, ...], path: tuple[str, ...]) -> None:
        for op in body:
            if isinstance(op, TaskLoop):
                self._place(op.body, (*path, op.name))
            else:
                self.paths[op.name] = path
                self.order.append(op.name)
                self.ends[op.name] = {}

    def _walk(self, body: tuple[TaskOp, ...], trips: tuple[int, ...]) -> None:
        for op in body:
            if isinstance(op, TaskLoop):
                for trip in range(op.trips):
                    self._walk(op.body, (*trips, trip))
            else:
                self._run(op, trips)

    def _run(self, task: Task, trips: tuple[int, ...]) -> None:
        duration = picoseconds(task.delay_s) + picoseconds(task.work_s)
        ready = max([0, *(self._ready(task, dep, trips) for dep in task.deps)])
        if task.stream == CORE:
            self.core = max(self.core, ready) + duration
            self.ends[task.name][trips] = self.core
            return
        issued = self.streams.setdefault(task.stream, [])
        if len(issued) >= 16:
            self.core = max(self.core, sorted(issued)[len(issued) - 16])
        start = max(self.core, ready, self.started.get(task.stream, 0))
        self.started[task.stream] = start
        self.ends[task.name][trips] = start + duration
        issued.append(start + duration)

    def _ready(self, task: Task, dep: Dep, trips: tuple[int, ...]) -> int:
        """When all that `dep` asks for has ended: the trips up to `distance` before this one."""
        path, other = self.paths[task.name], self.paths[dep.op]
        shared = len([1 for a, b in zip(path, other, strict=False) if a == b])
        last = (trips[shared - 1] if shared else 0) - dep.distance
        if last < 0:
            return 0
        bound = (*trips[: shared - 1], last) if shared else ()
        return max([0, *(end for at, end in self.ends[dep.op].items() if at[:shared] <= bound)])


@pytest.mark.parametrize("seed", seeds(60))
def test_without_flows_it_is_what_the_definitions_say(seed: int) -> None:
    program = Generator(seed, nesting=0.3).program()
    program = replace(program, body=changed(program.body, bytes=0))
    assert run([program]).total_ps == Oracle(program).end


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_busy_longer_than_the_step(seed: int) -> None:
    timeline = run([Generator(seed).program()])
    assert all(link.volume_nb <= link.rate_nb_per_ps * timeline.total_ps for link in timeline.links)
    core = [*timeline.waits, *(task for task in timeline.tasks if task.stream == CORE)]
    assert sum(record.total_ps for record in core) == timeline.total_ps


@pytest.mark.parametrize("seed", SEEDS)
def test_every_byte_is_carried(seed: int) -> None:
    program = Generator(seed).program()
    volumes = {name: 0 for name, _ in program.links}

    def add(body: tuple[TaskOp, ...], runs: int) -> None:
        for op in body:
            if isinstance(op, TaskLoop):
                add(op.body, runs * op.trips)
            else:
                for link, weight in op.uses:
                    volumes[link] += runs * weight * nanobytes(op.bytes)

    add(program.body, 1)
    assert {link.link: link.volume_nb for link in run([program]).links} == volumes


@pytest.mark.parametrize("seed", SEEDS)
def test_no_task_is_faster_than_alone(seed: int) -> None:
    program = Generator(seed).program()
    tasks: dict[str, Task] = {}

    def collect(body: tuple[TaskOp, ...]) -> None:
        for op in body:
            if isinstance(op, TaskLoop):
                collect(op.body)
            else:
                tasks[op.name] = op

    collect(program.body)
    for record in run([program]).tasks:
        task = tasks[record.name]
        alone = run([replace(program, body=(replace(task, deps=(), frees=()),))])
        assert record.duration_ps >= alone.total_ps


@pytest.mark.parametrize("seed", SEEDS)
def test_twice_the_work_takes_twice_the_time(seed: int) -> None:
    program = Generator(seed).program()
    double = replace(program, body=changed(program.body, delay_s=2, work_s=2, bytes=2))
    once, twice = run([program]), run([double])
    runs = sum(task.count for task in once.tasks)
    assert twice.total_ps == pytest.approx(2 * once.total_ps, abs=4 * runs)


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_do_not_touch_one_another(seed: int) -> None:
    programs = [Generator(seed).program(), Generator(seed + 1).program()]
    alone = [run([program]) for program in programs]
    together = run(programs)
    assert [end for _, end in together.lanes] == [timeline.total_ps for timeline in alone]
    assert [memory[:3] for memory in together.memory] == [
        timeline.memory[0][:3] for timeline in alone
    ]


def test_the_same_input_gives_the_same_timeline() -> None:
    program = Generator(7).program()
    assert run([program]) == run([program])


@pytest.mark.thorough
def test_hash_seeds_do_not_matter() -> None:
    script = (
        "from random_programs import Generator; from tpusim.engine import run\n"
        "for seed in range(5):\n"
        "    t = run([Generator(seed).program()])\n"
        "    print(t.total_ps, t.tasks, t.waits, t.links, t.memory)"
    )
    outputs = printed(script, "123")
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


def unshared(seed: int) -> CostedProgram:
    """A loop in which each transfer has a link of its own and follows its own last trip."""
    pick = Random(seed)
    body: list[TaskOp] = []
    for at in range(pick.randint(2, 7)):
        core = pick.random() < 0.5
        name = f"t{at}"
        deps = [] if core else [Dep(name, 1)]
        deps += [Dep(f"t{other}", pick.randint(0, 2)) for other in range(at) if pick.random() < 0.4]
        body.append(
            Task(
                name=name,
                phase=Phase.FORWARD,
                label="any",
                stream=CORE if core else name,
                delay_s=pick.choice((0, 1e-6)),
                work_s=pick.choice((0, 1e-6, 3e-6)),
                bytes=pick.choice((1e5, 4e5)),
                uses=((CORE if core else name, 1),),
                deps=tuple(deps),
            )
        )
    links = {CORE: 1e11, **{f"t{at}": 1e11 for at in range(len(body))}}
    return CostedProgram(
        name="unshared",
        body=(TaskLoop(name="loop", trips=12, body=tuple(body)),),
        links=tuple(links.items()),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_more_bandwidth_is_never_slower_when_no_link_is_shared(seed: int) -> None:
    program = unshared(seed)
    before = run([program]).total_ps
    for wider, _ in program.links:
        links = tuple((name, rate * (3 if name == wider else 1)) for name, rate in program.links)
        assert run([replace(program, links=links)]).total_ps <= before

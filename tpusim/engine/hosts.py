"""Hosts that feed a repeated step, as SimPy processes, run to their steady state.

Each host is a row of stages. What passes through them are blocks, equal parts of the host's part of
a batch, in whole numbers; each stage has servers that take the next block of its queue, work on it
for some time and hand it on. The last stage hands on whole batches. The devices take a batch of
every host, run a step, and take the next; what they wait for the slowest host is the input that
nothing hides. Taking a batch permits the host to begin another, so that it never has more than
`prefetch` batches in the making or ready; with 0, it begins one when the devices have ended a step.

Without variation this is a max-plus linear system with integer times: it becomes periodic, and each
period may have several steps of unequal length. At the start of every step the state is taken
relative to now (the queue of each stage, what its servers have left, the batches that are ready),
and an equal earlier state closes the period, as in `fold`. Hosts that are alike do the same at the
same time, so one of them stands for all. With variation no state recurs: then there is no steady
state, the steps after the first tenth stand for all, and each host is simulated for itself.
"""

from collections import deque
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, TypeAlias

from simpy import Environment, Event

MOST_STEPS = 1000
"""Steps that are simulated at most."""

WARM_UP = 0.1
"""The share of the steps that are not counted where there is no steady state."""


class HostStage(NamedTuple):
    """A stage of a host.

    block_ps: time of one server for one block, or for one batch if `whole`.
    servers: blocks that are worked on at once.
    whole: True if it waits for all blocks of a batch; such a stage is the last.
    variation: standard deviation over mean of the times (gamma distributed).
    """

    name: str
    block_ps: int
    servers: int = 1
    whole: bool = False
    variation: float = 0.0


class HostLine(NamedTuple):
    """Hosts that are alike.

    blocks: of the host's part of a batch.
    alike: hosts that this one stands for.
    """

    name: str
    stages: tuple[HostStage, ...]
    blocks: int
    alike: int = 1


class HostStageUse(NamedTuple):
    """What one stage of one host did in the period.

    busy: mean share of its servers that worked.
    queue: mean number of blocks before it.
    spans: (start, end) in ps of its work in the last step of the period, from the step's start.
    """

    host: int
    name: str
    busy: float
    queue: float
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class HostRun:
    """The steps of devices that hosts feed.

    steady: True if a period was found, False if the steps after the first tenth stand for all.
    steps, period_ps: of the period.
    first_ps: time until the first step begins.
    last: number of the host for which the devices waited longest.
    uses: of the stages of every line.
    simulated: steps from the start to the end of the period.
    batches: of each line, those that it has handed on and that were taken.
    """

    steady: bool
    steps: int
    period_ps: int
    first_ps: int
    last: int
    uses: tuple[HostStageUse, ...]
    simulated: int
    batches: tuple[tuple[int, int], ...]

    @property
    def step_ps(self) -> int:
        """The mean step, rounded up."""
        return -(-self.period_ps // self.steps)


def feed(
    lines: Sequence[HostLine], step_ps: int, prefetch: int, seed: int = 0, steps: int = MOST_STEPS
) -> HostRun:
    """Return the steady state of steps of `step_ps` that the hosts feed.

    prefetch: batches that each host makes ahead.
    seed: of the times that vary.
    steps: simulated at most.
    """
    return _Feed(lines, step_ps, prefetch, seed).run(steps)


def _now(env: Environment) -> int:
    """Return the time in picoseconds; SimPy's may be a float, this one never is."""
    return int(env.now)


class _Stage:
    """A stage and its servers."""

    def __init__(self, env: Environment, what: HostStage, random: Random | None) -> None:
        self.what, self._env, self._random = what, env, random
        self.queue = 0
        self.ends: list[int] = []
        self.spans: deque[tuple[int, int]] = deque()
        self._idle: deque[Event] = deque()
        self._busy_ps = self._area = self._seen_ps = 0

    def start(self, following: "_Taker") -> None:
        """Start the servers, which hand on to what follows."""
        for _ in range(self.what.servers):
            self._env.process(self._serve(following))

    def put(self, blocks: int = 1) -> None:
        """Add blocks to the queue."""
        self._pass_time()
        self.queue += blocks
        for _ in range(min(blocks, len(self._idle))):
            self._idle.popleft().succeed()

    def state(self) -> Hashable:
        """Return the queue and the times that are left, which decide all that follows."""
        return self.queue, tuple(sorted(end - _now(self._env) for end in self.ends))

    def forget(self, before: int) -> None:
        """Forget the work that ended by then."""
        while self.spans and self.spans[0][1] <= before:
            self.spans.popleft()

    def totals(self) -> tuple[int, int]:
        """Return the integrals of busy servers and of the queue over time until now."""
        self._pass_time()
        return self._busy_ps, self._area

    def _pass_time(self) -> None:
        passed = _now(self._env) - self._seen_ps
        self._busy_ps += passed * len(self.ends)
        self._area += passed * self.queue
        self._seen_ps = _now(self._env)

    def _serve(self, following: "_Taker") -> Generator[Event, Any, None]:
        env = self._env
        while True:
            while not self.queue:
                woken = env.event()
                self._idle.append(woken)
                yield woken
            self._pass_time()
            self.queue -= 1
            end = _now(env) + self._time()
            self.ends.append(end)
            self.spans.append((_now(env), end))
            yield env.timeout(end - _now(env))
            self._pass_time()
            self.ends.remove(end)
            following.put()

    def _time(self) -> int:
        stage = self.what
        if self._random is None or not stage.variation:
            return stage.block_ps
        shape = stage.variation**-2
        return round(self._random.gammavariate(shape, stage.block_ps / shape))


class _Gather:
    """Gathers the blocks of a batch, and hands it on as one."""

    def __init__(self, following: "_Taker", of: int) -> None:
        self._following, self._of, self.blocks = following, of, 0

    def put(self) -> None:
        """Take a block."""
        self.blocks += 1
        if self.blocks == self._of:
            self.blocks = 0
            self._following.put()


class _Ready:
    """The batches of a host that the devices can take, by the times at which they came."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.made = 0
        self.times: deque[int] = deque()
        self._wanted: Event | None = None

    def put(self) -> None:
        """Take a batch from the last stage."""
        self.times.append(_now(self._env))
        self.made += 1
        if self._wanted is not None:
            self._wanted.succeed()
            self._wanted = None

    def wait(self) -> Generator[Event, Any, None]:
        """Wait until there is a batch."""
        if not self.times:
            self._wanted = self._env.event()
            yield self._wanted


_Taker: TypeAlias = "_Stage | _Gather | _Ready"


class _Host:
    """The stages of one host, of which only the last may take whole batches."""

    def __init__(self, env: Environment, line: HostLine, random: Random | None) -> None:
        self.stages = [_Stage(env, stage, random) for stage in line.stages]
        self.ready = _Ready(env)
        self.taken = self.waited_ps = 0
        following: _Taker = self.ready
        *blockwise, last = self.stages
        if last.what.whole:
            last.start(following)
            following = last
        else:
            blockwise.append(last)
        self._gather = following = _Gather(following, line.blocks)
        for stage in reversed(blockwise):
            stage.start(following)
            following = stage
        self._given = line.blocks if blockwise else 1

    def permit(self, batches: int) -> None:
        """Let the host begin more batches."""
        self.stages[0].put(self._given * batches)

    def take(self, since: int) -> None:
        """Take a batch that is ready; the devices have waited for it since then at most."""
        self.waited_ps += max(self.ready.times.popleft() - since, 0)
        self.taken += 1

    def state(self) -> Hashable:
        """Return the state relative to now."""
        stages = tuple(stage.state() for stage in self.stages)
        return len(self.ready.times), self._gather.blocks, stages


class _Mark(NamedTuple):
    """The start of a step: its time, and the integrals of each stage and the waits until then."""

    time: int
    totals: tuple[tuple[tuple[int, int], ...], ...]
    waited: tuple[int, ...]


class _Feed:
    """Devices in step, and the hosts that feed them."""

    def __init__(self, lines: Sequence[HostLine], step_ps: int, prefetch: int, seed: int) -> None:
        self._env = env = Environment(0)
        self._step_ps, self._prefetch = step_ps, prefetch
        varies = any(stage.variation for line in lines for stage in line.stages)
        self._random = Random(seed) if varies else None
        each = [line for line in lines for _ in range(line.alike if varies else 1)]
        self._hosts = [_Host(env, line, self._random) for line in each]
        self._marks: list[_Mark] = []

    def run(self, most: int) -> HostRun:
        """Run to the steady state, or for as many steps as there may be at most."""
        steps = self._steps()
        seen: dict[Hashable, int] = {}
        for number in range(most + 1):
            next(steps)
            self._marks.append(self._mark())
            if self._random is not None:
                continue
            state = tuple(host.state() for host in self._hosts)
            if state in seen:
                return self._result(True, seen[state], number)
            seen[state] = number
        return self._result(False, int(most * WARM_UP), most)

    def _steps(self) -> Iterator[None]:
        """Yield at the start of every step, when its batches are taken and others permitted."""
        started: deque[None] = deque()
        self._env.process(self._devices(started))
        while True:
            while not started:
                self._env.step()
            started.popleft()
            yield

    def _devices(self, started: "deque[None]") -> Generator[Event, Any, None]:
        for host in self._hosts:
            host.permit(self._prefetch)
        while True:
            ended = _now(self._env)
            for host in self._hosts:
                if not self._prefetch:
                    host.permit(1)
            for host in self._hosts:
                yield from host.ready.wait()
            for host in self._hosts:
                host.take(ended)
                if self._prefetch:
                    host.permit(1)
            started.append(None)
            yield self._env.timeout(self._step_ps)

    def _mark(self) -> _Mark:
        if self._marks:
            for host in self._hosts:
                for stage in host.stages:
                    stage.forget(self._marks[-1].time)
        totals = tuple(tuple(stage.totals() for stage in host.stages) for host in self._hosts)
        return _Mark(_now(self._env), totals, tuple(host.waited_ps for host in self._hosts))

    def _result(self, steady: bool, first: int, last: int) -> HostRun:
        """Return what happened from the start of step `first` to that of step `last`."""
        before, after = self._marks[first], self._marks[last]
        waited = [late - early for early, late in zip(before.waited, after.waited, strict=True)]
        return HostRun(
            steady=steady,
            steps=last - first,
            period_ps=after.time - before.time,
            first_ps=self._marks[0].time,
            last=max(range(len(waited)), key=lambda host: waited[host]),
            uses=tuple(self._uses(before, after)),
            simulated=last,
            batches=tuple((host.ready.made, host.taken) for host in self._hosts),
        )

    def _uses(self, before: _Mark, after: _Mark) -> Iterator[HostStageUse]:
        passed = max(after.time - before.time, 1)
        window = self._marks[-2].time, self._marks[-1].time
        for at, host in enumerate(self._hosts):
            for place, stage in enumerate(host.stages):
                busy, queued = (
                    late - early
                    for early, late in zip(
                        before.totals[at][place], after.totals[at][place], strict=True
                    )
                )
                spans = tuple(_covered(stage.spans, *window))
                share = busy / passed / stage.what.servers
                yield HostStageUse(at, stage.what.name, share, queued / passed, spans)


def _covered(spans: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the times within a window, from its start, that any of the spans covers, in order."""
    found: list[tuple[int, int]] = []
    for begin, stop in sorted((max(a, start) - start, min(b, end) - start) for a, b in spans):
        if begin < stop and found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        elif begin < stop:
            found.append((begin, stop))
    return found

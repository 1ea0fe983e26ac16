"""The lane of a pipeline's stage: a core that runs parts, and messages between lanes.

A call starts when the core is free and all messages that it awaits have arrived, and takes as long
as its part does alone. Its messages leave when it is done, beside the core; those of one lane to
another leave one after another. So lanes touch each other through messages alone. That is exact as
long as messages share no link with the tasks of the parts: the torus links between neighbours along
the pipeline's axis are their own, and what they draw on HBM is neglected.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simpy import Environment, Event
from simpy.events import Timeout

from tpusim.costs.tasks import TaskCall
from tpusim.engine.code import Step
from tpusim.engine.part import Part


class Way(NamedTuple):
    """How a message travels: what it is, the lane it goes to, and its task in integer units."""

    message: str
    to: int
    step: Step


class Run(NamedTuple):
    """One run of a part by a lane."""

    call: TaskCall
    part: Part
    ways: tuple[Way, ...]


class Sent(NamedTuple):
    """A message: its sender is done at `made_ps`, it leaves, and it arrives."""

    sender: int
    run: Run
    way: Way
    made_ps: int
    leaves_ps: int
    arrives_ps: int


class Pause(NamedTuple):
    """The core waits for `late` before `run`: until its maker is done, and until it has come."""

    run: Run
    late: Sent
    start_ps: int
    made_ps: int
    end_ps: int


@dataclass(slots=True, eq=False)
class Post:
    """The messages of all lanes that are on their way or there, and who waits for others."""

    sent: dict[str, Sent] = field(default_factory=dict)
    waiting: dict[str, Event] = field(default_factory=dict)
    free: dict[tuple[int, int], int] = field(default_factory=dict)

    def send(self, sender: int, run: Run, made_ps: int) -> None:
        """Send what a run makes, once the messages before it have left."""
        for way in run.ways:
            link = (sender, way.to)
            leaves = max(made_ps, self.free.get(link, 0))
            arrives = self.free[link] = leaves + way.step.alone_ps
            self.sent[way.message] = Sent(sender, run, way, made_ps, leaves, arrives)
            signal = self.waiting.pop(way.message, None)
            if signal is not None:
                signal.succeed()


class Stage:
    """One lane: its process walks through its runs."""

    __slots__ = ("_env", "_post", "awaited", "end_ps", "name", "number", "pauses", "runs", "starts")

    def __init__(
        self, env: Environment, post: Post, number: int, name: str, runs: Sequence[Run]
    ) -> None:
        self._env = env
        self._post = post
        self.number = number
        self.name = name
        self.runs = runs
        self.starts: list[int] = []
        self.pauses: list[Pause] = []
        self.awaited = ""
        self.end_ps = 0

    @property
    def finished(self) -> bool:
        """Whether all runs are over."""
        return len(self.starts) == len(self.runs) and not self.awaited

    def where(self) -> str:
        """What the lane is at, for the message when it has stalled."""
        call = self.runs[len(self.starts)].call.name
        return f"lane {self.name!r} waits before {call} for {self.awaited!r}"

    def run(self) -> Generator[Event, Any, None]:
        """Run after run: wait for its messages, then for as long as its part takes.

        How long a part takes is known when it starts, and so is when its messages will arrive.
        """
        env, post = self._env, self._post
        for run in self.runs:
            free = int(env.now)
            start = free
            if run.call.awaits:
                for message in run.call.awaits:
                    if message not in post.sent:
                        yield from self._wait(message)
                start = self._start(run, free)
            end = start + run.part.duration_ps
            self.starts.append(start)
            post.send(self.number, run, end)
            if end > env.now:
                yield Timeout(env, end - env.now)
        self.end_ps = int(env.now)

    def _wait(self, message: str) -> Generator[Event, Any, None]:
        """Wait until it is known when a message arrives."""
        self.awaited = message
        signal = self._post.waiting[message] = Event(self._env)
        yield signal
        self.awaited = ""

    def _start(self, run: Run, free: int) -> int:
        """When a run starts whose messages are all on their way, on a core that is `free`."""
        awaited = [self._post.sent[message] for message in run.call.awaits]
        late = max(awaited, key=_arrival)
        if late.arrives_ps <= free:
            return free
        made = min(max(sent.made_ps for sent in awaited), late.arrives_ps)
        self.pauses.append(Pause(run, late, free, max(free, made), late.arrives_ps))
        return late.arrives_ps


def _arrival(sent: Sent) -> int:
    return sent.arrives_ps

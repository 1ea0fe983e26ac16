"""The lane of a pipeline's stage: a core that runs parts, and messages between lanes.

A call starts when the core is free and all messages that it awaits have arrived, and takes as long
as its part does alone. Its messages leave when it is done, beside the core; those of one lane to
another leave one after another. So lanes touch each other through messages alone. That is exact as
long as messages share no link with the tasks of the parts, as where the pipeline's axis has a torus
dimension of its own. What they draw on HBM is neglected, and so is what they and the parts draw on
the same links: of DCN, where both cross it, and of a torus dimension that two axes divide.

As nothing else joins lanes, each keeps a time of its own and goes on until it needs a message that
has not been sent; messages carry their times (Chandy and Misra, "Distributed simulation", IEEE
Transactions on Software Engineering, 1979). SimPy's clock stands still meanwhile.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from simpy import Environment, Event

from tpusim.engine.code import Step
from tpusim.engine.part import Part
from tpusim.program import Call

Sent: TypeAlias = tuple[int, int, Part, Step]
"""A message: when it arrives, when what makes it is done, what makes it, and its way."""


@dataclass(slots=True, eq=False)
class Post:
    """The messages of all lanes that are under way or there, and who waits for others."""

    sent: dict[str, Sent] = field(default_factory=dict)
    waiting: dict[str, Event] = field(default_factory=dict)


class Way:
    """How what a segment sends to another lane gets there: `left` has when each message left.

    link: until when the way to that lane is taken, for all segments.
    """

    __slots__ = ("_link", "left", "step")

    def __init__(self, step: Step, link: list[int]) -> None:
        self.step = step
        self._link = link
        self.left: list[int] = []

    def send(self, made_ps: int) -> int:
        """When a message arrives that is made at a time, once those before it have left."""
        leaves = max(made_ps, self._link[0])
        self.left.append(leaves)
        arrives = self._link[0] = leaves + self.step.alone_ps
        return arrives


class Stage:
    """One lane: its process walks through its runs.

    ways: of what each segment sends to each other lane. starts: when each run started. waits: of
    the core, by the part that is to run, what it waits for (a part of another lane, or the way of a
    message) and the length; when they begin.
    """

    __slots__ = (
        *("_env", "_post", "awaited", "end_ps", "finished", "name", "runs", "starts", "waits"),
        "ways",
    )

    def __init__(
        self, env: Environment, post: Post, name: str, runs: Sequence[tuple[Call, Part]],
        steps: Mapping[tuple[str, int, float], Step],
    ) -> None:  # fmt: skip
        links: dict[int, list[int]] = {to: [0] for _, to, _ in steps}
        self._env = env
        self._post = post
        self.ways = {key: Way(step, links[key[1]]) for key, step in steps.items()}
        self.name = name
        self.runs = runs
        self.starts: list[int] = []
        self.waits: dict[tuple[Part, Part | Step, int], list[int]] = {}
        self.awaited = ""
        self.end_ps = 0
        self.finished = False

    def where(self) -> str:
        """What the lane is at, for the message when it has stalled."""
        call, _ = self.runs[len(self.starts)]
        return f"lane {self.name!r} waits before {call.name} for {self.awaited!r}"

    def run(self) -> Generator[Event, Any, None]:
        """Run after run: each when its messages are there, for as long as its part takes."""
        env, sent, waiting = self._env, self._post.sent, self._post.waiting
        free = 0
        for call, part in self.runs:
            start, made, late = free, free, None
            for message in call.awaits:
                if message not in sent:
                    self.awaited = message
                    signal = waiting[message] = Event(env)
                    yield signal
                found = sent[message]
                if found[0] > start:
                    start, late = found[0], found
                if found[1] > made:
                    made = found[1]
            if late is not None:
                self._note_wait(part, late, free, min(made, start))
            self.starts.append(start)
            free = start + part.duration_ps
            for send in call.sends:
                message = send.message
                if message in sent:
                    raise ValueError(f"call {call.name!r} sends {message!r}, which has been sent")
                way = self.ways[call.segment, send.to, float(send.bytes)]
                sent[message] = (way.send(free), free, part, way.step)
                if message in waiting:
                    waiting.pop(message).succeed()
        self.end_ps = free
        self.finished = True

    def _note_wait(self, part: Part, late: Sent, free: int, made: int) -> None:
        """The core is free, all that a part awaits is made, and then the last of it arrives."""
        arrives, _, maker, step = late
        if free < made:
            self.waits.setdefault((part, maker, made - free), []).append(free)
        if made < arrives:
            self.waits.setdefault((part, step, arrives - made), []).append(made)

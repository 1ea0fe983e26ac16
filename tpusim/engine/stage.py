"""The lane of a pipeline's stage: a core that runs parts, and messages between lanes.

A call starts when the core is free and all messages that it awaits have arrived, and takes as long
as its part does alone. Its messages leave when it is done, beside the core; those of one lane to
another leave one after another. So lanes touch each other through messages alone. That is exact as
long as messages share no link with the tasks of the parts: the torus links between neighbours along
the pipeline's axis are their own, and what they draw on HBM is neglected.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from simpy import Environment, Event
from simpy.events import Timeout

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


class Stage:
    """One lane: its process walks through its runs.

    ways: the task of what each segment sends to each other lane. starts: when each run started.
    left: when the messages of each way left. waits: of the core, by the part that is to run, what
    it waits for (a part of another lane, or the way of a message) and the length; when they begin.
    """

    __slots__ = (
        *("_env", "_links", "_post", "_ways", "awaited", "end_ps", "finished", "left", "name"),
        *("runs", "starts", "waits"),
    )

    def __init__(
        self, env: Environment, post: Post, name: str, runs: Sequence[tuple[Call, Part]],
        ways: Mapping[tuple[str, int], Step],
    ) -> None:  # fmt: skip
        self._env = env
        self._post = post
        self._ways = ways
        self._links: dict[int, int] = {}
        self.name = name
        self.runs = runs
        self.starts: list[int] = []
        self.left: dict[Step, list[int]] = {}
        self.waits: dict[tuple[Part, Part | Step, int], list[int]] = {}
        self.awaited = ""
        self.end_ps = 0
        self.finished = False

    def where(self) -> str:
        """What the lane is at, for the message when it has stalled."""
        call, _ = self.runs[len(self.starts)]
        return f"lane {self.name!r} waits before {call.name} for {self.awaited!r}"

    def run(self) -> Generator[Event, Any, None]:
        """Run after run: wait for its messages, then for as long as its part takes.

        How long a part takes is known when it starts, and so is when its messages will arrive.
        """
        env, sent = self._env, self._post.sent
        free = 0
        for call, part in self.runs:
            for message in call.awaits:
                if message not in sent:
                    self.awaited = message
                    signal = self._post.waiting[message] = Event(env)
                    yield signal
            start = self._start(call, part, free) if call.awaits else free
            free = start + part.duration_ps
            self.starts.append(start)
            if call.sends:
                self._send(call, part, free)
            wait = free - int(env.now)
            if wait:
                yield Timeout(env, wait)
        self.end_ps = free
        self.finished = True

    def _start(self, call: Call, part: Part, free: int) -> int:
        """When a call starts whose messages are all on their way, on a core that is `free`."""
        sent = self._post.sent
        start, made, late = free, free, None
        for message in call.awaits:
            found = sent[message]
            if found[0] > start:
                start, late = found[0], found
            if found[1] > made:
                made = found[1]
        if late is not None:
            made = min(made, start)
            if free < made:
                self.waits.setdefault((part, late[2], made - free), []).append(free)
            if made < start:
                self.waits.setdefault((part, late[3], start - made), []).append(made)
        return start

    def _send(self, call: Call, part: Part, made: int) -> None:
        """Send what a call makes, once the messages before it to the same lane have left."""
        sent, waiting = self._post.sent, self._post.waiting
        for send in call.sends:
            message, to = send.message, send.to
            if message in sent:
                raise ValueError(f"call {call.name!r} sends {message!r}, which has been sent")
            step = self._ways[call.segment, to]
            leaves = max(made, self._links.get(to, 0))
            arrives = self._links[to] = leaves + step.alone_ps
            self.left.setdefault(step, []).append(leaves)
            sent[message] = (arrives, made, part, step)
            if message in waiting:
                waiting.pop(message).succeed()

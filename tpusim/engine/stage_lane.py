"""The lane of a pipeline's stage: a core that runs parts, and messages between lanes.

A call starts when the core is free and all messages that it awaits have arrived, and takes as long
as its part does alone. Its messages leave when it is done, beside the core; those of one lane to
another leave one after another. So lanes interact through messages alone. That is exact as long as
messages share no link with the tasks of the parts, as when the pipeline's axis has a torus
dimension of its own. Their use of HBM is neglected, and so is the contention of messages and parts
on the same links: of DCN, if both cross it, and of a torus dimension that two axes divide.

As nothing else joins lanes, each keeps a time of its own and goes on until it needs a message that
has not been sent; messages carry their times (Chandy and Misra, "Distributed simulation", IEEE
Transactions on Software Engineering, 1979). SimPy's clock stands still meanwhile.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from simpy import Environment, Event

from tpusim.engine.instructions import TaskStep
from tpusim.engine.lane_part import LanePart
from tpusim.program import Call

SentMessage: TypeAlias = tuple[int, int, LanePart, TaskStep]
"""A message: its arrival, the end of the part that makes it, that part, and its step."""


@dataclass(slots=True, eq=False)
class MessageBoard:
    """The messages of all lanes that have been sent, and the lanes that wait for others."""

    sent: dict[str, SentMessage] = field(default_factory=dict)
    waiting: dict[str, Event] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class MessageLink:
    """The link of a segment's messages to another lane; `departures` has when each message left.

    taken: the time until which the link is taken, of which all segments share one list.
    """

    step: TaskStep
    taken: list[int]
    departures: list[int] = field(default_factory=list)

    def send(self, made_ps: int) -> int:
        """Return the arrival of a message made at `made_ps`, once those before it have left."""
        leaves = max(made_ps, self.taken[0])
        self.departures.append(leaves)
        arrives = self.taken[0] = leaves + self.step.alone_ps
        return arrives


class StageLane:
    """One lane: its process steps through its runs.

    message_links: of the messages of each segment to each other lane.
    starts: of each run.
    waits: starts of the core's waits, by the part that is to run, what it waits for (a part of
        another lane, or a message) and the length.
    """

    def __init__(
        self,
        env: Environment,
        board: MessageBoard,
        name: str,
        runs: Sequence[tuple[Call, LanePart]],
        steps: Mapping[tuple[str, int, float], TaskStep],
    ) -> None:
        links: dict[int, list[int]] = {to: [0] for _, to, _ in steps}
        self._env = env
        self._board = board
        self.message_links = {key: MessageLink(step, links[key[1]]) for key, step in steps.items()}
        self.name = name
        self.runs = runs
        self.starts: list[int] = []
        self.waits: dict[tuple[LanePart, LanePart | TaskStep, int], list[int]] = {}
        self.awaited = ""
        self.end_ps = 0
        self.finished = False

    def status(self) -> str:
        """Return the position of the lane, for the message when it has stalled."""
        call, _ = self.runs[len(self.starts)]
        return f"lane {self.name!r} waits before {call.name} for {self.awaited!r}"

    def run(self) -> Generator[Event, Any, None]:
        """Run after run: each when its messages have arrived, for as long as its part takes."""
        env, sent, waiting = self._env, self._board.sent, self._board.waiting
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
                link = self.message_links[call.segment, send.to, float(send.bytes)]
                sent[message] = (link.send(free), free, part, link.step)
                if message in waiting:
                    waiting.pop(message).succeed()
        self.end_ps = free
        self.finished = True

    def _note_wait(self, part: LanePart, late: SentMessage, free: int, made: int) -> None:
        """Note the waits until the awaited messages are made, and until the last arrives."""
        arrives, _, maker, step = late
        if free < made:
            self.waits.setdefault((part, maker, made - free), []).append(free)
        if made < arrives:
            self.waits.setdefault((part, step, arrives - made), []).append(made)

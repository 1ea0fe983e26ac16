"""The lane of a pipeline's stage: a core that runs parts, and messages between lanes.

A call starts when the core is free and all messages that it awaits have arrived, and takes as long
as its part does alone. Its messages leave when it is done, beside the core; those of one lane to
another leave one after another. So lanes interact through messages alone. That is exact as long as
messages share no link with the tasks of the parts, as when the pipeline's axis has a torus
dimension of its own. Their use of HBM is neglected, and so is the contention of messages and parts
on the same links: of DCN, if both cross it, and of a torus dimension that two axes divide.

As nothing else joins lanes, each has a time of its own, and messages carry their times (Chandy and
Misra, "Distributed simulation", IEEE Transactions on Software Engineering, 1979): the times are the
same in every order of the runs in which each message is sent before it is awaited.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.engine.instructions import TaskStep
from tpusim.engine.lane_part import LanePart
from tpusim.engine.stage_code import PipelineCode, StageCode

SentMessage: TypeAlias = tuple[int, int, LanePart, TaskStep]
"""A message: its arrival, the end of the part that makes it, that part, and its step."""


@dataclass(slots=True, eq=False)
class StageLane:
    """One lane, and what it did.

    starts: of each run.
    waits: starts of the core's waits, by the part that is to run, what it waits for (a part of
        another lane, or a message) and the length.
    departures: of each message of the lane's.
    links_free: the time from which the link to each other lane is free.
    """

    code: StageCode
    starts: list[int] = field(default_factory=list)
    waits: dict[tuple[LanePart, LanePart | TaskStep, int], list[int]] = field(default_factory=dict)
    departures: list[list[int]] = field(init=False)
    links_free: dict[int, int] = field(init=False)
    end_ps: int = 0

    def __post_init__(self) -> None:
        self.departures = [[] for _ in self.code.messages]
        self.links_free = {to: 0 for to, _ in self.code.messages}

    def note_wait(self, part: LanePart, late: SentMessage, free: int, made: int) -> None:
        """Note the waits until the awaited messages are made, and until the last arrives."""
        arrives, _, maker, step = late
        if free < made:
            self.waits.setdefault((part, maker, made - free), []).append(free)
        if made < arrives:
            self.waits.setdefault((part, step, arrives - made), []).append(made)


def run_stages(code: PipelineCode, parts: Sequence[LanePart]) -> list[StageLane]:
    """Return the lanes after all their runs: each starts when its messages have arrived.

    Its own messages leave when it is done and those before them have left.

    parts: those of the code, each of which takes as long as it does alone.
    """
    lanes = [StageLane(stage) for stage in code.stages]
    durations, ends = [part.duration_ps for part in parts], [0] * len(lanes)
    sent: dict[str, SentMessage] = {}
    for number, (_, part, awaits, sends) in code.order:
        lane, free = lanes[number], ends[number]
        start = free
        if awaits:
            start = made = free
            late = None
            for message in awaits:
                found = sent[message]
                if found[0] > start:
                    start, late = found[0], found
                if found[1] > made:
                    made = found[1]
            if late is not None:
                lane.note_wait(parts[part], late, free, min(made, start))
        lane.starts.append(start)
        end = ends[number] = start + durations[part]
        for message, at in sends:
            to, step = lane.code.messages[at]
            leaves = max(end, lane.links_free[to])
            lane.departures[at].append(leaves)
            arrives = lane.links_free[to] = leaves + step.alone_ps
            sent[message] = (arrives, end, parts[part], step)
    for lane, end in zip(lanes, ends, strict=True):
        lane.end_ps = end
    return lanes

"""Run lanes that call segments: each part of them once, then the lanes call by call."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from simpy import Environment

from tpusim.costs.tasks import CostedProgram, Task
from tpusim.engine.assemble import timeline_of
from tpusim.engine.code import Step
from tpusim.engine.compile import compile_lane
from tpusim.engine.part import Alone, Parts
from tpusim.engine.progress import drive
from tpusim.engine.stage import Post, Stage
from tpusim.engine.timeline import Stats, Timeline
from tpusim.program import Call


def has_calls(program: CostedProgram) -> bool:
    """Whether a lane calls segments."""
    return any(isinstance(op, Call) for op in program.body)


def run_calls(lanes: Sequence[CostedProgram], alone: Alone) -> Timeline:
    """The timeline of lanes that call segments; `alone` runs the tasks of one part to their end.

    Raises ValueError for calls of segments and messages to lanes that are not there, and for a
    message that is sent twice; StalledError for calls that wait for each other in a circle.
    """
    began = perf_counter()
    parts, post, env = Parts(alone), Post(), Environment(0)
    ways = _Ways(len(lanes))
    stages = [Stage(env, post, lane.name, parts.of(lane), ways.of(lane)) for lane in lanes]
    events = drive(env, stages)
    stats = Stats(
        events=events + sum(part.lane.events for part in parts.all),
        trips_simulated=sum(part.lane.trips for part in parts.all),
        trips=sum(part.lane.code.trips for part in parts.all),
        folds=tuple(made for part in parts.all for made in part.lane.folder.folds),
        seconds=perf_counter() - began,
    )
    return timeline_of(lanes, stages, stats)


class _Ways:
    """The ways of messages in integer units; what is one object to several lanes is one step."""

    __slots__ = ("_lanes", "_steps")

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._steps: dict[tuple[int, int], Step] = {}

    def of(self, lane: CostedProgram) -> dict[tuple[str, int, float], Step]:
        """The step of what each segment of a lane sends to each other lane."""
        for way in lane.ways:
            if not 0 <= way.to < self._lanes:
                raise ValueError(f"lane {lane.name!r} sends to lane {way.to} of {self._lanes}")
        return {(way.segment, way.to, way.bytes): self._step(way.task, lane) for way in lane.ways}

    def _step(self, task: Task, lane: CostedProgram) -> Step:
        key = id(task), id(lane.links)
        found = self._steps.get(key)
        if found is None:
            alone = replace(lane, body=(task,), segments=(), host=(), resident=(), ways=())
            found = self._steps[key] = compile_lane(alone).steps[0]
        return found

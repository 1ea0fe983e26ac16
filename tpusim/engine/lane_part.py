"""A part of a lane that runs alone: the same each time, so it is simulated once.

It is a segment, or the operations between calls (see `stage_code`). When it begins nothing is in
flight, and it is over when its transfers have drained, so each run of it is like the first.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.engine.instructions import ON_CORE, LaneCode
from tpusim.engine.journal import Level, TimedStep, flatten, repeat_count
from tpusim.engine.lane import Lane
from tpusim.engine.memory import MemoryProfile, memory_profile
from tpusim.engine.stage_code import PartCode
from tpusim.engine.timeline import CoreTime

RunAlone: TypeAlias = Callable[[LaneCode], Lane]
"""Runs the tasks of a part to their end."""

RepeatedStep: TypeAlias = tuple[TimedStep, tuple[Level, ...]]
RepeatedSteps: TypeAlias = tuple[RepeatedStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LanePart:
    """One run of a part, from time 0.

    tasks, waits: with their levels of repetition.
    core: the sum of the core's tasks.
    link_volumes: the lane's links that are used, by index, with nanobytes.
    """

    name: str
    phase: Phase
    duration_ps: int
    tasks: RepeatedSteps
    waits: RepeatedSteps
    core: CoreTime
    link_volumes: tuple[tuple[int, int], ...]
    profile: MemoryProfile
    lane: Lane


def lane_part(part: PartCode, run_alone: RunAlone) -> LanePart:
    """Return the run of a part."""
    lane = run_alone(part.code)
    code, journal = lane.code, lane.journal
    tasks = tuple(flatten(journal.tasks))
    return LanePart(
        name=code.name,
        phase=part.phase,
        duration_ps=lane.end_ps,
        tasks=tasks,
        core=core_time_of(tasks),
        waits=tuple(entry for entry in flatten(journal.waits) if entry[0][1] < entry[0][2]),
        link_volumes=tuple(
            (link, volume)
            for link, volume in enumerate(link_volumes(tasks, code.first_link, len(code.links)))
            if volume
        ),
        profile=memory_profile(code, journal.changes),
        lane=lane,
    )


def core_time_of(tasks: Iterable[RepeatedStep]) -> CoreTime:
    """Return the picoseconds of the core's tasks by label and phase."""
    found: Counter[tuple[str, Phase]] = Counter()
    for (step, start, end), levels in tasks:
        if step.stream == ON_CORE:
            found[step.task.label, step.task.phase] += (end - start) * repeat_count(levels)
    return found


def link_volumes(tasks: RepeatedSteps, first_link: int, links: int) -> tuple[int, ...]:
    """Return the nanobytes of tasks on each link."""
    found = [0] * links
    for (step, _, _), levels in tasks:
        moved = step.volume * repeat_count(levels)
        for link, weight in step.uses:
            found[link - first_link] += weight * moved
    return tuple(found)

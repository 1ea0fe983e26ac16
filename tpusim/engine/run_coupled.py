"""Run lanes that meet in their collectives: one for each device, or one for each class of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from simpy import Environment

from tpusim.base.errors import PlanError
from tpusim.costs import CostedProgram
from tpusim.engine.compile_lane import compile_lane
from tpusim.engine.coupled_lane import CoupledLane
from tpusim.engine.flows import FlowNetwork
from tpusim.engine.instructions import LaneCode, LoopEnd, TaskStep
from tpusim.engine.lane import lane_stats, run_processes
from tpusim.engine.lane_clock import LaneClock
from tpusim.engine.lane_timeline import lanes_timeline
from tpusim.engine.meeting import Meeting
from tpusim.engine.timeline import Timeline

GroupKey = tuple[tuple[str, ...], int]
"""The axes along which a group meets, and its number."""

Groups = Mapping[GroupKey, tuple[int, ...]]
"""The lanes of each group of several."""

MOST_UNFOLDED_TASKS = 5_000_000
"""Tasks that are run one by one on all devices without folding, at most: some minutes."""


def run_coupled(programs: Sequence[CostedProgram], fold: bool) -> Timeline:
    """Return the timeline of lanes of one program, each with its groups.

    fold: fold loops in time. Lanes are what they are: whether each is a device or a class of them
        was decided when they were costed (`cost_classes`).

    Raise PlanError for lanes that would take too long without folding, and ValueError for lanes of
    different programs and a program that contradicts itself.
    """
    began, env = perf_counter(), Environment(0)
    codes = _codes(programs)
    if not fold:
        _check_length(codes)
    groups = _groups(programs)
    met: dict[tuple[int, GroupKey], Meeting] = {}
    lanes = []
    for number, (program, code) in enumerate(zip(programs, codes, strict=True)):
        clock = LaneClock(env)
        network = FlowNetwork(clock, [rate for _, rate in code.links])
        own = {
            step.index: met.setdefault((step.index, key), Meeting(env, groups[key]))
            for step, key in _group_steps(code, program)
            if key in groups
        }
        lanes.append(CoupledLane(clock, network, code, fold, number, own))
    for lane, peers in zip(lanes, _peers(lanes, codes, programs, groups), strict=True):
        lane.join(lanes, peers)
    events = run_processes(env, lanes)
    stats = lane_stats(lanes, events, began)
    return lanes_timeline(lanes, stats, tuple(program.devices for program in programs))


def _codes(programs: Sequence[CostedProgram]) -> list[LaneCode]:
    """Return the code of each lane; that of lanes alike is compiled once."""
    known: dict[tuple[int, int], LaneCode] = {}
    for program in programs:
        key = id(program.body), id(program.links)
        if key not in known:
            known[key] = compile_lane(program)
    codes = [known[id(each.body), id(each.links)] for each in programs]
    shapes = {tuple(step.task.name for step in code.steps) for code in known.values()}
    if len(shapes) > 1:
        raise ValueError("lanes that meet run one program, and these run several")
    return [replace(code, name=each.name) for code, each in zip(codes, programs, strict=True)]


def _check_length(codes: Sequence[LaneCode]) -> None:
    """Raise PlanError for lanes that would take too long, task by task."""
    code = codes[0]
    runs = len(codes) * sum(times for _, times in code.runs())
    if runs > MOST_UNFOLDED_TASKS:
        raise PlanError(
            f"{len(codes):,} devices that differ run {runs:,} tasks when each iteration of their "
            f"loops is run on each, and at most {MOST_UNFOLDED_TASKS:,} can be; leave out "
            "--no-fold (fold=False), whose result is the same"
        )


def _groups(programs: Sequence[CostedProgram]) -> Groups:
    """Return the groups of several lanes, by axes and number."""
    found: dict[GroupKey, list[int]] = {}
    for number, program in enumerate(programs):
        for key in program.groups or ():
            found.setdefault(key, []).append(number)
    return {key: tuple(lanes) for key, lanes in found.items() if len(lanes) > 1}


def _group_steps(code: LaneCode, program: CostedProgram) -> Iterator[tuple[TaskStep, GroupKey]]:
    """Yield the steps in which a lane meets others, with the group."""
    numbers = dict(program.groups or ())
    for step in code.steps:
        if step.task.meets in numbers:
            yield step, (step.task.meets, numbers[step.task.meets])


def _peers(
    lanes: Sequence[CoupledLane],
    codes: Sequence[LaneCode],
    programs: Sequence[CostedProgram],
    groups: Groups,
) -> list[list[tuple[CoupledLane, ...]]]:
    """Return for each lane and each loop the lanes that meet it there, directly or not."""
    found: list[list[tuple[CoupledLane, ...]]] = [[] for _ in lanes]
    for axes in _axes_in_loops(codes[0]):
        keys = [key for key in groups if key[0] in axes]
        for together in _connected(len(lanes), [groups[key] for key in keys]):
            members = tuple(lanes[number] for number in together)
            for number in together:
                found[number].append(members)
    return found


def _axes_in_loops(code: LaneCode) -> list[set[tuple[str, ...]]]:
    """Return the axes along which lanes meet in each loop and the loops within it, by its index."""
    found: list[set[tuple[str, ...]]] = [set() for _ in range(code.loops)]
    for at, instruction in enumerate(code.instructions):
        if isinstance(instruction, LoopEnd):
            body = code.instructions[instruction.body : at]
            steps = (step for step in body if isinstance(step, TaskStep))
            found[instruction.loop] = {step.task.meets for step in steps if step.task.meets}
    return found


def _connected(count: int, groups: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return the sets of lanes that groups connect, each in order."""
    parent = list(range(count))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for first, *others in groups:
        for other in others:
            low, high = sorted((root(first), root(other)))
            parent[high] = low
    sets: dict[int, list[int]] = {}
    for number in range(count):
        sets.setdefault(root(number), []).append(number)
    return list(sets.values())

"""Lanes that meet in collectives: folding in time changes nothing, and nobody begins early."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from extent import seeds, thorough
from random_programs import LINKS, STREAMS, Generator

from tpusim.costs import CORE, STRAGGLERS, CostedProgram, Task, TaskLoop, TaskOp
from tpusim.engine import Record, Timeline, run

SEEDS = 200
LANES = pytest.mark.parametrize("count", [20, thorough(SEEDS)])
"""Random lanes that a law is tried on at once."""
AXES = (("a",), ("b",), ("a", "b"))


def meeting(body: Sequence[TaskOp], pick: Random) -> tuple[TaskOp, ...]:
    """A body some of whose tasks are collectives, each with the axes of its stream."""
    made: list[TaskOp] = []
    for op in body:
        if isinstance(op, TaskLoop):
            made.append(replace(op, body=meeting(op.body, pick)))
        elif pick.random() < 0.4:
            at = STREAMS.index(op.stream) if op.stream in STREAMS else pick.randrange(len(AXES))
            made.append(replace(op, meets=AXES[at]))
        else:
            made.append(op)
    return tuple(made)


def slower(body: Sequence[TaskOp], factor: float) -> tuple[TaskOp, ...]:
    """A body whose work that meets nobody takes longer."""
    return tuple(
        replace(op, body=slower(op.body, factor))
        if isinstance(op, TaskLoop)
        else op
        if op.meets
        else replace(op, work_s=op.work_s * factor, delay_s=op.delay_s * factor)
        for op in body
    )


def coupled(seed: int) -> list[CostedProgram]:
    """Devices of a mesh of 2 x 2 or 2 x 3, some of them slower."""
    pick = Random(seed)
    program = Generator(seed).program()
    body = meeting(program.body, pick)
    wide = pick.choice((2, 3))
    lanes = []
    for a in range(2):
        for b in range(wide):
            factor = pick.choice((1, 1, 1, 2, 1.5))
            groups = ((AXES[0], b), (AXES[1], a), (AXES[2], 0))
            own = slower(body, factor) if factor != 1 else body
            lanes.append(replace(program, name=f"{a},{b}", body=own, groups=groups))
    return lanes


@cache
def both(seed: int) -> tuple[Timeline, Timeline]:
    lanes = coupled(seed)
    return run(lanes), run(lanes, fold=False)


def expanded(records: Sequence[Record]) -> Counter[tuple[int, str, str, str, int, int]]:
    """Every single run of every task: lane, name, label, stream, start and duration."""
    return Counter(
        (record.lane, record.name, record.label, record.stream, start, record.duration_ps)
        for record in records
        for start in record.starts()
    )


@pytest.mark.parametrize("seed", seeds(SEEDS, default=8))
def test_folded_is_unfolded(seed: int) -> None:
    folded, unfolded = both(seed)
    assert folded.total_ps == unfolded.total_ps
    assert folded.lanes == unfolded.lanes
    assert expanded(folded.tasks) == expanded(unfolded.tasks)
    assert expanded(folded.waits) == expanded(unfolded.waits)
    assert folded.links == unfolded.links
    assert [each[:3] for each in folded.memory] == [each[:3] for each in unfolded.memory]


@LANES
def test_lanes_fold_together_and_alone(count: int) -> None:
    made = sum(both(seed)[0].stats.trips_simulated for seed in range(count))
    asked = sum(both(seed)[0].stats.trips for seed in range(count))
    assert made < asked * 2 / 3


@LANES
def test_cores_are_always_accounted_for(count: int) -> None:
    for seed in range(count):
        timeline = both(seed)[1]
        for lane in range(len(timeline.lanes)):
            core = [each for each in timeline.tasks if each.stream == CORE and each.lane == lane]
            waits = [each for each in timeline.waits if each.lane == lane]
            spans = sorted((each.start_ps, each.end_ps) for each in (*core, *waits))
            ends = [0, *(end for _, end in spans)]
            assert [start for start, _ in spans] == ends[:-1]
            assert ends[-1] == timeline.total_ps


@LANES
def test_groups_begin_and_end_together(count: int) -> None:
    for seed in range(count):
        lanes, timeline = coupled(seed), both(seed)[1]
        meets = {task.name: task.meets for task in flat(lanes[0].body) if task.meets}
        times: dict[tuple[str, tuple[str, ...], int], dict[int, list[tuple[int, int]]]] = {}
        for each in timeline.tasks:
            if each.name in meets:
                key = (
                    each.name,
                    meets[each.name],
                    dict(lanes[each.lane].groups or ())[meets[each.name]],
                )
                times.setdefault(key, {}).setdefault(each.lane, []).append(
                    (each.start_ps, each.end_ps)
                )
        for group in times.values():
            first, *others = group.values()
            assert all(other == first for other in others)


def flat(body: Sequence[TaskOp]) -> list[Task]:
    return [task for op in body for task in (flat(op.body) if isinstance(op, TaskLoop) else [op])]


@LANES
def test_the_random_lanes_wait_for_each_other(count: int) -> None:
    labels = Counter(wait.label for seed in range(count) for wait in both(seed)[1].waits)
    assert labels[STRAGGLERS] > 5 * count
    assert len(LINKS) < len(labels)

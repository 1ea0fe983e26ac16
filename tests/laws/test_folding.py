"""Folding in time changes nothing: a folded run is the unfolded one, to the picosecond."""

from collections import Counter
from functools import cache

import pytest
from extent import sample
from random_programs import Generator

from tpusim.costs import CORE
from tpusim.engine import Record, Timeline, run
from tpusim.program import Phase

SEEDS = range(200)
"""Seeds whose folds are counted; by default one in eight is tried on its own."""


@cache
def both(seed: int) -> tuple[Timeline, Timeline]:
    program = Generator(seed).program()
    return run([program]), run([program], fold=False)


def expanded(records: tuple[Record, ...]) -> Counter[tuple[str, str, int, int]]:
    """Every single run of every task: name, label, start and duration."""
    return Counter(
        (record.name, record.label, start, record.duration_ps)
        for record in records
        for start in record.starts()
    )


def levels(timeline: Timeline) -> list[tuple[int, int]]:
    """Every change of memory, with its time, in order of time."""
    return sorted(
        (start, change.bytes)
        for change in timeline.memory[0].changes
        for start in Record(
            0, "", "", Phase.FORWARD, "", change.time_ps, change.time_ps, change.repeats
        ).starts()
    )


@pytest.mark.parametrize("seed", sample(SEEDS, 8))
def test_folded_is_unfolded(seed: int) -> None:
    folded, unfolded = both(seed)
    assert folded.total_ps == unfolded.total_ps
    assert folded.links == unfolded.links
    assert expanded(folded.tasks) == expanded(unfolded.tasks)
    assert expanded(folded.waits) == expanded(unfolded.waits)
    assert folded.memory[0][:3] == unfolded.memory[0][:3]
    assert levels(folded) == levels(unfolded)


@pytest.mark.thorough
def test_periods_of_several_trips_occur() -> None:
    folds = [fold for seed in SEEDS for fold in both(seed)[0].stats.folds]
    assert max(fold.trips for fold in folds) > 1
    assert sum(fold.trips > 1 for fold in folds) > 5


@pytest.mark.thorough
def test_most_trips_are_folded() -> None:
    made = sum(both(seed)[0].stats.trips_simulated for seed in SEEDS)
    asked = sum(both(seed)[0].stats.trips for seed in SEEDS)
    assert made < asked / 3


def test_the_core_is_always_accounted_for() -> None:
    for seed in SEEDS:
        timeline = both(seed)[1]
        core = [record for record in timeline.tasks if record.stream == CORE]
        spans = sorted((each.start_ps, each.end_ps) for each in (*core, *timeline.waits))
        ends = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == ends[:-1]
        assert ends[-1] == timeline.total_ps

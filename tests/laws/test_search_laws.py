"""A search is an exhaustive sweep: for all objectives, fronts of two, limits and several best."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

import pytest
from extent import sample, thorough

from tpusim.base import TpusimError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Result
from tpusim.searches import OBJECTIVES, PlanSpace, search
from tpusim.searches.objectives import Goal
from tpusim.simulation import simulate
from tpusim.training import Checkpoints, TrainingRun

MODEL = Transformer(layers=4, embed=512, mlp=2048, heads=4, vocab=1000)
BASE = Plan(mesh={"data": 1}, seq_len=128, global_batch=64)
SLICES = {
    "v5e": [Slice("v5e", "4x4")],
    "v4": [Slice("v4", "2x2x4")],
    "v5p": [Slice("v5p", "2x2x2")],
    "two": [Slice("v5e", "2x4"), Slice("v6e", "2x2")],
}
VARIED: list[dict[str, list[object]]] = [
    {"microbatches": [1, 4]},
    {"remat": ["full", "minimal", "none"]},
    {"dtype": ["bf16", "f32"], "style": ["plain", "maxtext"]},
    {"global_batch": [32, 64], "optimizer": ["adam", "sgd"]},
    {"stage_layers": [[1, 3], [2, 2], [3, 1]], "schedule": ["1f1b", "gpipe"], "microbatches": [4]},
]
SPACES = [(slices, number) for number in range(len(VARIED)) for slices in SLICES]
"""Twenty spaces: slices, and the number of what varies."""

DEFAULT_SPACES = SPACES[::14]
ASKED = [
    (*space, name) if (at + SPACES.index(space)) % 6 == 0 and space in DEFAULT_SPACES
    else thorough(*space, name)
    for space in SPACES
    for at, name in enumerate(OBJECTIVES)
]  # fmt: skip
"""Each space with each objective; by default two spaces, with each sixth objective."""

RUN = TrainingRun(tokens=3e8, compile_s=20.0, checkpoints=Checkpoints(every=500, mode="blocking"))
PAIRS = list(combinations(OBJECTIVES, 2))


def small_space(slices: str, number: int) -> PlanSpace:
    staged = "stage_layers" in VARIED[number]
    return PlanSpace(
        base=BASE, slices=SLICES[slices], vary=VARIED[number],
        axes=("fsdp", "tensor", "stage") if staged else ("data", "fsdp", "tensor"),
    )  # fmt: skip


@lru_cache(maxsize=2)
def every_value(slices: str, number: int) -> tuple[dict[str, float], ...]:
    """The objectives of all plans of a space that fit."""
    goal = Goal(tuple(OBJECTIVES), {}, RUN)
    return tuple(
        {name: goal.value(name, result) for name in OBJECTIVES}
        for result in every_result(small_space(slices, number))
        if result.fits
    )


def every_result(space: PlanSpace) -> Iterator[Result]:
    for block in space.blocks:
        for at in range(len(block)):
            try:
                yield simulate(MODEL, block.plan(at), block.pods[block.pod[at]])
            except TpusimError:
                continue


def near(found: list[float]) -> object:
    return pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize(("slices", "number", "objective"), ASKED)
def test_the_best_plans_are_those_of_all(slices: str, number: int, objective: str) -> None:
    values = sorted(each[objective] for each in every_value(slices, number))
    found = search(MODEL, small_space(slices, number), objective, run=RUN, top=3, workers=1)
    assert found.proved
    assert [each.values[0] for each in found.best] == near(values[:3])


@pytest.mark.parametrize("pair", [PAIRS[0], *map(thorough, PAIRS[1:])])
@pytest.mark.parametrize(("slices", "number"), sample(SPACES, 14))
def test_a_front_is_that_of_all(slices: str, number: int, pair: tuple[str, str]) -> None:
    values = {tuple(each[name] for name in pair) for each in every_value(slices, number)}
    front = sorted(
        one for one in values
        if not any(o[0] <= one[0] and o[1] <= one[1] and o != one for o in values)
    )  # fmt: skip
    found = search(MODEL, small_space(slices, number), pair, run=RUN, workers=1)
    assert found.proved
    for at in range(2):
        assert [each.values[at] for each in found.best] == near([each[at] for each in front])


@pytest.mark.parametrize(("slices", "number", "limited"), ASKED)
def test_limits_leave_the_best_of_what_is_within(slices: str, number: int, limited: str) -> None:
    """The limit lies between two plans, so that a last digit decides nothing."""
    every = every_value(slices, number)
    ordered = sorted({each[limited] for each in every})
    limit = sum(ordered[len(ordered) // 2 - 1 : len(ordered) // 2 + 1]) / 2
    for objective in ("step_time", "chip_time"):
        within = sorted(each[objective] for each in every if each[limited] <= limit)
        found = search(
            MODEL, small_space(slices, number), objective, run=RUN, top=2, workers=1,
            at_most={limited: limit},
        )  # fmt: skip
        assert [each.values[0] for each in found.best] == near(within[:2])

"""Availability: closed forms, draws against enumerated pods, and one sentence for each mistake."""

from itertools import product
from math import comb, prod

import numpy as np
import pytest

import tpusim as ts
from tpusim.base.errors import HardwareError
from tpusim.failures import CAUSES, PodQuestion
from tpusim.failures.pod_question import at_least, mean_groups
from tpusim.failures.static_places import boxes, draw_hosts, most_slices
from tpusim.hardware import load_chip
from tpusim.report import availability_data, plot_availability


def test_rates_have_their_kinds_and_sources() -> None:
    assert set(CAUSES) >= {"machine", "cable", "switch"}
    for cause in CAUSES.values():
        for source in cause.sources.values():
            assert source.partition(": ")[0] in ("published", "derived", "assumed")
            assert len(source) > 15
    for cause in (CAUSES[name] for name in ("machine", "cable", "switch")):
        assert cause.per_day > 0
        assert cause.availability_with(cause.repair_of(0.97)) == pytest.approx(0.97)


@pytest.mark.parametrize(("needed", "pool", "up"), [(0, 3, 0.5), (2, 3, 0.9), (57, 64, 0.88)])
def test_at_least_so_many_parts_are_up(needed: int, pool: int, up: float) -> None:
    ways = (comb(pool, n) * up**n * (1 - up) ** (pool - n) for n in range(needed, pool + 1))
    assert at_least(needed, pool, up) == pytest.approx(sum(ways))


def test_the_ends_of_the_binomial() -> None:
    assert [at_least(1, 2, up) for up in (0.0, 1.0)] == [0.0, 1.0]
    assert at_least(3, 2, 1.0) == 0.0
    assert mean_groups(1, 64, 0.75) == pytest.approx(48)
    assert mean_groups(2, 3, 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("grid", "box"),
    [((4,), (2,)), ((5,), (2,)), ((2, 4), (2, 2)), ((3, 3), (2, 1)), ((2, 2), (3, 1))],
)
def test_draws_agree_with_all_states_of_a_small_pod(
    grid: tuple[int, ...], box: tuple[int, ...]
) -> None:
    """Every state of the hosts, weighed by its probability."""
    states = np.array([*product([False, True], repeat=prod(grid))]).reshape(-1, *grid)
    count = states.reshape(len(states), -1).sum(axis=1)
    weights = 0.8**count * 0.2 ** (prod(grid) - count)
    exact = float(weights @ (most_slices(states, box) >= 1))
    drawn = most_slices(draw_hosts(grid, 40_000) < 0.8, box) >= 1
    assert float(drawn.mean()) == pytest.approx(exact, abs=0.01)


def test_pairs_in_a_ring_of_four_hosts() -> None:
    """A pair is up unless no two neighbours are: p^2 (4 - 4p + p^2)."""
    up, drawn = 0.7, draw_hosts((4,), 40_000)
    closed = up**2 * (4 - 4 * up + up**2)
    assert float((most_slices(drawn < up, (2,)) >= 1).mean()) == pytest.approx(closed, abs=0.01)


def test_a_box_may_pass_the_end_of_the_torus() -> None:
    up = np.array([[True, False, False, True]])
    assert most_slices(up, (2,)).tolist() == [1]
    assert most_slices(np.ones((1, 4, 4), bool), (2, 2)).tolist() == [4]


def test_hosts_of_a_slice_in_each_orientation() -> None:
    assert set(boxes(load_chip("v4"), (4, 4, 8))) == {(2, 2, 8), (2, 4, 4), (4, 2, 4)}
    assert set(boxes(load_chip("v6e"), (4, 8))) == {(2, 2), (4, 1)}


def test_a_slice_of_the_whole_pod_needs_all_hosts() -> None:
    whole = ts.availability("v3", "32x32", host_availability=0.999).chances
    assert whole.contiguous == whole.given == whole.goodput


def test_one_cube_of_one_is_its_own_availability() -> None:
    found = ts.availability("v4", "4x4x4", spares=0, host_availability=0.995)
    assert found.chances.cube == pytest.approx(0.995**16 * (1 / (1 + 0.005 / 0.995 / 16)) ** 80)
    assert found.probability == pytest.approx(found.chances.cube)
    assert found.chances.unrouted == pytest.approx(found.probability / (1 + 0.0016) ** 48)


def test_slices_of_part_of_a_cube() -> None:
    found = ts.availability("v4", "2x2x4", cubes=1, slices=4)
    assert found.question.cubes == 1
    assert found.probability == pytest.approx(found.chances.cube**4)
    assert found.chances.unrouted == found.probability  # no switch is crossed


@pytest.mark.thorough
def test_more_spares_more_reliable_hosts_and_fewer_slices_never_hurt() -> None:
    by_spares = [ts.availability("7x", "8x8x8", spares=k).probability for k in range(6)]
    by_host = [
        ts.availability("v4", "8x16x16", host_availability=a, static=True).probability
        for a in (0.9, 0.99, 0.999, 1.0)
    ]
    by_slices = [ts.availability("v6e", "4x8", slices=n).probability for n in (8, 4, 1)]
    for each in (by_spares, by_host, by_slices):
        assert each == sorted(each)
    assert by_host[-1] == 1.0


def test_spares_are_the_fewest_that_reach_their_targets() -> None:
    found = ts.availability("v4", "8x8x8")
    for target, count in found.spares.items():
        assert count is not None
        reached = [
            ts.availability("v4", "8x8x8", spares=k).probability >= target
            for k in (count - 1, count)
        ]
        assert reached == [False, True]


@pytest.mark.thorough
def test_the_same_question_has_the_same_answer() -> None:
    assert str(ts.availability("v6e", "4x8")) == str(ts.availability("v6e", "4x8"))


@pytest.mark.thorough
@pytest.mark.parametrize("shape", ["8x8x8", "2x2x1"])
def test_the_figure_has_a_curve_for_each_policy_and_host(shape: str) -> None:
    data = availability_data(ts.availability("v4", shape))
    assert {curve.policy for curve in data.by_size} == {
        "switched",
        "without routing",
        "fixed links",
    }
    assert len({curve.host for curve in data.by_size}) == 4
    assert plot_availability(data).get_ylabel() == "placed"


def test_a_question_keeps_its_chip() -> None:
    asked = PodQuestion(load_chip("v4"), (4, 4, 4), pool=64)
    assert (asked.of_cubes(3).cubes, asked.with_pool(9).pool) == (3, 9)


@pytest.mark.parametrize(
    ("chip", "shape", "given", "said"),
    [
        ("v4", "8x8x8", {"host_availability": 99.9}, "host_availability is 99.9; write the frac"),
        ("v4", "8x8x8", {"host_availability": 0}, "more than 0 and at most 1"),
        ("v4", "8x8x8", {"slices": 0}, "slices is 0; write a whole number from 1 to"),
        ("v4", "8x8x8", {"spares": -1}, "spares is -1; write a whole number from 0 to"),
        ("v4", "8x8x8", {"cubes": 9, "spares": 1}, "write one of them"),
        ("v4", "8x8x8", {"cubes": 7}, "cannot stand in a pod of 7 cubes; write cubes = 8 or more"),
        ("v4", "8x8x8", {"cubes": 9, "static": True}, "of v4 are taken as fixed; leave them out"),
        ("v6e", "4x8", {"spares": 1}, "those of v6e are fixed; leave them out"),
        ("v6e", "4x8", {"slices": 9}, "9 slices of 4x8 cannot stand in a pod of 256 chips"),
        ("v4", "8x8x9", {}, "v4 has no slice 8x8x9"),
    ],
)
def test_a_mistake_is_one_sentence(
    chip: str, shape: str, given: dict[str, object], said: str
) -> None:
    with pytest.raises(HardwareError, match=said):
        ts.availability(chip, shape, **given)  # type: ignore[arg-type]

"""What slices lose by waiting for the slowest of them."""

from itertools import pairwise
from math import pi, sqrt

import pytest

from tpusim.costs.program_costs import expected_maximum, skew_seconds
from tpusim.hardware import load_chip


@pytest.mark.parametrize(
    ("count", "closed_form"),
    [(1, 0), (2, 1 / sqrt(pi)), (3, 3 / (2 * sqrt(pi)))],
)
def test_the_expected_maximum_is_the_closed_form(count: int, closed_form: float) -> None:
    assert expected_maximum(count) == pytest.approx(closed_form, rel=2e-3)


@pytest.mark.parametrize(("count", "tabled"), [(5, 1.16296), (10, 1.53875), (20, 1.86748)])
def test_the_expected_maximum_is_the_tabled_one(count: int, tabled: float) -> None:
    """Normal order statistics, as tabled by Harter (Biometrika 48, 1961)."""
    assert expected_maximum(count) == pytest.approx(tabled, rel=2e-3)


def test_more_slices_wait_longer_and_each_doubling_adds_less() -> None:
    found = [expected_maximum(2**power) for power in range(8)]
    gains = [after - before for before, after in pairwise(found)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 0


def test_a_step_waits_for_a_share_of_its_work() -> None:
    chip = load_chip("v5e").replace(slice_jitter=0.05)
    assert skew_seconds(2.0, 1, chip) == 0
    assert skew_seconds(2.0, 2, chip) == pytest.approx(2 * 0.05 / sqrt(pi), rel=2e-3)

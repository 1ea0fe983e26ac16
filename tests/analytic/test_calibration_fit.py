"""The fitting code of the calibration on synthetic residuals, whose best constants are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from calibration import module

fitting = module("fitting")
FINE = np.linspace(0.5, 1.0, 51)


def steps(
    constants: Sequence[float], families: Sequence[str] = (), scale: float = 0.05, work: float = 0.6
) -> Any:
    """Runs that take `work / c + 1 - work` seconds each, measured with a constant of their own."""
    axis = np.linspace(0.5, 1.0, 11)
    errors = [
        np.log((work / axis + 1 - work) / (work / constant + 1 - work)) for constant in constants
    ]
    names = tuple(families) or tuple(map(str, range(len(constants))))
    return fitting.Surface({"c": axis}, np.array(errors), names, scale).refined({"c": FINE})


def fit(surface: Any, **kept: Any) -> float:
    return float(surface.values(surface.best(**kept))["c"])


@pytest.mark.parametrize("constant", [0.6, 0.81, 1.0])
def test_a_known_constant_is_recovered(constant: float) -> None:
    surface = steps([constant] * 3)
    assert fit(surface) == pytest.approx(constant, abs=0.005)
    point = surface.point({"c": fit(surface)})
    assert np.abs(surface.errors_at(point)).max() < 0.005
    low, high = surface.flat("c")
    assert high - low < 0.03


def test_two_constants_are_recovered_from_runs_with_other_shares_of_both() -> None:
    first, second = np.linspace(0.5, 1, 11), np.linspace(0.2, 0.5, 7)
    shares = [(0.8, 0.1), (0.6, 0.3), (0.3, 0.6)]
    true = 0.8, 0.35
    errors = [
        np.log((a / first[:, None] + b / second[None, :] + 0.1) / (a / true[0] + b / true[1] + 0.1))
        for a, b in shares
    ]
    surface = fitting.Surface({"a": first, "b": second}, np.array(errors), ("x", "y", "z"), 0.05)
    fine = surface.refined({"a": np.linspace(0.5, 1, 101), "b": np.linspace(0.2, 0.5, 61)})
    found = fine.values(fine.best())
    assert found == pytest.approx({"a": 0.8, "b": 0.35}, abs=0.011)


def test_the_fit_stays_within_bounds() -> None:
    """Runs that ask for 0.3 get 0.5, the least that is allowed."""
    assert fit(steps([0.3, 0.3])) == 0.5
    assert fit(steps([1.4, 1.4])) == 1.0


def test_the_loss_by_hand() -> None:
    assert fitting.soft_l1(np.array(0.001), 0.05) == pytest.approx(0.001**2 / 0.1, rel=1e-3)
    assert fitting.soft_l1(np.array(-2.0), 0.05) == pytest.approx(2.0 - 0.05, rel=1e-3)
    assert fitting.soft_l1(np.array(0.05), 0.05) == pytest.approx(0.05 * (2**0.5 - 1))


def test_an_outlier_moves_the_fit_no_further_than_any_other_run() -> None:
    among = [0.79, 0.8, 0.8, 0.81]
    assert fit(steps([*among, 0.5], scale=0.005)) == pytest.approx(0.8, abs=0.011)
    squares = fit(steps([*among, 0.5], scale=100.0))
    assert squares < 0.75


def test_a_family_counts_one_however_many_runs_it_has() -> None:
    """Nine runs at 0.6 are one family, two single runs ask for 0.9."""
    constants, families = [0.6] * 9 + [0.9] * 2, ["a"] * 9 + ["b", "c"]
    assert fit(steps(constants, families, scale=0.005)) == pytest.approx(0.9, abs=0.011)
    assert fit(steps(constants, scale=0.005)) == pytest.approx(0.6, abs=0.011)


def test_folds_do_not_see_their_own_row() -> None:
    """What a row asks for does not move the constant with which its own error is made."""
    for own in (0.55, 0.7, 0.95):
        surface = steps([0.8, 0.8, own])
        neutral = surface.point({"c": 1.0})
        error = surface.left_out(("x", "y", "own"), neutral)[2]
        at_others = surface.errors_at(surface.point({"c": 0.8}))[2]
        assert error == pytest.approx(at_others, abs=0.005)


def test_folds_of_families_see_no_row_of_their_family() -> None:
    surface = steps([0.6, 0.6, 0.9], ["a", "a", "b"])
    neutral = surface.point({"c": 1.0})
    alone = surface.left_out(("1", "2", "3"), neutral)
    family = surface.left_out(surface.families, neutral)
    at = {c: surface.errors_at(surface.point({"c": c})) for c in (0.6, 0.9)}
    assert family == pytest.approx([at[0.9][0], at[0.9][1], at[0.6][2]], abs=0.005)
    assert np.abs(alone[0]) < np.abs(family[0])


def test_without_another_group_the_constant_is_neutral() -> None:
    surface = steps([0.6, 0.6], ["a", "a"])
    errors = surface.left_out(surface.families, surface.point({"c": 1.0}))
    assert errors == pytest.approx(surface.errors_at(surface.point({"c": 1.0})))
    assert np.isnan(surface.standard_errors()["c"])
    assert np.isnan(surface.significance(surface.point({"c": 1.0})))


def test_a_value_that_all_families_contradict_is_significantly_worse() -> None:
    surface = steps([0.78, 0.8, 0.8, 0.82])
    assert surface.significance(surface.point({"c": 0.8})) < 1
    assert surface.excess(surface.point({"c": 0.8})) <= fitting.FLAT
    assert surface.significance(surface.point({"c": 1.0})) > 5
    assert surface.excess(surface.point({"c": 1.0})) > 1


def test_families_that_disagree_decide_nothing() -> None:
    surface = steps([0.6, 0.6, 0.6, 0.95, 0.95], scale=0.005)
    assert fit(surface) == pytest.approx(0.6, abs=0.011)
    assert surface.significance(surface.point({"c": 0.9})) < 2


def test_the_jackknife_of_a_mean_by_hand() -> None:
    """With squares, of runs whose errors are linear, the best is the mean: s.e. = s / sqrt(n)."""
    axis, wanted = np.linspace(-1, 1, 2001), np.array([-0.3, 0.1, 0.2, 0.6])
    surface = fitting.Surface({"c": axis}, axis[None, :] - wanted[:, None], tuple("abcd"), 100.0)
    assert surface.values(surface.best())["c"] == pytest.approx(wanted.mean(), abs=1e-3)
    by_hand = wanted.std(ddof=1) / 2
    assert surface.standard_errors()["c"] == pytest.approx(by_hand, rel=0.01)


@pytest.mark.parametrize(
    ("axes", "errors", "families", "sentence"),
    [
        ({"c": np.array([1.0, 0.5])}, np.zeros((1, 2)), ("a",), "must be at least two, and rise"),
        ({"c": np.array([1.0])}, np.zeros((1, 1)), ("a",), "must be at least two, and rise"),
        ({"c": np.array([0.5, 1.0])}, np.zeros((2, 2)), ("a",), "have the shape"),
        ({"c": np.array([0.5, 1.0])}, np.zeros((0, 2)), (), "have the shape"),
        ({"c": np.array([0.5, 1.0])}, np.full((1, 2), np.inf), ("a",), "not finite"),
    ],
)
def test_a_surface_that_is_none_is_refused(
    axes: Any, errors: Any, families: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        fitting.Surface(axes, errors, families, 0.05)


def test_bad_arguments_are_refused_in_one_sentence() -> None:
    surface = steps([0.8, 0.9])
    with pytest.raises(ValueError, match=r"^c was predicted from 0\.5 to 1 only$"):
        surface.refined({"c": np.array([0.4, 1.0])})
    with pytest.raises(ValueError, match=r"^c = 0\.123 is no value of the grid; add it$"):
        surface.point({"c": 0.123})
    with pytest.raises(ValueError, match=r"^no observation is left to fit the constants to$"):
        surface.loss(np.zeros(2, bool))

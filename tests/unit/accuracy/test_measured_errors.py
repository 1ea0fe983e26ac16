"""Ranges from residuals: closed forms and laws on tables whose answer is known."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, exp, hypot, log
from pathlib import Path
from statistics import NormalDist, mean

import pytest

from tpusim.accuracy import (
    BANDWIDTHS,
    Bandwidths,
    MeasuredErrors,
    Residual,
    RunFeatures,
    best_bandwidths,
    interval_score,
    left_out_by,
    measured_errors,
    residuals,
)
from tpusim.accuracy.measured_errors import BANDWIDTH_CHOICES, OTHER_ARCHITECTURES, RELEASES
from tpusim.validation import measured_runs

MEASURED = Path(__file__).parents[2] / "measured"

RUN = RunFeatures(
    chip="v5p", style="maxtext", experts=False, quantised=False, pipelined=False, params=3e10,
    step_s=10.0, mfu=0.6, exposed=0.1, vector=0.05, attention=0.1,
)  # fmt: skip
NO_PRIOR = replace(BANDWIDTHS, prior=1e-12)


def alone(rows: Sequence[Residual], bandwidths: Bandwidths = BANDWIDTHS) -> MeasuredErrors:
    """The errors of runs whose software has one release."""
    return MeasuredErrors(rows, bandwidths, releases=0.0)


def table(values: Sequence[float], run: RunFeatures = RUN, name: str = "f") -> list[Residual]:
    """A family of one run for each residual, all with the same features."""
    return [Residual(f"{name}{n}", f"{name}{n}", run, value) for n, value in enumerate(values)]


def normal(count: int, mean: float, sigma: float) -> list[float]:
    """The quantiles of a normal distribution in the middles of equal shares."""
    return [NormalDist(mean, sigma).inv_cdf((n + 0.5) / count) for n in range(count)]


def logs(errors: MeasuredErrors, run: RunFeatures = RUN, without: str = "") -> tuple[float, float]:
    found = errors.range(run, without)
    return log(found.low), log(found.high)


def test_the_quantiles_of_a_lognormal_distribution_are_found_again() -> None:
    low, high = logs(alone(table(normal(400, 0.05, 0.1)), NO_PRIOR))
    assert low == pytest.approx(0.05 - 1.2816 * 0.1, abs=0.003)
    assert high == pytest.approx(0.05 + 1.2816 * 0.1, abs=0.003)


@pytest.mark.parametrize("releases", [0.0, 0.05])
def test_the_range_of_a_small_table_is_the_one_computed_by_hand(releases: float) -> None:
    """What releases change is independent of the rest: squares add up."""
    values = [-0.2, -0.07, -0.03, 0.01, 0.02, 0.05, 0.11, 0.13, 0.3]

    def local(some: Sequence[float]) -> tuple[float, float]:
        centre = sum(some) / len(some)
        return centre, hypot(sum(abs(value - centre) for value in some) / len(some), releases)

    scores = []
    for at, value in enumerate(values):
        centre, spread = local(values[:at] + values[at + 1 :])
        scores.append(abs(value - centre) / spread)
    constant = sorted(scores)[ceil(0.8 * (9 + 1)) - 1]
    centre, spread = local(values)
    expected = (centre - constant * spread, centre + constant * spread)
    assert logs(MeasuredErrors(table(values), NO_PRIOR, releases)) == pytest.approx(expected)


def test_runs_that_agree_by_luck_do_not_make_a_narrow_range() -> None:
    near = table([0.1, 0.1, 0.1], name="near")
    far = [replace(r, features=replace(RUN, params=3e8)) for r in table(normal(9, 0.0, 0.1))]
    low, high = logs(alone([*near, *far]), without="near0")
    lower, higher = logs(MeasuredErrors([*near, *far]), without="near0")
    assert higher - lower > 1.3 * (high - low)


def test_a_family_counts_one_however_many_runs_it_has() -> None:
    """Of five families the range holds the five: 80 % of six are 4.8."""
    far = table([0.01, -0.02, 0.03, -0.04, 0.5])
    many = [replace(far[0], id=f"again{n}") for n in range(40)]
    few, all_ = alone(far, NO_PRIOR), alone([*far, *many], NO_PRIOR)
    assert logs(all_) == pytest.approx(logs(few))
    assert all(low <= 0.5 <= high for low, high in [logs(all_)])


def test_the_releases_are_those_of_the_published_repeats() -> None:
    """A configuration counts one; between two releases there is twice the variance of one."""
    steps = {one.id: one.step_s for one in measured_runs(MEASURED / "runs")}
    apart: dict[str, list[float]] = {}
    with (MEASURED / "release_repeats.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            ratio = float(row["step_s"]) / steps[row["run"]]
            apart.setdefault(row["run"], []).append(abs(log(ratio)))
    assert (sum(map(len, apart.values())), len(apart)) == (52, 25)
    assert mean(map(mean, apart.values())) / 2**0.5 == pytest.approx(RELEASES, abs=0.0005)


def test_the_prior_counts_as_a_part_of_a_family() -> None:
    errors = MeasuredErrors(table([0.1] * 4))
    low, high = logs(errors)
    assert (low + high) / 2 == pytest.approx(0.4 / (4 + BANDWIDTHS.prior))
    assert errors.range(RUN).support == pytest.approx(4)


def test_a_family_counts_as_much_as_its_nearest_run() -> None:
    rows = table(normal(12, 0.0, 0.1))
    copies = [replace(rows[0], id=f"copy{n}") for n in range(9)]
    assert logs(MeasuredErrors([*rows, *copies])) == pytest.approx(logs(MeasuredErrors(rows)))
    far = replace(rows[0], id="far", features=replace(RUN, params=3e8))
    errors = MeasuredErrors([*rows, far])
    assert errors.range(replace(RUN, params=3e10)).support == pytest.approx(12)


def test_a_run_weighs_less_the_farther_it_is() -> None:
    near, far = table(normal(6, 0.3, 0.02), name="near"), table(normal(6, -0.3, 0.02), name="far")
    others = [replace(row, features=replace(RUN, vector=0.5)) for row in far]
    errors = MeasuredErrors([*near, *others])
    low, high = logs(errors)
    assert low + high > 0.3
    low, high = logs(errors, replace(RUN, vector=0.5))
    assert low + high < -0.3


@pytest.mark.parametrize(
    ("changes", "distance"),
    [
        ({"chip": "v4"}, 1 / BANDWIDTHS.chip),
        ({"style": "plain"}, 1 / BANDWIDTHS.kind),
        ({"experts": True}, 1 / BANDWIDTHS.kind),
        ({"experts": True, "quantised": True}, 2**0.5 / BANDWIDTHS.kind),
    ],
)
def test_kinds_are_apart_by_their_bandwidths(changes: dict[str, object], distance: float) -> None:
    """The runs are equal, so no measure has a spread of its own."""
    found = MeasuredErrors(table([-0.1, 0.0, 0.1])).range(replace(RUN, **changes))
    assert found.support == pytest.approx(3 * exp(-(distance**2) / 2))


def test_far_from_all_runs_the_range_is_that_of_all_and_labelled() -> None:
    rows = table([-0.3, -0.1, 0.1, 0.3])
    rows[0] = replace(rows[0], features=replace(RUN, params=2e10))
    errors = MeasuredErrors(rows)
    found = errors.range(replace(RUN, params=1e20))
    assert not found.measured
    assert found.low * found.high == pytest.approx(1)
    assert errors.range(RUN).measured


def test_no_run_with_a_pipeline_was_measured() -> None:
    found = MeasuredErrors(table([0.2, 0.3, 0.4])).range(replace(RUN, pipelined=True))
    assert (found.measured, found.support) == (False, 0)
    assert found.low * found.high == pytest.approx(1)
    assert not measured_errors().range(replace(RUN, pipelined=True)).measured


def test_more_spread_residuals_make_a_wider_range() -> None:
    values = [-0.1, -0.04, 0.0, 0.05, 0.09, 0.2]
    low, high = logs(alone(table(values)))
    twice = logs(alone(table([2 * value for value in values])))
    assert twice == pytest.approx((2 * low, 2 * high))


def test_a_bias_of_all_runs_shifts_the_range() -> None:
    values = [-0.1, -0.04, 0.0, 0.05, 0.09, 0.2]
    low, high = logs(alone(table(values), NO_PRIOR))
    shifted = logs(alone(table([value + 0.25 for value in values]), NO_PRIOR))
    assert shifted == pytest.approx((low + 0.25, high + 0.25))


def test_a_run_that_is_left_out_has_no_influence_on_its_range() -> None:
    rows = table(normal(10, 0.0, 0.1))
    wild = replace(rows[3], residual=5.0)
    with_wild = MeasuredErrors([*rows[:3], wild, *rows[4:]])
    kept = MeasuredErrors([*rows[:3], *rows[4:]])
    found = with_wild.range(RUN, without=wild.family)
    assert found.support == pytest.approx(9)
    assert log(found.low * found.high) == pytest.approx(sum(logs(kept)))


def test_a_chip_without_runs_has_a_wider_range_and_a_label() -> None:
    errors = MeasuredErrors(table(normal(10, 0.0, 0.1)))
    v2, v4, own = (errors.range(replace(RUN, chip=chip)) for chip in ("v2", "v4", "a chip of mine"))
    assert v2.half_width > v4.half_width > own.half_width
    assert not any(found.measured for found in (v2, v4, own))


def test_the_interval_score_of_a_worked_example() -> None:
    """The width, and ten times by how much a run is outside of it; families count alike."""
    values = [0.0, 0.1, 0.2, 1.0]
    rows = table(values)
    rows.append(replace(rows[3], id="again"))
    errors = MeasuredErrors(rows, Bandwidths(1.0, 1.0, 1.0, 1.0, prior=1.0))
    scores = []
    for at, value in enumerate(values):
        low, high = logs(errors, RUN, without=f"f{at}")
        assert (low + high) / 2 == pytest.approx((sum(values) - value) / 4)
        scores.append(high - low + 10 * max(low - value, value - high, 0.0))
    assert interval_score(errors) == pytest.approx(sum(scores) / 4)


def test_equal_residuals_have_a_range_of_no_width() -> None:
    low, high = logs(alone(table([0.1, 0.1, 0.1]), NO_PRIOR))
    assert (low, high) == pytest.approx((0.1, 0.1), abs=1e-5)


def test_the_best_bandwidths_are_those_with_the_least_score() -> None:
    rows = [
        *table(normal(8, 0.3, 0.01), name="small"),
        *table(normal(8, -0.3, 0.01), replace(RUN, params=1e8), name="large"),
    ]
    narrow, wide = (replace(BANDWIDTHS, size=size) for size in (0.5, 50.0))
    best, score = best_bandwidths(rows, [wide, narrow])
    assert best == narrow
    assert score == interval_score(MeasuredErrors(rows, narrow))


def test_the_bandwidths_are_about_the_best_of_their_neighbours() -> None:
    """On the measured runs; `residual_table --choose` tries all combinations."""
    neighbours = []
    for name, choices in BANDWIDTH_CHOICES.items():
        at = choices.index(getattr(BANDWIDTHS, name))
        near = {*choices[max(0, at - 1) : at + 2]} - {choices[at]}
        neighbours += [replace(BANDWIDTHS, **{name: choice}) for choice in near]
    _, best = best_bandwidths(residuals(), neighbours)
    assert interval_score(measured_errors()) <= 1.05 * best


def test_the_ranges_of_the_measured_runs_are_positive_and_hold_most_of_them() -> None:
    """More than 80 % of known runs, so that they hold 80 % of those to come (ranges by time)."""
    errors = measured_errors()
    for _, found in errors.left_out():
        assert 0.2 < found.low < found.high < 5
        assert found.support >= 0
    assert 0.8 <= errors.coverage <= 0.95
    assert 0.8 <= errors.family_coverage <= 0.95


def test_a_group_is_left_out_as_a_whole() -> None:
    """Without the other chip's runs, each chip's range is made of the one run that is left."""
    here, there = table([0.1, 0.2, 0.4], name="a "), table([-0.3, 0.0, 0.1], name="b ")
    there = [replace(row, features=replace(RUN, chip="v4")) for row in there]
    found = dict(left_out_by([*here, *there], lambda row: row.chip))
    others = MeasuredErrors(there), MeasuredErrors(here)
    assert found[here[0]] == others[0].range(RUN)
    assert found[there[1]] == others[1].range(there[1].features)
    by_framework = dict(left_out_by([*here, *there], lambda row: row.framework))
    assert by_framework == found
    assert here[0].within(exp(0.09), 2)
    assert not here[0].within(exp(0.11), 2)


def test_another_architecture_is_like_nothing_measured() -> None:
    """Its range is that of measured systems of other architectures, or wider."""
    errors = MeasuredErrors(table(normal(40, 0.0, 0.05)))
    alike, other = errors.range(RUN), errors.range(replace(RUN, transformer=False))
    assert (alike.measured, other.measured) == (True, False)
    assert log(other.high / other.low) == pytest.approx(2 * OTHER_ARCHITECTURES)
    assert (alike.support, other.support) == (pytest.approx(40), 0)

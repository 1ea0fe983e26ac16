"""The odds that a plan fits: closed forms on tables whose answer is known, and the package's."""

from dataclasses import replace
from math import exp, log
from statistics import fmean

import pytest

from tpusim.accuracy import (
    HBM_COVERAGE,
    HbmErrors,
    HbmFeatures,
    HbmResidual,
    hbm_errors,
    hbm_odds,
    hbm_residuals_text,
    read_hbm_residuals,
)
from tpusim.base import FileError

PLAN = HbmFeatures(chip="v5p", devices=32, traits=frozenset({"experts"}), fill=0.5)


def table(
    values: list[float], plan: HbmFeatures = PLAN, name: str = "p", refused: bool = False
) -> list[HbmResidual]:
    return [HbmResidual(f"{name}{at}", plan, refused, value) for at, value in enumerate(values)]


EVEN = [(at - 49.5) / 1000 for at in range(100)]
"""From 5 % below to 5 % above what was predicted."""


def filled(share: float) -> HbmFeatures:
    return replace(PLAN, fill=share)


@pytest.mark.parametrize("error", [-0.03, 0.0, 0.02, 0.045])
def test_the_odds_are_the_share_of_programs_that_would_still_fit(error: float) -> None:
    """Programs as full as the plan, and one that nobody has seen, half of it on either side."""
    share = exp(-error)
    found = HbmErrors(table(EVEN, filled(share))).odds(filled(share))
    fitting = sum(value <= error for value in EVEN)
    assert found.fits == pytest.approx((fitting + 0.5) / 101)
    assert found.support == pytest.approx(100)


def test_the_range_has_nine_of_ten_programs() -> None:
    found = HbmErrors(table(EVEN)).odds(PLAN)
    inside = [found.low <= exp(value) * (1 + 1e-12) <= found.high * (1 + 2e-12) for value in EVEN]
    assert fmean(inside) == pytest.approx(HBM_COVERAGE, abs=0.025)
    assert found.of(100) == (100 * found.low, 100 * found.high)


def test_nothing_is_certain() -> None:
    errors = HbmErrors(table(EVEN))
    assert 0.97 < errors.odds(filled(0.01)).fits < 1
    assert 0 < errors.odds(filled(100)).fits < 0.03
    assert HbmErrors(table(EVEN * 9)).odds(filled(0.01)).of_hundred == 99
    assert HbmErrors(table(EVEN * 9)).odds(filled(100)).of_hundred == 1


def test_odds_fall_as_a_plan_needs_more() -> None:
    errors = HbmErrors(table(EVEN) + table([value - 0.2 for value in EVEN], name="q"))
    odds = [errors.odds(filled(share / 100)).fits for share in range(50, 200)]
    assert odds == sorted(odds, reverse=True)


def test_programs_with_the_traits_of_the_plan_count_most() -> None:
    others = replace(PLAN, traits=frozenset({"offloading", "several slices", "Muon"}))
    rows = table([0.3] * 50, others, "o") + table([0.0] * 50)
    assert HbmErrors(rows).odds(PLAN).low == 1
    assert HbmErrors(rows).odds(others).high == pytest.approx(exp(0.3))


def test_what_the_compiler_saves_before_it_refuses_counts_for_plans_like_those() -> None:
    """Programs took three quarters of what was predicted, after all that the compiler tried."""
    near = replace(PLAN, traits=PLAN.traits | {"unrolled", "unrolled near the limit"}, fill=1.25)
    errors = HbmErrors(table(EVEN) + table([log(0.75)] * 100, near, "s"))
    assert errors.odds(near).fits > 0.5
    assert errors.odds(filled(1.25)).fits < 0.3
    assert errors.odds(replace(near, fill=1.6)).fits < 0.05


def test_what_no_compared_plan_had_is_said() -> None:
    errors = HbmErrors(table(EVEN))
    assert errors.odds(PLAN).unlike == ()
    strange = HbmFeatures(chip="v2", devices=4096, traits=frozenset({"Muon"}), fill=0.5)
    assert errors.odds(strange).unlike == ("Muon", "v2 chips", "more than 32 devices")
    assert errors.odds(strange).words(2**30) == (
        "98 of 100 compared plans fit (none has Muon or v2 chips or more than 32 devices); "
        "the compiler takes 976 MiB to 1.05 GiB in 90 % of them"
    )
    assert errors.odds(PLAN).counted == "99 of 100 such plans fit"


def test_a_table_is_read_as_it_was_written() -> None:
    rows = tuple(table(EVEN[:4]) + table([0.25], filled(1.5), "r", refused=True))
    text = hbm_residuals_text(rows)
    assert read_hbm_residuals(text) == rows
    for broken, said in (
        ("id,residual\n", "has the columns id, chip,"),
        (text.splitlines()[0], "has a row for each compiled program"),
        (text.replace("0.25", "much"), "'r0' cannot be read"),
        (text.replace("0.25000", "nan"), "'r0' is no finite number"),
        (text.replace(",1.5,", ",0,"), "'r0' is no finite number"),
    ):
        with pytest.raises(FileError, match=said):
            read_hbm_residuals(broken)


def test_the_ranges_of_the_package_hold_for_programs_left_out_of_them() -> None:
    left_out = list(hbm_errors().left_out())
    inside = fmean(log(odds.low) <= row.residual <= log(odds.high) for row, odds in left_out)
    assert 0.85 <= inside <= 0.96
    said = [row.refused for row, odds in left_out if odds.fits >= 0.95]
    assert len(said) > len(left_out) / 2
    assert fmean(said) <= 0.05
    assert hbm_odds(PLAN) == hbm_errors().odds(PLAN)

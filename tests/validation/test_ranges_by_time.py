"""Ranges made of what was published before a date, held against the runs published after it."""

from math import exp, log
from statistics import median

import pytest
from calibration import module
from extent import sample
from validated import simulate_run

from tpusim.accuracy import COVERAGE, residuals
from tpusim.validation import MeasuredRun

counted, by_time = module("coverage_by_time"), module("by_time")
WRITE = "run experiments/calibration/by_time.py"
OFF_BY = 0.05
"""How far from 80 % the coverage by time may be."""


def test_ranges_hold_about_80_percent_of_the_runs_to_come() -> None:
    """Each run by the range of its half-year, with the constants and mechanisms of then."""
    found = counted.once(counted.MECHANISMS)
    assert len(found) == len({each.run.id for each in found}) > 100
    assert counted.coverage(found) == pytest.approx(COVERAGE, abs=OFF_BY)


def test_what_is_not_taken_back_makes_ranges_look_better() -> None:
    """In the runs to come, mechanisms that were chosen with them in view are no evidence."""
    held = [counted.coverage(counted.once(kind)) for kind in (counted.TODAY, *counted.KINDS)]
    assert held == sorted(held, reverse=True)
    assert held[-1] < held[0] - 0.03


def test_so_they_do_over_all_dates() -> None:
    found = [each for date in counted.DATES for each in counted.judged(date, counted.MECHANISMS)]
    assert counted.coverage(found) == pytest.approx(COVERAGE, abs=OFF_BY)


def test_their_width_is_bounded() -> None:
    widths = [each.found.half_width for each in counted.once(counted.MECHANISMS)]
    assert median(widths) <= 0.2


@pytest.mark.parametrize("date", sample(counted.DATES, 5))
def test_only_runs_published_later_are_judged(date: str) -> None:
    found = counted.judged(date, counted.CONSTANTS)
    assert all(each.published >= date for each in found)
    before = by_time.families_before(date)
    assert {row.id for row in residuals()} == {each.run.id for each in found} | set(before), WRITE
    assert len(set(before.values())) >= 4


def test_the_file_has_the_dates_of_the_runs() -> None:
    wanted = {run.id: by_time.published(run) for run in by_time.table()}
    assert {run: row.published for (_, run), row in counted._rows().items()} == wanted, WRITE


@pytest.mark.parametrize(
    ("given", "sorts_as"),
    [
        ("v3.1", "2023-11"),
        ("2025", "2025-12"),
        ("2026-08-04", "2026-08-04"),
        ("2021-10", "2021-10"),
    ],
)
def test_dates_are_texts_that_sort(given: str, sorts_as: str) -> None:
    run = next(run for run in by_time.table() if run.measured.date == given)
    assert by_time.published(run) == sorts_as


def run_of(name: str) -> MeasuredRun:
    return next(run for run in by_time.table() if run.id == name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["mar-v4-30m", "tr-v6e-llama3-1-70b-256", "tr-v7x-qwen3-bf16-head"]
)
def test_constants_that_no_run_before_the_date_moves_are_neutral(name: str) -> None:
    """Nothing was published of v6e, of 7x or of a synchronous loop before July 2024."""
    constants = by_time.constants_before({}, "2024-07")
    change = by_time.Then("2024-07", constants)._change
    run = run_of(name)
    then, now = simulate_run(run, change=change), simulate_run(run)
    _, shifts = counted._rows()["2024-07", name]
    assert abs(log(then.predicted_s / now.predicted_s)) > 0.01
    assert shifts["constants"] == pytest.approx(log(then.predicted_s / now.predicted_s), abs=0.01)


def test_a_mechanism_needs_two_families_that_are_better_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Outcome:
        error = exp(0.02) - 1

    monkeypatch.setattr(by_time, "families_before", lambda _: {"a": "one", "b": "two", "c": "two"})
    monkeypatch.setattr(by_time, "today", lambda: dict.fromkeys("abcd", Outcome))
    shifts = dict.fromkeys("abcd", 0.0)
    assert by_time.supported({"a": -0.2, "b": 0.1}, shifts, "")
    assert not by_time.supported({"a": -0.02, "b": -0.02}, shifts, "")
    assert not by_time.supported({"b": -0.2, "c": -0.2}, shifts, "")
    assert not by_time.supported({"a": -0.2, "d": -0.2}, shifts, "")
    assert not by_time.supported({"a": -0.2, "b": -0.2}, dict.fromkeys("abcd", 0.2), "")

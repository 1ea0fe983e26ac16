"""Predicted against measured step times of published runs, none of which has a constant of its own.

README.md beside this file says what the runs are, and how the bounds are written.
"""

from functools import cache
from pathlib import Path

import pytest
from bounds import HEADROOM, RUNS, SLACK, new_bounds, read_bounds, todays_bounds

from tpusim.validation import RunOutcome, Validation, validate_file
from tpusim.validation.error_table import in_page, table
from tpusim.validation.run_model import model_of

ROOT = Path(__file__).parents[2]


@cache
def validated() -> Validation:
    return validate_file(RUNS)


@cache
def outcomes() -> dict[str, RunOutcome]:
    return {one.run.id: one for one in validated().outcomes}


IDS = list(read_bounds())
SIMULATED = [name for name, bound in read_bounds().items() if bound is not None]


@pytest.mark.parametrize(
    "name", ["MT-v5e-32B-1x", "MT-v5p-1024B-1x2048", "TR-v6e-Llama3.1-70B-256"]
)
def test_the_step_time_is_near_the_measured_one(name: str) -> None:
    one = outcomes()[name]
    assert one.predicted_s == pytest.approx(one.run.step_s, rel=0.20)


@pytest.mark.parametrize("name", IDS)
def test_no_prediction_is_worse_than_its_bound(name: str) -> None:
    error, bound = outcomes()[name].error, read_bounds()[name]
    assert (error is None) == (bound is None), "run tests/validation/bounds.py"
    if error is not None and bound is not None:
        assert abs(error) <= bound
        assert bound <= abs(error) + HEADROOM + SLACK, (
            "a better prediction: run bounds.py to lock it"
        )


@pytest.mark.parametrize("name", SIMULATED)
def test_what_ran_fits_in_memory(name: str) -> None:
    """All of these runs were measured, so each had room."""
    assert outcomes()[name].fits, outcomes()[name].reason


def test_runs_on_several_slices_slow_down_as_measured() -> None:
    """Each against the same run on one slice: what differs is DCN and the wait for the slowest."""
    pairs = [pair for pair in validated().pairs if pair.thing == "num_slices" and not pair.also]
    found = [pair for pair in pairs if pair.change.startswith("1 ")]
    assert len(found) == 6
    for pair in found:
        assert pair.error is not None
        assert abs(pair.error) <= 0.03, pair.first


def test_there_is_a_bound_for_each_run_and_no_other() -> None:
    assert list(outcomes()) == IDS
    assert [name for name, one in outcomes().items() if one.ok] == SIMULATED


def test_bounds_only_become_tighter() -> None:
    old: dict[str, float | None] = {"a": 0.1, "b": 0.1, "c": 0.1, "d": None, "e": 0.1}
    today = {"a": 0.05, "b": 0.2, "c": 0.2, "d": 0.3, "e": None, "f": 0.4}
    assert new_bounds(old, today, ["c"]) == {
        "a": 0.05, "b": 0.1, "c": 0.2, "d": 0.3, "e": 0.1, "f": 0.4,
    }  # fmt: skip


def test_todays_bounds_are_the_errors_and_two_points() -> None:
    for name, bound in todays_bounds(validated()).items():
        error = outcomes()[name].error
        assert (bound is None) == (error is None)
        assert error is None or bound == pytest.approx(abs(error) + 0.02, abs=1e-4)


def test_every_dense_run_of_one_slice_is_simulated() -> None:
    special = ("latent", "context", "window")
    for one in outcomes().values():
        if one.run.num_slices == 1 and not one.ok:
            assert any(word in one.reason for word in special), one.run.id


@pytest.mark.parametrize("name", SIMULATED)
def test_the_model_is_the_one_that_ran(name: str) -> None:
    run = outcomes()[name].run
    model, _ = model_of(run)
    assert model.parameter_count == pytest.approx(run.params_b * 1e9, rel=0.002)


@pytest.mark.parametrize("name", SIMULATED)
def test_flops_are_counted_by_the_convention_of_the_table(name: str) -> None:
    """The MFU in the table was counted by another program: same FLOPs, same measured time."""
    one = outcomes()[name]
    assert one.measured_mfu == pytest.approx(one.run.mfu_half_causal_pct / 100, rel=0.003)


def test_the_simulator_beats_the_guess() -> None:
    """The median MFU of the chip's other runs knows no mesh and no batch."""
    found = validated().statistics
    guess = found["baseline"]["simulated_runs"]
    for name in ("median_abs_error", "mean_abs_error", "p90_abs_error"):
        assert found[name] < guess[name]


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_error_table_is_the_one_of_today(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert in_page(text, table(validated())) == text, (
        "run python -m tpusim.validation.error_table tests/validation/training_runs.csv "
        "README.md CHANGELOG.md"
    )

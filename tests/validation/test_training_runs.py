"""Predicted against measured step times of published runs, none of which has a constant of its own.

README.md beside this file says what the runs are, and how the bounds are written.
"""

import csv
from functools import cache
from pathlib import Path
from statistics import median

import once
import pytest
from bounds import (
    BOUNDS,
    HEADROOM,
    LARGEST_ERROR,
    MEASURED,
    RUNS,
    SLACK,
    new_bounds,
    read,
    todays_sizes,
)
from moved import moved_table
from reports import predicted_measured_title
from validated import points, renewed, residual_rows, run_groups, with_guesses

from tpusim.accuracy import measured_mfu_of, residuals
from tpusim.hardware import load_chip
from tpusim.results import Fit
from tpusim.runfile import read_run
from tpusim.simulation import simulate
from tpusim.validation import RunOutcome, Validation

ROOT = Path(__file__).parents[2]

COUNTED_OTHERWISE = {
    "tr-v6e-gemma3-12b-2x": "MaxText counts the keys of each window",
    "tr-v7x-gemma4-e4b-64": "18 layers have no keys and values of their own",
    "tr-v7x-gemma4-26b-64": "MaxText's own",
    "tr-v7x-gemma4-26b-256": "MaxText's own",
    "hy3-v5p-256": "its own; with a layer of multi-token prediction",
    "hy3-v5p-256-tuned": "its own; with a layer of multi-token prediction",
    "hy3-v5p-256-tuned-pdb9": "its own; with a layer of multi-token prediction",
}
"""Runs whose published MFU is what their source printed, by another counting rule than ours."""

OTHER_PARAMETERS = {
    "mar-v5p-gate-520m": "a gate on the attention output: 24 matrices of 1024 x 1024",
    "mar-v4-grug-150m-hd128": "gated value embeddings: 131M parameters",
    "hy3-v5p-256": "a layer of multi-token prediction: 3.8B parameters",
    "hy3-v5p-256-tuned": "a layer of multi-token prediction: 3.8B parameters",
    "hy3-v5p-256-tuned-pdb9": "a layer of multi-token prediction: 3.8B parameters",
}
"""Runs of models that have parameters which a `Transformer` cannot have; `unmodelled` says so."""

PARAMETERS_OF_NO_WEIGHT = {"mt-v5p-deepseek2-16b-8": (15.706, 15.933)}
"""Billions that the dimensions in the notes make, as many as DeepSeek-V2-Lite is said to have, and
that the table has: 2048 x 4096 more a layer, which no weight of a layer is."""

OTHER_SOFTWARE = ("tp-v6e-405b-1pod-gbs64", "tp-v6e-405b-2pod-gbs128")
"""A pair that differs in the software too: the first was measured two weeks later."""


def every() -> Validation:
    """All measured runs, of which the tables and the ranges are made."""
    return once.validated(MEASURED / "runs")


@cache
def validated() -> Validation:
    """Those that have bounds."""
    some = with_guesses([one for one in every().outcomes if one.run.id in COUNTS])
    return Validation(some, run_groups(some))


@cache
def sizes() -> dict[tuple[str, str], float]:
    return todays_sizes(validated())


@cache
def outcomes() -> dict[str, RunOutcome]:
    return {one.run.id: one for one in validated().outcomes}


with (MEASURED / "published_counts.csv").open(encoding="utf-8") as file:
    COUNTS = {row["run"]: row for row in csv.DictReader(file)}
IDS = list(COUNTS)


def test_every_run_is_simulated() -> None:
    assert list(outcomes()) == IDS
    assert len(IDS) == 123
    assert {name: one.reason for name, one in outcomes().items() if not one.ok} == {}


@pytest.mark.parametrize(
    "name", ["mt-v5e-32b-1x", "mt-v5p-1024b-1x2048", "tr-v6e-llama3-1-70b-256"]
)
def test_the_step_time_is_near_the_measured_one(name: str) -> None:
    one = outcomes()[name]
    assert one.predicted_s == pytest.approx(one.run.step_s, rel=0.20)


def test_no_run_is_further_off_than_the_largest_error() -> None:
    errors = {name: one.error for name, one in outcomes().items() if one.error is not None}
    assert {name: error for name, error in errors.items() if abs(error) > LARGEST_ERROR} == {}


@pytest.mark.parametrize("key", read(BOUNDS), ids=" ".join)
def test_no_set_of_runs_is_worse_than_its_bound(key: tuple[str, str]) -> None:
    size, bound = sizes()[key], read(BOUNDS)[key]
    assert size <= bound
    assert bound <= size + HEADROOM + SLACK, "better predictions: run bounds.py to lock them"


def test_there_are_bounds_for_each_set_and_no_other() -> None:
    assert sizes().keys() == read(BOUNDS).keys()


def test_what_ran_is_said_to_fit_or_to_be_borderline() -> None:
    """All of these runs were measured, so each had room."""
    assert {name: one.reason for name, one in outcomes().items() if one.fit is Fit.TOO_LARGE} == {}


COMPILED_GIB = {
    "tr-v6e-llama3-1-8b-8": 21.1, "tr-v6e-llama3-1-8b-256": 10.9, "tr-v6e-llama3-1-70b-32": 26.1,
    "tr-v6e-llama3-1-70b-256": 23.7, "mt-v5p-llama2-70b-512chips": 74.9,
    "tr-v6e-mixtral-8x7b-pdb8": 27.2, "mt-v5p-mixtral-8x7b-v5p256": 85.1,
    "tr-v5p-llama3-1-405b": 91.5, "mt-v4-22b-202308-1x": 20.3, "mt-v5p-deepseek2-16b-8": 75.1,
    "tp-v6e-l3-8b-gbs512": 9.39, "hy3-v5p-256-tuned": 58.0, "tr-v6e-gemma3-12b-2x": 29.3,
}  # fmt: skip
"""HBM of a device that the TPU compiler reports of the steps that `tpusim check` exports of these
runs' plans with gradients in bf16 (libtpu 0.0.42.1): the first six with MaxText's flags
(experiments/plan_vs_compiler), the others with none."""


def test_the_plans_of_runs_need_the_hbm_that_their_programs_do() -> None:
    """One program holds the recomputed attention of the six layers of a group, a plan one's."""
    errors = {}
    for name, compiled in COMPILED_GIB.items():
        run = read_run(RUNS / f"{name}.toml")
        found = simulate(run.model, run.plan.replace(grad_dtype="bf16"), run.pod)
        errors[name] = abs(found.hbm_peak_bytes / 2**30 / compiled - 1)
    assert median(errors.values()) < 0.047
    assert errors.pop("tr-v6e-gemma3-12b-2x") < 0.23
    assert max(errors.values()) < 0.13


def test_runs_on_several_slices_slow_down_as_measured() -> None:
    """Each against the same run on one slice: what differs is DCN and the wait for the slowest."""
    pairs = [pair for pair in validated().pairs if pair.decision == "slices" and not pair.also]
    first = [pair for pair in pairs if pair.change.startswith("1 ")]
    found = {p.second: p.error for p in first if (p.first, p.second) != OTHER_SOFTWARE}
    assert len(found) == 15
    further = {
        "mt-v5p-1024b-2x2048": 0.05,
        "tp-v6e-405b-2pod-gbs128": 0.1,  # the first run was 1.4 times as fast two weeks later
        "tr-v6e-gemma3-12b-2x": 0.04,  # shards the other dimension of its weights (its mesh)
    }
    for name, error in found.items():
        assert error is not None
        assert abs(error) <= further.get(name, 0.03), name


def test_bounds_only_fall_except_for_the_sets_that_are_named() -> None:
    old = {("a", "x"): 0.1, ("b", "x"): 0.1, ("c", "x"): 0.1, ("gone", "x"): 0.1}
    sizes = {("a", "x"): 0.05, ("b", "x"): 0.2, ("c", "x"): 0.2, ("new", "x"): 0.3}
    assert new_bounds(old, sizes, ["c"]) == {
        ("a", "x"): 0.06, ("b", "x"): 0.1, ("c", "x"): 0.21, ("new", "x"): 0.31,
    }  # fmt: skip


def test_the_table_of_moved_runs_of_a_worked_example() -> None:
    def row(predicted: str, error: str) -> dict[str, str]:
        return {"measured_s": "2.0", "predicted_s": predicted, "error": error}

    before = {"up": row("1.9", "-0.05"), "still": row("2.0", "0.0"), "ran": row("", ""),
              "gone": row("1.0", "-0.5"), "refused": row("", "")}  # fmt: skip
    after = {"up": row("2.09", "0.045"), "still": row("2.05", "0.025"), "ran": row("2.2", "0.1"),
             "refused": row("", ""), "new": row("1.0", "-0.5")}  # fmt: skip
    assert list(moved_table(before, after))[2:] == [
        "| up | 2 s | 1.9 s | 2.09 s | -5.0% | +4.5% | +10.0% |",
        "| ran | 2 s | - | 2.2 s | - | +10.0% | - |",
    ]


@pytest.mark.parametrize("name", IDS)
def test_the_model_is_the_one_that_ran(name: str) -> None:
    run, told = outcomes()[name].run, COUNTS[name]["params_b"]
    assert run.given is not None
    model, params_b = run.given.model, float(told or 0)
    if not params_b:
        assert "gemma4" in model.name
    elif name in PARAMETERS_OF_NO_WEIGHT:
        counts = (model.parameter_count / 1e9, params_b)
        assert counts == pytest.approx(PARAMETERS_OF_NO_WEIGHT[name], abs=0.001)
    elif name in OTHER_PARAMETERS:
        assert abs(model.parameter_count / (params_b * 1e9) - 1) > 0.002
        assert run.measured.unmodelled
    else:
        rounding = 0.5e6
        assert model.parameter_count == pytest.approx(params_b * 1e9, rel=0.002, abs=rounding)


@pytest.mark.parametrize("name", IDS)
def test_flops_are_counted_by_the_convention_of_the_table(name: str) -> None:
    """The published MFU was counted by another program: same FLOPs, same measured time.

    Where it is the source's own, it is the printed TFLOP/s a chip over the peak.
    """
    one, counts = outcomes()[name], COUNTS[name]
    written = float(counts["mfu_pct"] or 0) / 100
    if name in COUNTED_OTHERWISE:
        printed = float(counts["printed_tflops_per_chip"])
        peak = load_chip(one.run.chip).flops["bf16"]
        assert printed * 1e12 / peak == pytest.approx(written, rel=0.001)
        assert one.measured_mfu != pytest.approx(written, rel=0.003), "list it no longer"
    elif not written:
        assert name == "grug-v4-67b-a2b-muonh"
    else:
        assert one.measured_mfu == pytest.approx(written, rel=0.003)


def test_the_simulator_beats_the_guess() -> None:
    """The median MFU of the chip's other runs knows no mesh and no batch."""
    found = validated().statistics
    guess = found["baseline"]["simulated_runs"]
    for name in ("median_abs_error", "mean_abs_error", "p90_abs_error"):
        assert found[name] < guess[name]


TABLES = "run python -m tpusim.validation.error_table tests/measured/runs " + (
    "README.md docs/accuracy.md docs/accuracy.svg"
)
STALE_RESIDUAL = 0.005
"""Ranges may be made of residuals that are this far from those of today."""


@pytest.mark.parametrize("page", ["README.md", "docs/accuracy.md"])
def test_the_error_table_is_the_one_of_today(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert renewed(text, every()) == text, TABLES


def test_the_figure_of_errors_is_the_one_of_today() -> None:
    title = predicted_measured_title(points(every()))
    assert f"<title>{title}</title>" in (ROOT / "docs/accuracy.svg").read_text("utf-8"), TABLES


def test_the_residuals_are_those_of_today() -> None:
    """Ranges come from the errors of what is predicted now."""
    command = "run python -m tpusim.validation.residual_table tests/measured/runs"
    today, packaged = residual_rows(every()), residuals()
    assert [(row.id, row.family) for row in packaged] == [(r.id, r.family) for r in today], command
    moved = {
        row.id: (row.residual, now.residual)
        for row, now in zip(packaged, today, strict=True)
        if abs(row.residual - now.residual) > STALE_RESIDUAL
    }
    assert moved == {}, command


def test_the_measured_mfus_are_those_of_the_run_files() -> None:
    """A prediction is put beside them, counted as it is: the model's FLOPs over measured time."""
    found = {one.run.id: one.measured_mfu for one in every().outcomes}
    for row in residuals():
        assert measured_mfu_of(row) == pytest.approx(found[row.id], rel=2 * STALE_RESIDUAL), row.id

"""The calibration of the constants: its lists, its table, and the check of the catalogue."""

import csv
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calibration import FOLDER, module
from validated import simulate_run

from tpusim.hardware import load_chip

constants, errors, tables, ablation, estimates = (
    module(name)
    for name in ("fitted_constants", "run_errors", "fit_tables", "ablation", "matmul_estimates")
)
GROUPS = {group.constants[0].name: group for group in reversed(constants.WHOLE_RUNS)}
"""By the first constant; of two groups with the same one, the first."""
SEVEN = next(group for group in constants.WHOLE_RUNS if group.chips == ("7x",))
RUNS = {run.id: run for run in errors.table()}


@cache
def fits() -> Any:
    return tables.all_fits()


def test_every_fitted_constant_of_the_catalogue_is_listed() -> None:
    assert constants.fitted_in_catalogue() == constants.listed()
    assert sum(len(group.constants) for group in constants.WHOLE_RUNS) <= 16


def test_values_and_neutral_ones_are_within_bounds() -> None:
    for group in constants.WHOLE_RUNS:
        for each in group.constants:
            for value in (group.catalogue[each.name], each.neutral):
                assert each.values[0] <= value <= each.values[-1]


def test_bounds_are_within_the_ranges_that_the_catalogue_states() -> None:
    ranges = constants.load_entries("7x")["costs.attention_efficiency_forward"].range
    values = SEVEN.constants[2].values
    assert (values[0], values[-1]) == tuple(map(float, ranges))


def test_the_numbers_of_the_table_are_those_of_the_catalogue() -> None:
    with (FOLDER / "calibration.csv").open(encoding="utf-8") as file:
        rows = {row["constant"]: row for row in csv.DictReader(file)}
    wanted = {name: v for group in constants.WHOLE_RUNS for name, v in group.catalogue.items()}
    found = {name: float(row["catalogue"]) for name, row in rows.items()}
    assert found == pytest.approx(wanted), "run experiments/calibration/run.py --write"


def test_a_change_reaches_the_chips_that_it_names_and_no_other() -> None:
    change = GROUPS["scatter_element"].change({"scatter_element": 1e-6})
    for name, seconds in (("del-v5p-8-2e20", 1e-6), ("mar-v4-30m", 0.5e-6)):
        setup = RUNS[name].given
        pod = change(setup).pod
        assert pod.chip.costs.scatter_element == seconds
        assert (pod.topology, pod.num_slices) == (setup.pod.topology, setup.pod.num_slices)


def test_a_run_waits_for_the_turnaround_that_it_is_given() -> None:
    """mar-v4-30m computes for less than 30 ms: its step is that and the wait."""
    group, run = GROUPS["turnaround"], RUNS["mar-v4-30m"]
    steps = [simulate_run(run, change=group.change({"turnaround": t})) for t in (0.0, 0.02, 0.05)]
    first, second, third = (one.predicted_s for one in steps)
    assert second - first == pytest.approx(0.02, abs=1e-3)
    assert third - second == pytest.approx(0.03, rel=1e-6)


def test_attention_backward_moves_with_forward() -> None:
    values = SEVEN.catalogue | {"attention_efficiency_forward": 1.1}
    costs = SEVEN.change(values)(RUNS["tr-v7x-qwen3-bf16-head"].given).pod.chip.costs
    assert costs.attention_efficiency_forward == costs.attention_efficiency_backward == 1.1


def test_the_matmul_equation_is_that_of_the_cost_model() -> None:
    """At the catalogue's own p, with e of the estimates, the errors are those of the costs."""
    from tpusim.costs import matmul_seconds
    from tpusim.program import MatmulWork

    surface, given = estimates.matmul_surface("v5e"), estimates.catalogue("v5e")
    device = load_chip("v5e").replace(matmul_efficiency=given["share"]).device
    size = 4096
    work = MatmulWork(1, size, size, size, "bf16", 4 * size * size, 2 * size * size)
    place = surface.families.index("x".join([str(size)] * 3))
    cycles = next(r for r in estimates._rows() if r["chip"] == "v5e" and r["m"] == r["n"] == "4096")
    said = float(cycles["cycles"]) / float(cycles["clock_hz"])
    found = surface.errors_at(surface.point(given))[place]
    assert found == pytest.approx(float(matmul_seconds(work, device)) / said - 1, rel=1e-6)


def test_estimates_of_a_chip_without_any_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^there are no estimates of matmuls for v2$"):
        estimates.matmul_surface("v2")


def test_a_switch_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ablation.main(["prefetchh"])
    assert "no switch is called prefetchh; there are" in capsys.readouterr().err


def test_a_switch_changes_the_runs_that_have_its_mechanism() -> None:
    switches = ablation.switches()
    for name, run, moved in (
        ("loop", "mar-v4-30m", True),
        ("loop", "mt-v5e-32b-1x", False),
        ("vocab_blocks, loss_labels", "del-v5p-8-2e20", True),
        ("prefetch", "mt-v5e-32b-1x", True),
        ("prefetch", "mar-v4-30m", False),
        ("slice_jitter", "mt-v5e-32b-8x", True),
        ("slice_jitter", "mt-v5e-32b-1x", False),
    ):
        off = switches[name].outcome(RUNS[run])
        assert (ablation.moved([off], [simulate_run(RUNS[run])]) == 1) is moved, (name, run)


def test_every_pass_that_can_be_switched_off_has_a_row() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    assert [name for name in ablation.switches() if f"| `{name}` |" not in text] == []


def turnaround_fit(wanted: float) -> Any:
    """Four runs of 50 ms of work, measured with a turnaround of their own, and the catalogue's."""
    group = GROUPS["turnaround"]
    axis = errors.fine_axes(group)
    seen = tuple(errors.Observation(name, name, 0.05 + wanted, (name,)) for name in "abcd")
    off = np.log((0.05 + axis["turnaround"]) / (0.05 + wanted))
    spread = np.array([-0.01, -0.005, 0.005, 0.01])
    surface = module("fitting").Surface(axis, off + spread[:, None], tuple("abcd"), group.scale)
    return tables.Fit(group, seen, surface)


@pytest.mark.parametrize(("wanted", "faults"), [(0.033, 0), (0.012, 1)])
def test_the_check_fails_where_all_families_ask_for_another_value(
    wanted: float, faults: int
) -> None:
    fit = turnaround_fit(wanted)
    assert fit.best["turnaround"] == pytest.approx(wanted, abs=1e-3)
    assert len(module("run").check([fit])) == faults


def test_a_run_is_left_out_of_its_constants_with_its_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The catalogue has 33 ms, the runs ask for 12: its error goes, and that of others stays."""
    fit = turnaround_fit(0.012)
    now = dict(zip("abcd", fit.errors(**fit.group.catalogue), strict=True)) | {"other": 0.2}
    outcomes = {name: SimpleNamespace(error=error) for name, error in now.items()}
    monkeypatch.setattr(tables, "today", lambda: outcomes)
    found = tables.left_out_errors([fit])
    assert found["other"] == pytest.approx(0.2)
    assert [found[name] for name in "abcd"] == pytest.approx([-0.01, -0.005, 0.005, 0.01], abs=0.01)
    assert min(now[name] for name in "abcd") > 0.3


@pytest.mark.thorough
def test_the_catalogue_is_as_good_as_the_fit() -> None:
    assert module("run").check(fits()) == []


@pytest.mark.thorough
def test_interpolated_errors_are_those_of_simulations() -> None:
    for fit in fits():
        simulated = errors.errors_with(fit.group, fit.seen, fit.best)
        assert np.expm1(simulated) == pytest.approx(fit.errors(), abs=0.002), fit.group.title

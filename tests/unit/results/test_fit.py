"""Whether a step fits: by the odds of plans, and of schedules two percent around the limit."""

from dataclasses import replace

import pytest
from many_plans import sweep_text
from plans import plan_of, small
from replays import ORIGIN, small_replay

from tpusim.accuracy import HbmErrors, HbmFeatures, HbmResidual
from tpusim.hardware import Slice, load_chip
from tpusim.report import document
from tpusim.results import Fit, PlanResult, fit_of, fit_of_odds, plan_result
from tpusim.simulation import simulate
from tpusim.sweeps import Space, sweep

PLAN = plan_of({"fsdp": 16})
ERRORS = HbmErrors(
    [
        HbmResidual(str(at), HbmFeatures(chip="v5e", devices=16, traits=frozenset(), fill=fill),
                    False, (at - 99.5) / 5000)
        for at in range(200) for fill in (0.9, 1.1)
    ]
)  # fmt: skip
"""Programs that took 2 % less to 2 % more than was predicted."""
NEED = simulate(small(), PLAN, Slice("v5e", "4x4")).hbm_peak_bytes
HELD = simulate(small(), PLAN, Slice("v5e", "4x4")).timeline.memory[0].peak_bytes
"""What is needed, and of it what is held at once: with less, no order of buffers fits."""


@pytest.fixture(autouse=True)
def _known_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_result, "hbm_odds", ERRORS.odds)


def pod_with(usable_bytes: float) -> Slice:
    return Slice(load_chip("v5e").replace(hbm_usable_bytes=usable_bytes), "4x4")


def beside(usable_bytes: float) -> PlanResult:
    return simulate(small(), PLAN, pod_with(usable_bytes))


@pytest.mark.parametrize(
    ("need", "fit"),
    [
        (0, Fit.FITS), (97.99, Fit.FITS), (98, Fit.BORDERLINE), (100, Fit.BORDERLINE),
        (102, Fit.BORDERLINE), (102.01, Fit.TOO_LARGE), (1e30, Fit.TOO_LARGE),
    ],
)  # fmt: skip
def test_the_verdict_of_a_predicted_need(need: float, fit: Fit) -> None:
    assert fit_of(need, 100) is fit


@pytest.mark.parametrize(
    ("odds", "need", "fit"),
    [
        (0.95, 100, Fit.FITS), (0.94, 100, Fit.BORDERLINE), (0.06, 101, Fit.BORDERLINE),
        (0.05, 101, Fit.TOO_LARGE), (0.99, 101, Fit.BORDERLINE), (0.01, 100, Fit.BORDERLINE),
    ],
)  # fmt: skip
def test_the_verdict_by_odds(odds: float, need: float, fit: Fit) -> None:
    """A plan that needs more than there is does not fit for sure, whatever others did."""
    assert fit_of_odds(odds, need, 100) is fit


def test_no_program_is_compiled_perfectly() -> None:
    ideal = simulate(small(), PLAN.replace(lowering="ideal"), pod_with(1.01 * NEED))
    assert ideal.hbm_odds is None
    assert document(ideal)["fit_odds"] is None
    assert "such plans fit" not in str(ideal)


@pytest.mark.parametrize(("need", "fit"), [(100, Fit.FITS), (100.01, Fit.TOO_LARGE)])
def test_a_need_that_is_known_is_never_borderline(need: float, fit: Fit) -> None:
    assert fit_of(need, 100, 0) is fit


@pytest.mark.parametrize(
    ("room", "fits", "fit", "first"),
    [
        (1.5, True, "fits", "transformer"),
        (1.01, True, "borderline", "BORDERLINE  needs"),
        (0.99, False, "borderline", "BORDERLINE  needs"),
        (0.9, False, "does not fit", "DOES NOT FIT: needs"),
    ],
)
def test_the_summary_and_the_file_give_the_verdict(
    room: float, fits: bool, fit: str, first: str
) -> None:
    found = beside((NEED if room > 1 else HELD) * room)
    text = " ".join(str(found).split())
    assert str(found).startswith(first)
    assert ("HBM peak" in text) is (fit == "fits")
    assert ("so that only the compiler can tell" in text) is (fit == "borderline")
    assert found.hbm_odds is not None
    assert found.hbm_odds.words(found.hbm_peak_bytes) in text
    data = document(found)
    assert (data["fits"], data["fit"]) == (fits, fit)
    assert data["fit_odds"] == found.hbm_odds.fits
    low, high = data["hbm_peak_range_bytes"]
    need = found.hbm_peak_bytes
    assert 0.97 * need < low < need < high < 1.03 * need
    assert data["hbm_unlike"] == []
    assert (data["reason"] is None) is fits


def test_a_sweep_marks_what_is_borderline() -> None:
    vary = {"global_batch": [32, 3_200_000]}
    space = Space(base=PLAN, meshes=[{"fsdp": 16}], vary=vary)
    need = simulate(small(), PLAN.replace(global_batch=32), Slice("v5e", "4x4")).hbm_peak_bytes
    table = sweep(small(), space, pod_with(need * 1.01), workers=1)
    assert list(table["fit"]) == ["borderline", "does not fit"]
    assert list(table["status"]) == ["ok", "does not fit"]
    said = sweep_text(table, "")
    assert "1 borderline (*): the compiler alone can tell" in said
    first, second = table["fit_odds"]
    assert 0.5 < first < 0.95
    assert second < 0.05
    assert said.splitlines()[-1].endswith("*")


@pytest.mark.parametrize(
    ("source", "fit"), [("the compiler's report", Fit.FITS), ("the schedule", Fit.BORDERLINE)]
)
def test_what_the_compiler_reports_is_not_in_doubt(source: str, fit: Fit) -> None:
    """A program that needs 99.9 % of the HBM by the compiler's report was compiled, and fits."""
    held = {"heap": 0.999 * small_replay().hbm_bytes}
    assert small_replay(held=held, origin=replace(ORIGIN, memory=source)).fit is fit

"""Whether a step fits: two percent around the limit, a plan's need is too near to tell."""

from dataclasses import replace

import pytest
from many_plans import sweep_text
from plans import plan_of, small
from replays import ORIGIN, small_replay

from tpusim.hardware import Slice, load_chip
from tpusim.report import document
from tpusim.results import Fit, PlanResult, fit_of
from tpusim.simulation import simulate
from tpusim.sweeps import Space, sweep

PLAN = plan_of({"fsdp": 16})
NEED = simulate(small(), PLAN, Slice("v5e", "4x4")).hbm_peak_bytes


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
    found = beside(NEED * room)
    text = " ".join(str(found).split())
    assert str(found).startswith(first)
    assert ("HBM peak" in text) is (fit == "fits")
    assert ("within 2%, so that only the compiler can tell" in text) is (fit == "borderline")
    data = document(found)
    assert (data["fits"], data["fit"]) == (fits, fit)
    assert (data["reason"] is None) is fits


def test_a_sweep_marks_what_is_borderline() -> None:
    vary = {"global_batch": [32, 3_200_000]}
    space = Space(base=PLAN, meshes=[{"fsdp": 16}], vary=vary)
    need = simulate(small(), PLAN.replace(global_batch=32), Slice("v5e", "4x4")).hbm_peak_bytes
    table = sweep(small(), space, pod_with(need * 1.01), workers=1)
    assert list(table["fit"]) == ["borderline", "does not fit"]
    assert list(table["status"]) == ["ok", "does not fit"]
    said = sweep_text(table, "")
    assert "1 borderline (*), within 2% of the limit" in said
    assert said.splitlines()[-1].endswith("*")


@pytest.mark.parametrize(
    ("source", "fit"), [("the compiler's report", Fit.FITS), ("the schedule", Fit.BORDERLINE)]
)
def test_what_the_compiler_reports_is_not_in_doubt(source: str, fit: Fit) -> None:
    """A program that needs 99.9 % of the HBM by the compiler's report was compiled, and fits."""
    held = {"heap": 0.999 * small_replay().hbm_bytes}
    assert small_replay(held=held, origin=replace(ORIGIN, memory=source)).fit is fit

"""What a check concludes of seconds and of HBM, and when the verdicts on HBM differ."""

import pytest
from compiler_parts import ComparedHbm, ComparedPart, conclusion
from twins import compared

from tpusim.results import Fit

GIB = 2**30


def hbm(plan: float, program: float, fit: Fit, *, refused: bool = False) -> ComparedHbm:
    """Peaks in GiB, of 31.25 that can be used; all that differs is the gradient of the logits."""
    rest = min(plan, program) * GIB
    items = (
        ComparedPart("d(logits)", plan * GIB - rest, program * GIB - rest),
        ComparedPart("weights and optimizer state", rest, rest),
    )
    return ComparedHbm(
        plan_bytes=plan * GIB, program_bytes=program * GIB, usable_bytes=31.25 * GIB, plan_fit=fit,
        refused=refused, plan_peak="", program_peak="", items=items,
    )  # fmt: skip


DIFFERENCES = compared("rings").differences
SAID = (
    (
        hbm(8.0, 8.1, Fit.FITS),
        "the compiler agrees within 2 % on the step and 2 % on HBM: plan 98 ms and 8 GiB, program "
        "100 ms and 8.1 GiB",
    ),
    (
        hbm(5.0, 9.0, Fit.FITS),
        "the compiler agrees within 2 % on the step (plan 98 ms, program 100 ms); the plan has 44 %"
        " too little HBM (plan 5 GiB, program 9 GiB), mostly because of d(logits), none in the "
        "plan and 4 GiB in the program",
    ),
    (
        hbm(16.4, 33.2, Fit.FITS, refused=True),
        "the compiler refuses it, but the plan fits: 31.2 GiB can be used; the plan has 51 % too "
        "little HBM (",
    ),
    (
        hbm(34.0, 29.8, Fit.TOO_LARGE),
        "the compiler takes it, but the plan does not fit: 31.2 GiB can be used; the plan has 14 % "
        "too much HBM (",
    ),
    (
        hbm(34.0, 33.9, Fit.TOO_LARGE, refused=True),
        "the compiler refuses it, and the plan does not fit: 31.2 GiB can be used; the compiler "
        "agrees within 1 % on HBM (plan 34 GiB, program 33.9 GiB); the compiler agrees within 2 % "
        "on the step (",
    ),
    (
        hbm(31.0, 32.0, Fit.BORDERLINE, refused=True),
        "the compiler refuses it, and the plan is borderline: 31.2 GiB can be used; ",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("given", "said"), SAID)
def test_it_says_seconds_and_hbm_and_names_what_differs(given: ComparedHbm, said: str) -> None:
    assert conclusion((0.098, 0.1), given, DIFFERENCES).startswith(said)
    assert "because of" not in conclusion((0.098, 0.1), given, ())


@pytest.mark.parametrize("fit", list(Fit))
@pytest.mark.parametrize("refused", [False, True])
def test_the_verdicts_differ_where_only_one_side_fits(fit: Fit, refused: bool) -> None:
    found = hbm(31.0, 31.0, fit, refused=refused)
    wrong = {(Fit.FITS, True), (Fit.TOO_LARGE, False)}
    assert found.same_verdict == ((fit, refused) not in wrong)
    assert found.agrees == found.same_verdict


def test_a_gap_of_both_signs_names_what_explains_it() -> None:
    """Items by which the smaller peak is larger are not the reason."""
    given = hbm(5.0, 9.0, Fit.FITS)
    assert [row.what for row in given.named] == ["d(logits)"]
    assert [row.what for row in hbm(9.0, 5.0, Fit.FITS).named] == ["d(logits)"]
    assert hbm(9.0, 9.0, Fit.FITS).named == ()


def test_a_plan_beside_itself_has_the_same_items_and_peaks() -> None:
    found = compared("rings")
    assert found.hbm.agrees
    assert found.hbm.plan_peak.startswith("in the ")
    assert sum(row.plan for row in found.memory) == pytest.approx(found.plan_hbm_bytes)

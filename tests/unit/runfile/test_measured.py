"""The section [measured]: read, checked, and printed beside a prediction."""

from pathlib import Path

import pytest
from commands import SMALL

import tpusim as ts
from tpusim.base import PlanError, TpusimError
from tpusim.runfile import read_run

RUN = f"{SMALL}mesh = {{ fsdp = 16 }}\n[measured]\n"


def read(tmp_path: Path, lines: str, *overrides: str) -> ts.Measured | None:
    path = tmp_path / "run.toml"
    path.write_text(RUN + lines, "utf-8")
    return ts.read_run(path, overrides).measured


def test_all_keys_are_read(tmp_path: Path) -> None:
    lines = """
        step_s = 2
        step_is = "printed"
        source = "a log"
        date = "2026-08-04"
        confidence = "A"
        framework = "maxtext"
        family = "mine"
        assumed = ["plan.remat"]
        unmodelled = ["a clock"]
        hbm_gib = 12.5
        mfu_pct = 51.5
        hfu_pct = 60.0
        tflops_per_device = 237.0
        tokens_per_s = 4000
        examples_per_s = 30.5
        note = "none"
    """
    measured = read(tmp_path, lines)
    assert measured is not None
    assert (measured.step_s, measured.tokens_per_s, measured.date) == (2.0, 4000, "2026-08-04")
    assert (measured.assumed, measured.unmodelled) == (("plan.remat",), ("a clock",))
    assert "\n".join(measured.beside(1.5)) == (
        "measured    2 s (printed); predicted over measured 0.750\n"
        "source      a log, 2026-08-04, confidence A\n"
        "assumed     plan.remat\n"
        "unmodelled  a clock"
    )


def test_only_the_step_is_needed(tmp_path: Path) -> None:
    measured = read(tmp_path, "step_s = 2.0")
    assert measured == ts.Measured(step_s=2.0)
    assert measured is not None
    assert list(measured.beside(2.0)) == ["measured    2 s; predicted over measured 1.000"]


def test_a_run_that_is_changed_was_not_measured(tmp_path: Path) -> None:
    assert read(tmp_path, "step_s = 2.0", "plan.remat=minimal") is None
    changed = read(tmp_path, "step_s = 2.0", "measured.step_s=3", "train.steps=10")
    assert changed == ts.Measured(step_s=3.0)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "measured.step_s is missing; write a number, without quotes"),
        ("step_s = 0", "measured.step_s is 0.0; write a number above 0"),
        ("step_s = inf", "measured.step_s is inf; write a number above 0"),
        ('step_s = "1 s"', "measured.step_s is the text '1 s'; write a number"),
        ("step_s = 1\nhbm_gib = -1", "measured.hbm_gib is -1.0; write a number above 0"),
        ("step_s = 1\nstep = 1", "[measured] has an unknown key 'step'; did you mean 'step_s'"),
        ('step_s = 1\nconfidence = "D"', "measured.confidence is 'D': valid are A, B, C"),
        ('step_s = 1\nassumed = "x"', "measured.assumed is the text 'x'; write a list"),
        ("step_s = 1\ndate = 2026-08-04", "measured.date is 2026-08-04; write text in quotes"),
    ],
)
def test_a_mistake_is_one_sentence(lines: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TpusimError) as raised:
        read(tmp_path, lines)
    assert str(raised.value).startswith(f"{tmp_path / 'run.toml'}: {sentence}")


def test_a_sweep_has_no_measurement(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(f'{RUN}step_s = 1.0\n[sweep]\naxes = ["fsdp"]\n', "utf-8")
    with pytest.raises(TpusimError, match=r"\[measured\] is of one run; leave it out"):
        read_run(path)


@pytest.mark.parametrize("wrong", [None, "fast", True, float("nan"), -1])
def test_python_is_told_the_same(wrong: object) -> None:
    with pytest.raises(PlanError, match=r"^measured\.step_s is .*; write a number above 0$"):
        ts.Measured(step_s=wrong)  # type: ignore[arg-type]

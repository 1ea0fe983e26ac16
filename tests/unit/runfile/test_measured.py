"""The section [measured]: read, checked, and printed beside a prediction."""

from pathlib import Path

import pytest
from commands import SMALL

import tpusim as ts
from tpusim.base import PlanError, TpusimError
from tpusim.runfile import SimulationRun, read_run

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


OPEN = """step_s = 2.0
assumed = ["plan.remat", "plan.seq_len", "plan.microbatches"]
[measured.open]
"""


def opened(tmp_path: Path, lines: str) -> SimulationRun:
    path = tmp_path / "run.toml"
    path.write_text(RUN + OPEN + lines, "utf-8")
    return ts.read_run(path)


def test_open_values_are_runs_of_all_their_combinations(tmp_path: Path) -> None:
    run = opened(tmp_path, '"plan.remat" = ["full", "minimal"]\n"plan.seq_len" = [128, 256, 64]')
    assert (run.plan.remat.policy, run.plan.seq_len) == ("full", 128)
    found = {(each.plan.remat.policy, each.plan.seq_len) for each in run.plausible}
    assert found == {(r, s) for r in ("full", "minimal") for s in (128, 256, 64)} - {("full", 128)}
    assert run.measured is not None
    assert list(run.measured.beside(2.0))[-1] == (
        'open        plan.remat "full" or "minimal"; plan.seq_len 128 or 256 or 64'
    )


def test_keys_that_go_together_are_one(tmp_path: Path) -> None:
    lines = """"plan.seq_len, plan.microbatches" = [[128, 1], [256, 2]]
        "plan.remat" = ["full", "minimal"]"""
    found = {
        (run.plan.seq_len, run.plan.microbatches, run.plan.remat.policy)
        for run in opened(tmp_path, lines).plausible
    }
    both = ((128, 1), (256, 2))
    every = {(*pair, remat) for pair in both for remat in ("full", "minimal")}
    assert found == every - {(128, 1, "full")}


def test_open_values_are_written_and_read_again(tmp_path: Path) -> None:
    run = opened(
        tmp_path,
        '"plan.remat" = ["full", { policy = "full", save = ["q"] }]\n"plan.seq_len" = [128, 256]',
    )
    path = tmp_path / "again.toml"
    ts.write_run(path, run.model, run.plan, run.pod, measured=run.measured)
    again = ts.read_run(path)
    assert again.measured == run.measured
    assert [each.plan for each in again.plausible] == [each.plan for each in run.plausible]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            '"plan.mesh" = [{ fsdp = 16 }, { data = 16 }]',
            "measured.open has 'plan.mesh', which measured.assumed does not name; add it there",
        ),
        (
            '"plan.seq_len" = [64, 256]',
            "measured.open has [64, 256] for plan.seq_len, and none of them is the file's own",
        ),
        (
            '"plan.seq_len, plan.remat" = [[128, "full"], [256]]',
            'measured.open has [[128, "full"], [256]] for plan.seq_len, plan.remat; write lists of',
        ),
        ('"plan.seq_len" = [128]', "measured.open has [128] for plan.seq_len; write a list of two"),
        ('"plan.seq_len" = 128', "measured.open.plan.seq_len is 128; write a table of lists"),
        ('"plan.seq_len" = [128, 64, 128]', "measured.open has [128, 64, 128] for"),
        (
            '"plan.seq_len" = [128, 64]\n"plan.seq_len, plan.remat" = [[128, "full"], [9, "full"]]',
            "measured.open names plan.seq_len twice; write it in one entry",
        ),
        ("plan.seq_len = [64]", "measured.open.plan is a table; write a table of lists"),
        (
            '"plan.seq_len" = ["long", 128]',
            "measured.open, plan.seq_len=\"long\": plan.seq_len is the text 'long'; write",
        ),
        (
            f'"plan.seq_len" = {list(range(101, 141))}',
            "measured.open has 40 combinations of values",
        ),
    ],
)
def test_a_mistake_in_open_values_is_one_sentence(
    lines: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(TpusimError) as raised:
        opened(tmp_path, lines)
    assert str(raised.value).startswith(f"{tmp_path / 'run.toml'}: {sentence}")


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("plan.seqlen", "[plan] has an unknown key 'seqlen'; did you mean 'seq_len'"),
        ("seq_len", "measured.open has 'seq_len', which is no key of what runs; write keys such"),
    ],
)
def test_open_keys_are_keys_of_a_run(key: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    lines = f'step_s = 1.0\nassumed = ["{key}"]\n[measured.open]\n"{key}" = [128, 256]'
    path.write_text(RUN + lines, "utf-8")
    with pytest.raises(TpusimError) as raised:
        ts.read_run(path)
    assert sentence in str(raised.value)


def test_a_run_that_is_changed_has_no_plausible_others(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'{RUN}{OPEN}"plan.seq_len" = [128, 256]', "utf-8")
    assert ts.read_run(path, ["plan.remat=minimal"]).plausible == ()


def test_a_sweep_has_no_measurement(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(f'{RUN}step_s = 1.0\n[sweep]\naxes = ["fsdp"]\n', "utf-8")
    with pytest.raises(TpusimError, match=r"\[measured\] is of one run; leave it out"):
        read_run(path)


@pytest.mark.parametrize("wrong", [None, "fast", True, float("nan"), -1])
def test_python_is_told_the_same(wrong: object) -> None:
    with pytest.raises(PlanError, match=r"^measured\.step_s is .*; write a number above 0$"):
        ts.Measured(step_s=wrong)  # type: ignore[arg-type]


def test_an_override_of_an_open_key_leaves_the_measurement_out(tmp_path: Path) -> None:
    opened(tmp_path, '"plan.seq_len" = [128, 64]')
    (written,) = tmp_path.glob("*.toml")
    run = read_run(written, ["plan.seq_len=512"])
    assert (run.plan.seq_len, run.measured) == (512, None)

"""The statistics against worked examples."""

import pytest
from validated import (
    error_statistics,
    families_of,
    kinds_of,
    summarise,
    tau_b,
    tau_b_within_chips,
    with_guesses,
)

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.runfile import Measured, SimulationRun
from tpusim.validation import MeasuredRun, RunOutcome

MODEL = {"layers": 24, "embed": 2048, "mlp": 8192, "heads": 16, "vocab": 1000}
"""Dimensions of 1.6 billion parameters, of which a layer has 67 million."""

EXPERTS = {"experts": 8, "experts_per_token": 2}


def run(
    name: str = "a", chip: str = "v4", topology: str = "4x4x4", num_slices: int = 1,
    step_s: float = 10.0, framework: str = "", model: dict[str, object] | None = None,
    **plan: object,
) -> MeasuredRun:  # fmt: skip
    """A measured run; `plan` changes keys of its plan, `model` those of its model."""
    keys: dict[str, object] = {"mesh": {"fsdp": 64}, "global_batch": 64, "seq_len": 128}
    given = SimulationRun(
        name,
        Transformer(**(MODEL | (model or {}))),  # type: ignore[arg-type]
        Plan(**(keys | plan)),  # type: ignore[arg-type]
        Slice(chip, topology, num_slices),
    )
    return MeasuredRun(name, chip, Measured(step_s=step_s, framework=framework), given)


def done(name: str, predicted: float, mfu: float = 0.5, **changes: object) -> RunOutcome:
    measured = run(name, **changes)
    return RunOutcome(
        run=measured, status="ok", predicted_s=predicted, mfu=mfu,
        measured_mfu=mfu * predicted / measured.step_s,
    )  # fmt: skip


def test_errors_of_a_worked_example() -> None:
    found = error_statistics([-0.1, 0.2, 0.3, -0.4, 0.0])
    assert found == pytest.approx(
        {"median_abs_error": 0.2, "mean_abs_error": 0.2, "p90_abs_error": 0.36, "mean_error": 0.0}
    )


def test_no_errors_are_none_and_not_zero() -> None:
    assert set(error_statistics([]).values()) == {None}


def test_tau_b_of_a_published_example() -> None:
    """Kendall's x = 12 2 1 12 2, y = 1 4 7 1 0 (the example of SciPy's documentation)."""
    points = list(zip((12, 2, 1, 12, 2), (1, 4, 7, 1, 0), strict=True))
    assert tau_b(points) == pytest.approx(-0.47140452079103173)


def test_tau_b_without_ties_counts_pairs() -> None:
    assert tau_b([(1, 10), (2, 20), (3, 30)]) == 1
    assert tau_b([(1, 30), (2, 20), (3, 10)]) == -1
    assert tau_b([(1, 1), (2, 2), (3, 4), (4, 3)]) == pytest.approx(4 / 6)


@pytest.mark.parametrize("points", [[], [(1, 2)], [(1, 2), (1, 3)], [(1, 2), (2, 2)]])
def test_tau_b_needs_two_different_numbers(points: list[tuple[float, float]]) -> None:
    assert tau_b(points) is None


def test_within_chips_generations_do_not_help() -> None:
    """Each chip's two runs are in the wrong order, the chips in the right one."""
    mfus = {"a": ("v4", 0.1, 0.2), "b": ("v4", 0.2, 0.1), "c": ("v5p", 0.5, 0.6),
            "d": ("v5p", 0.6, 0.5)}  # fmt: skip
    outcomes = [
        RunOutcome(run=run(name, chip=chip), status="ok", mfu=mfu, measured_mfu=measured)
        for name, (chip, mfu, measured) in mfus.items()
    ]
    assert tau_b_within_chips(outcomes) == -1
    overall = tau_b([(o.mfu, o.measured_mfu) for o in outcomes if o.mfu and o.measured_mfu])
    assert overall == pytest.approx((4 - 2) / 6)


def test_failed_runs_are_counted_and_not_averaged() -> None:
    failed = RunOutcome(run=run("b"), status="error", reason="no")
    found = summarise([done("a", 11.0), failed])
    assert (found["runs"], found["failed"]) == (2, 1)
    assert found["mean_error"] == pytest.approx(0.1)


def test_the_guess_leaves_the_run_itself_out() -> None:
    """Measured MFU 0.4, 0.5 and 0.8, all in 10 s: a guess by 0.65 takes 10 * 0.4 / 0.65."""
    outcomes = [
        RunOutcome(run=run(name), status="error", measured_mfu=mfu)
        for name, mfu in (("a", 0.4), ("b", 0.5), ("c", 0.8))
    ]
    alone = RunOutcome(run=run("d", chip="v5e", topology="4x4"), status="error", measured_mfu=0.5)
    guesses = [one.guess_s for one in with_guesses([*outcomes, alone])]
    assert guesses == [pytest.approx(10 * 0.4 / 0.65), pytest.approx(10 * 0.5 / 0.6),
                       pytest.approx(10 * 0.8 / 0.45), None]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("dense",)),
        ({"model": EXPERTS}, ("MoE",)),
        ({"seq_len": 32768}, ("long context",)),
        ({"seq_len": 32767}, ("dense",)),
        ({"matmul_dtype": "fp8", "num_slices": 2}, ("int8/fp8", "multislice")),
        ({"model": {"layers": 14}}, ("below 1B",)),
        ({"model": {"layers": 15}}, ("dense",)),
    ],
)
def test_families(changes: dict[str, object], expected: tuple[str, ...]) -> None:
    assert families_of(run(**changes)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"framework": "maxtext"}, ("maxtext", "maxtext dense bf16")),
        ({"framework": "maxtext", "matmul_dtype": "int8"}, ("maxtext",)),
        ({"framework": "maxtext", "model": EXPERTS}, ("maxtext",)),
        ({"framework": "levanter"}, ("levanter",)),
        ({}, ("no framework",)),
    ],
)
def test_kinds(changes: dict[str, object], expected: tuple[str, ...]) -> None:
    assert kinds_of(run(**changes)) == expected

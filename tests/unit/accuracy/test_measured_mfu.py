"""The MFUs of published runs that a predicted one is put beside."""

from dataclasses import replace
from math import exp

import pytest

from tpusim.accuracy import (
    MeasuredMfu,
    RunFeatures,
    measured_mfu,
    measured_mfu_of,
    measured_mfu_on,
    residuals,
)

DENSE = RunFeatures(
    chip="v5p",
    style="maxtext",
    experts=False,
    quantised=False,
    pipelined=False,
    params=1e10,
    step_s=1.0,
    mfu=0.5,
    exposed=0.1,
    vector=0.1,
    attention=0.1,
)


def mfus(**kind: object) -> list[float]:
    return sorted(
        measured_mfu_of(row)
        for row in residuals()
        if all(getattr(row.features, name) == value for name, value in kind.items())
    )


def test_a_measured_mfu_is_the_predicted_one_over_the_ratio_of_times() -> None:
    row = residuals()[0]
    assert row.id == "mlp11-v4-480b"
    assert measured_mfu_of(row) == pytest.approx(row.features.mfu / exp(row.residual))
    assert 0.49 < measured_mfu_of(row) < 0.50  # published: 21.57 s to 21.95 s


def test_many_runs_give_their_middle_and_few_give_their_ends() -> None:
    many = measured_mfu(replace(DENSE, params=1e13))
    assert (many.of, many.runs) == ("dense models on v5p", 40)
    inside = [x for x in mfus(chip="v5p", experts=False, quantised=False)
              if many.low <= x <= many.high]  # fmt: skip
    assert len(inside) == 32
    assert str(many).startswith(f"published {many.low:.0%} to {many.high:.0%} (middle 80% of 40 ")
    few = measured_mfu(replace(DENSE, experts=True, params=1e13))
    own = mfus(chip="v5p", experts=True, quantised=False)
    assert few == MeasuredMfu(own[0], own[-1], len(own), "models with experts on v5p")
    assert "middle" not in str(few)


def test_models_of_like_size_come_first() -> None:
    found = measured_mfu(DENSE)
    assert found.of == "dense models of like size on v5p"
    alike = [
        row
        for row in residuals()
        if row.chip == "v5p"
        and not row.features.experts
        and not row.features.quantised
        and 1e10 / 3 <= row.features.params <= 3e10
    ]
    assert found.runs == len(alike) >= 4


def test_a_kind_with_few_runs_is_compared_with_its_chip_or_not_at_all() -> None:
    """Narrow matmuls are never compared with bf16 ones, as their MFU is against the bf16 peak."""
    assert measured_mfu(replace(DENSE, chip="v4", experts=True)).of == "all transformers on v4"
    assert measured_mfu(replace(DENSE, chip="v5e", quantised=True)) is None
    assert measured_mfu(replace(DENSE, chip="v3")) is None
    assert measured_mfu(replace(DENSE, transformer=False)) is None
    assert measured_mfu_on("v3") is None
    assert measured_mfu_on("v5p").runs == 49


def test_no_run_is_compared_with_its_own_program_alone() -> None:
    """All four runs of dense models with int8 matmuls on v6e are of one program."""
    of_one = [row for row in residuals() if row.chip == "v6e" and row.features.quantised]
    dense = [row for row in of_one if not row.features.experts]
    assert len({row.family for row in dense}) == 1 < len(dense)
    found = measured_mfu(replace(DENSE, chip="v6e", quantised=True))
    assert found is None or found.runs > len(dense)

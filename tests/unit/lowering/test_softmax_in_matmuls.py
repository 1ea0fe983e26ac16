"""Attention without a kernel: what of the scores is in memory, by chip, dtype and sequences."""

import pytest
from plans import any_program_of, flat, loop, plan_of, small

from tpusim.hardware import Slice

SCORES = 2 * 8 * 1024 * 1024
"""Bytes of one sequence's scores of eight heads in bf16."""

TOPOLOGIES = {"v3": "2x2", "v4": "2x2x4", "v5e": "4x4", "v5p": "2x2x4", "v6e": "4x4", "7x": "2x2x2"}
"""Sixteen devices of each generation, of v3 eight."""


def held(
    chip: str,
    body: str,
    *,
    wide: bool = False,
    sequences: int = 4,
    remat: str = "full",
    without: tuple[str, ...] = (),
) -> dict[str, float]:
    """Return the buffers of attention in a body, in scores of one sequence each."""
    devices = 8 if chip == "v3" else 16
    plan = plan_of(
        {"data": devices},
        global_batch=devices * sequences,
        seq_len=1024,
        remat=remat,
        without_passes=without,
    )
    model = small(
        attention="dot", heads=8, head_dim=128, softmax_dtype="f32" if wide else "compute"
    )
    program = any_program_of(model, plan, Slice(chip, TOPOLOGIES[chip]))
    found = (one for op, _ in flat(loop(program.body, body).body) for one in op.allocs)
    names = ("layer/scores", "layer/probs", "d(layer/scores)", "d(layer/probs)")
    return {
        one.tensor.removeprefix("bwd/"): float(one.bytes) / SCORES / sequences
        for one in found
        if one.tensor.removeprefix("bwd/") in names
    }


@pytest.mark.parametrize("chip", TOPOLOGIES)
def test_only_scores_are_in_memory_in_the_forward_pass(chip: str) -> None:
    assert held(chip, "layers") == {"layer/scores": 1}
    assert held(chip, "layers", wide=True) == {"layer/scores": 2}
    whole = held(chip, "layers", without=("softmax-in-matmuls",))
    assert whole == {"layer/scores": 1, "layer/probs": 1}


@pytest.mark.parametrize(
    ("chip", "narrow", "wide"),
    [
        ("v3", False, True),
        ("v4", True, True),
        ("v5e", False, False),
        ("v5p", False, True),
        ("v6e", False, False),
        ("7x", True, True),
    ],
)
def test_which_chips_write_a_softmax_that_runs_again(chip: str, narrow: bool, wide: bool) -> None:
    assert ("layer/probs" in held(chip, "layers/d")) == narrow
    assert ("layer/probs" in held(chip, "layers/d", wide=True)) == wide


@pytest.mark.parametrize("chip", ["v4", "v5p", "7x"])
def test_one_reader_computes_it_in_any_case(chip: str) -> None:
    """With the product with the values saved, only the gradient of the values reads it."""
    assert "layer/probs" in held(chip, "layers/d", wide=True)
    assert "layer/probs" not in held(chip, "layers/d", wide=True, remat="dots")


@pytest.mark.parametrize(
    ("chip", "wide", "several", "one"),
    [
        ("v4", False, True, True),
        ("v5e", False, False, False),
        ("v5e", True, True, False),
        ("v5p", False, True, True),
        ("v5p", True, True, False),
        ("v6e", False, True, False),
        ("v6e", True, True, False),
        ("7x", False, True, True),
    ],
)
def test_where_the_gradient_of_scores_is_written(
    chip: str, wide: bool, several: bool, one: bool
) -> None:
    gradient = "d(layer/scores)"
    assert (gradient in held(chip, "layers/d", wide=wide)) == several
    assert (gradient in held(chip, "layers/d", wide=wide, sequences=1)) == one


@pytest.mark.parametrize(("sequences", "width"), [(1, 1), (2, 2)])
def test_a_softmax_in_f32_of_one_sequence_reads_scores_in_the_compute_dtype(
    sequences: int, width: int
) -> None:
    for body in ("layers", "layers/d"):
        found = held("v5e", body, wide=True, sequences=sequences)
        assert found["layer/scores"] == width

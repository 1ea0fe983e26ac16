"""Attention through HBM: which results of a softmax and its gradient have a buffer."""

from typing import Any

import pytest
from plans import any_program_of, holders, plan_of, small

from tpusim.hardware import Slice

DEVICES = {"v3": "2x2", "v4": "2x2x2", "v5e": "2x4", "v5p": "2x2x2", "v6e": "2x4", "7x": "2x2x1"}


def held(chip: str, keys: int, softmax: str = "compute", sequences: int = 256, **more: Any) -> Any:
    """The bytes of each buffer of scores in a backward pass, of one sequence, by its name.

    All are larger than what stays on the chip.
    """
    plan = plan_of({"data": 8}, seq_len=keys, global_batch=8 * sequences, remat="full", **more)
    model = small(attention="dot", softmax_dtype=softmax)
    body = any_program_of(model, plan, Slice(chip, DEVICES[chip])).body
    names = ("scores", "probs", "d(layer/scores)", "d(layer/probs)")
    return {
        name: alloc.bytes / sequences
        for op, _ in holders(body)
        for alloc in op.allocs
        for name in names
        if alloc.tensor in (f"bwd/{name}", f"bwd/layer/{name}")
    }


@pytest.mark.parametrize(
    ("chip", "keys", "softmax", "written"),
    [
        ("v4", 512, "compute", {"probs", "d(layer/scores)"}),
        ("7x", 512, "compute", {"probs", "d(layer/scores)"}),
        ("v5p", 512, "compute", {"d(layer/scores)"}),
        ("v5p", 128, "compute", set()),
        ("v6e", 512, "compute", {"d(layer/scores)"}),
        ("v6e", 256, "compute", set()),
        ("v5e", 512, "compute", set()),
        ("v5p", 512, "f32", {"probs", "d(layer/scores)"}),
        ("v6e", 512, "f32", {"d(layer/scores)"}),
        ("v5e", 512, "f32", {"d(layer/scores)"}),
    ],
)
def test_matmuls_compute_what_their_generation_does_not_write(
    chip: str, keys: int, softmax: str, written: set[str]
) -> None:
    found = held(chip, keys, softmax)
    assert found.keys() == {"scores", "d(layer/probs)"} | written
    everything = {"scores", "probs", "d(layer/scores)", "d(layer/probs)"}
    assert held(chip, keys, softmax, without_passes=["softmax-in-matmuls"]).keys() == everything


@pytest.mark.parametrize(
    ("chip", "itemsize", "written"),
    [("v6e", 2, set()), ("v5p", 2, {"d(layer/scores)"}), ("7x", 4, {"probs", "d(layer/scores)"})],
)
def test_scores_of_one_sequence_are_as_narrow_as_their_product(
    chip: str, itemsize: int, written: set[str]
) -> None:
    found = held(chip, 4096, "f32", sequences=1)
    assert found["scores"] == small().heads * 4096**2 * itemsize
    assert found.keys() == {"scores", "d(layer/probs)"} | written
    assert held(chip, 4096, "f32", sequences=2)["scores"] == small().heads * 4096**2 * 4

"""Adafactor's passes, worked by hand: those of T5-base's program for v3 4x4 (libtpu 0.0.42.1)."""

from typing import Any

import pytest
from plans import any_program_of

from tpusim.hardware import Slice
from tpusim.models import EncoderDecoder
from tpusim.plan import Plan
from tpusim.program import Compute, VectorWork

T5 = EncoderDecoder.published("t5-base", decoder_layers=12, target_len=114)
F32, BF16 = 4, 2
MATRIX, HEADS = 12 * 768 * 3072, 12 * 768 * 768
MEANS = 12 * (768 + 3072)


def passes(weight: str, **changes: Any) -> dict[str, VectorWork]:
    """The passes of a weight's update, by their names."""
    plan = Plan(
        mesh={"data": 32}, seq_len=512, global_batch=256, optimizer="adafactor", **changes
    )  # fmt: skip
    ops = any_program_of(T5, plan, Slice("v3", "4x4")).body
    found = {op.name.partition("/")[0]: op for op in ops if getattr(op, "scope", "") == weight}
    return {name: op.work for name, op in found.items() if isinstance(op, Compute)}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (
            "encoder/wi",
            {
                "means": (BF16 * MATRIX + F32 * MEANS, F32 * MEANS, 5 * MATRIX),
                "clip": (BF16 * MATRIX, 0, 5 * MATRIX),
                "scale": (F32 * MATRIX, 0, 2 * MATRIX),
                "scale_again": (F32 * MATRIX, 0, 3 * MATRIX),
                "update": ((BF16 + F32) * MATRIX, F32 * MATRIX, 8 * MATRIX),
            },
        ),
        (
            "encoder/wq",
            {
                "moments": ((BF16 + F32) * HEADS, F32 * HEADS, 21 * HEADS),
                "scale": (F32 * HEADS, 0, 2 * HEADS),
                "scale_again": (F32 * HEADS, 0, 3 * HEADS),
                "update": ((BF16 + 2 * F32) * HEADS, F32 * HEADS, 19 * HEADS),
            },
        ),
    ],
)
def test_each_pass_reads_what_the_program_reads(
    weight: str, expected: dict[str, tuple[float, float, float]]
) -> None:
    """wq is [768, 12, 64], of which only one dimension has 128 elements: it is not factored."""
    found = passes(weight, remat="none")
    assert list(found) == list(expected)
    for name, work in found.items():
        assert (work.read_bytes, work.write_bytes, work.flops) == expected[name], name

"""Heads whose gradient is all-reduced, as their columns cannot be cut for a reduce-scatter."""

import pytest
from plans import flat, plan_of, program_of, small

from tpusim.hardware import Slice
from tpusim.program import Collective


@pytest.mark.parametrize(
    ("chip", "vocab", "mesh", "whole"),
    [
        ("v4", 128256, {"data": 2, "fsdp": 8}, True),
        ("v4", 128256, {"data": 4, "fsdp": 4}, False),
        ("v4", 128000, {"data": 2, "fsdp": 8}, False),
        ("v4", 134144, {"data": 2, "fsdp": 8}, False),
        ("v4", 127360, {"data": 2, "fsdp": 8}, True),
        ("v5e", 128256, {"data": 2, "fsdp": 8}, True),
        ("v5e", 50304, {"data": 2, "fsdp": 8}, False),
        ("v5p", 128256, {"data": 2, "fsdp": 8}, True),
        ("v6e", 128256, {"data": 2, "fsdp": 8}, False),
        ("v6e", 151936, {"data": 2, "fsdp": 8}, True),
    ],
)
def test_a_head_is_scattered_where_a_divisor_of_its_tiles_suits_the_group(
    chip: str, vocab: int, mesh: dict[str, int], whole: bool
) -> None:
    """As compiled: 2 layers, embed 2048, 16 sequences of 2048 (libtpu 0.0.42.1)."""
    pod = Slice(chip, "2x2x4" if chip in ("v4", "v5p") else "4x4")
    model = small(vocab=vocab, layers=2, embed=2048, mlp=8192, heads=16, head_dim=128)
    body = program_of(model, plan_of(mesh, seq_len=2048, global_batch=16), pod).body
    (reduced,) = (
        op
        for op, _ in flat(body)
        if isinstance(op, Collective) and op.name == "reduce-scatter/d(head)@fsdp"
    )
    assert (reduced.algorithm == "all-reduce") == whole

"""Copies of stacks that backward loops across slices read."""

from typing import Any

import pytest
from plans import any_program_of, loop, plan_of, small

from tpusim.hardware import Slice

TWO = Slice("v6e", "4x4", num_slices=2)
ACROSS = {"dcn_data": 2, "fsdp": 16}
COPY = "copy/bwd/layer/layer_in"


@pytest.mark.parametrize(
    ("mesh", "pod", "embed", "layers", "keys", "copied"),
    [
        (ACROSS, TWO, 1024, 4, {}, True),
        (ACROSS, TWO, 2048, 4, {}, False),
        (ACROSS, TWO, 1024, 2, {}, False),
        (ACROSS, TWO, 1024, 4, {"remat": "minimal"}, False),
        (ACROSS, TWO, 1024, 4, {"lowering": "ideal"}, False),
        ({"dcn_data": 2, "fsdp": 8, "tensor": 2}, TWO, 1024, 4, {}, False),
        ({"fsdp": 16}, Slice("v6e", "4x4"), 1024, 4, {}, False),
    ],
    ids=["long", "wide", "no-loop", "minimal", "ideal", "tensor", "one-slice"],
)
def test_the_loop_reads_a_copy_where_positions_are_in_the_lanes(
    mesh: dict[str, int], pod: Slice, embed: int, layers: int, keys: dict[str, Any], copied: bool
) -> None:
    """Of 1,024 positions; it lives until the loop ends, beside the stack."""
    given: dict[str, Any] = {"seq_len": 1024, "global_batch": 64, "remat": "full"} | keys
    model = small(embed=embed, layers=layers, mlp=4096)
    body = any_program_of(model, plan_of(mesh, **given), pod).body
    assert (COPY in [op.name for op in body]) is copied
    freed = [tensor for tensor in loop(body, "layers/d").frees if "(copy)" in tensor]
    assert freed == (["bwd/layer/layer_in (copy)"] if copied else [])

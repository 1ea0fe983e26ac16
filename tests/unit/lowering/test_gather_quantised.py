"""Activations gathered for quantised matmuls: what travels, and where it is quantised."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from plans import any_program_of, flat, plan_of, small

from tpusim.hardware import Slice
from tpusim.program import Collective, CollectiveKind, Compute, Program, VectorWork

POD = Slice("v5p", "4x4x4")
MESH = {"fsdp": 8, "tensor": 8}
RING = {"fsdp": 16, "tensor": 4}
"""Of which `tensor` is a ring of the torus."""
QUANTISED_FIRST = {"matmul_dtype": "int8", "gather_dtype": "int8"}
TENSORS = ("layer/attn_norm", "layer/mlp_norm", "d(layer/mid)", "d(layer/layer_out)")
LAYERS = 4
NARROW = {"layers": LAYERS}
WIDE_MLP = {"layers": 2, "embed": 8192, "mlp": 32768, "heads": 64, "gated": False}
"""Of which a matmul hides the chunks of a ring."""


def program_with(
    mesh: dict[str, int] = MESH, dims: Mapping[str, Any] = NARROW, **changes: Any
) -> Program:
    plan = plan_of(mesh, **{"style": "maxtext", "remat": "full"} | changes)
    return any_program_of(small(**dims), plan, POD)


def gathered(program: Program) -> dict[str, Counter[str]]:
    """Bytes that gathers of activations move in a layer, by tensor and dtype."""
    found: dict[str, Counter[str]] = {tensor: Counter() for tensor in TENSORS}
    for op, times in flat(program.body):
        if isinstance(op, Collective) and op.scope in found and op.kind == "all-gather":
            found[op.scope][op.dtype] += int(op.bytes) * times // LAYERS
    return found


WIDE, HALF = gathered(program_with(matmul_dtype="int8")), gathered(program_with(**QUANTISED_FIRST))
TOKENS = plan_of(MESH).global_batch // 8 * plan_of(MESH).seq_len
WHOLE = TOKENS * 64
"""Elements of an activation that is gathered over `tensor`."""


def passes(program: Program) -> dict[str, VectorWork]:
    return {
        op.name: op.work
        for op, _ in flat(program.body)
        if isinstance(op, Compute) and "quantise/" in op.name and "norm" in op.name
        if isinstance(op.work, VectorWork)
    }


def test_forward_gathers_are_half_of_bf16_ones() -> None:
    program = program_with(**QUANTISED_FIRST)
    forward = [
        op for op, _ in flat(program.body)
        if isinstance(op, Collective) and op.name == "all-gather/layer/attn_norm@tensor"
    ]  # fmt: skip
    assert [(op.dtype, op.bytes) for op in forward] == [("int8", WHOLE)]


def test_what_two_kinds_of_matmul_read_is_gathered_for_each() -> None:
    """Rows for the gradient of the input, columns for that of the weight: as much as bf16 once."""
    for tensor in ("d(layer/mid)", "d(layer/layer_out)"):
        assert WIDE[tensor] == {"bf16": 2 * WHOLE}
        assert HALF[tensor] == {"int8": 2 * WHOLE}


def test_the_recomputed_input_is_gathered_once_more_for_gradients_of_weights() -> None:
    """Forward, recomputed and for the gradients of weights: three, of which bf16 can share two."""
    assert WIDE["layer/mlp_norm"] == {"bf16": 2 * 2 * WHOLE}
    assert HALF["layer/mlp_norm"] == {"int8": 3 * WHOLE}


def test_matmuls_in_bf16_are_gathered_for_in_bf16() -> None:
    mixed = gathered(program_with(**QUANTISED_FIRST, matmul_dtype_dw="bf16"))
    assert mixed["d(layer/mid)"] == {"int8": WHOLE, "bf16": 2 * WHOLE}
    assert mixed["layer/mlp_norm"] == {"int8": 2 * WHOLE, "bf16": 2 * WHOLE}


def test_each_device_quantises_its_own_shard_and_nothing_that_arrives() -> None:
    """A pass reads bf16 and writes int8, an eighth of the elements of what the gather makes."""
    found = passes(program_with(**QUANTISED_FIRST))
    shard = WHOLE // 8
    assert {(work.read_bytes, work.write_bytes) for work in found.values()} == {(2 * shard, shard)}
    assert not [name for name in found if "@tensor" in name]
    whole = passes(program_with(matmul_dtype="int8"))
    assert {(work.read_bytes, work.write_bytes) for work in whole.values()} == {(2 * WHOLE, WHOLE)}


def test_what_no_quantised_matmul_reads_is_gathered_as_before() -> None:
    """The input of the projection to the vocabulary, and the keys and values of attention."""
    mesh = {"fsdp": 4, "context": 4, "tensor": 4}
    scopes = ("final_norm", "layer/k_kernel", "layer/v_kernel")
    wide, half = (
        Counter(
            (op.scope, op.dtype, int(op.bytes))
            for op, _ in flat(program_with(mesh, **dtypes).body)
            if isinstance(op, Collective) and op.kind == "all-gather" and op.scope in scopes
        )
        for dtypes in ({"matmul_dtype": "int8"}, QUANTISED_FIRST)
    )
    assert wide == half
    assert {(scope, dtype) for scope, dtype, _ in half} == {(scope, "bf16") for scope in scopes}


@pytest.mark.parametrize(("dtypes", "sent"), [({}, "bf16"), ({"gather_dtype": "int8"}, "int8")])
def test_rings_send_what_they_multiply(dtypes: dict[str, str], sent: str) -> None:
    """A chunk that arrives in int8 is not quantised again."""
    program = program_with(
        RING, WIDE_MLP, seq_len=2048, global_batch=64, matmul_dtype="int8", **dtypes
    )
    rings = [
        op for op, _ in flat(program.body)
        if isinstance(op, Collective) and op.kind is CollectiveKind.PERMUTE
        if op.scope == "layer/mlp_norm"
    ]  # fmt: skip
    casts = [op for op, _ in flat(program.body) if op.name == "layer/wi/quantise"]
    assert {op.dtype for op in rings} == {sent}
    assert bool(casts) == (sent == "bf16")


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_gathers_of_one_shard_share_its_quantised_copy(chip: str) -> None:
    """The input of attention, which is gathered again for the gradients of Q, K and V."""
    plan = plan_of(
        {"fsdp": 4, "tensor": 4}, rules={"act_embed": "tensor"}, seq_len=1024, **QUANTISED_FIRST
    )
    model = small(embed=1024, mlp=4096, heads=8, vocab=32000)
    names = [op.name for op, _ in flat(any_program_of(model, plan, Slice(chip, "4x4")).body)]
    shards = [name for name in names if name.startswith("quantise/bwd/layer/attn_norm int8 over b")]
    assert shards == ["quantise/bwd/layer/attn_norm int8 over batch+seq"]

"""One projection for queries, keys and values: the same work, with one reader of its input."""

from typing import Any

import pytest
from extent import thorough
from plans import calcs, comms, partitioned_of, plan_of, program_of, small

from tpusim.base import ModelError
from tpusim.graph import Einsum, Pointwise
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import Purpose
from tpusim.program import Collective, Loop, Mode, Op
from tpusim.simulation import simulate

KERNELS = [{"attention": "flash", "rotary": False}, {"attention": "flash"}, {"attention": "dot"}]
WIDE = {"layers": 2, "embed": 8192, "mlp": 32768, "heads": 64, "head_dim": 128, "rotary": False}
POD = Slice("v5p", "4x4x8")
PLAN = plan_of(
    {"fsdp": 16, "tensor": 8}, seq_len=2048, global_batch=128, style="maxtext", remat="full"
)


@pytest.mark.parametrize("remat", ["full", "minimal", "none"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_it_has_the_weights_and_the_flops_of_three(kernel: dict[str, Any], remat: str) -> None:
    three, one = small(**kernel), small(**kernel, fused_qkv=True)
    assert one.parameter_count == three.parameter_count
    plan, pod = plan_of({"fsdp": 4, "tensor": 2}, remat=remat), Slice("v5e", "2x4")
    made, expected = (simulate(model, plan, pod) for model in (one, three))
    assert made.flops == expected.flops


GROUPED = [
    {"kv_heads": 2}, {"kv_heads": 2, "rotary": False}, {"kv_heads": 1},
    {"kv_heads": 2, "qk_norm": True},
    {"kv_heads": 4, "qkv_bias": True}, {"window": 8, "global_every": 2, "global_kv_heads": 4},
]  # fmt: skip


@pytest.mark.parametrize("keys", GROUPED)
@pytest.mark.parametrize("kernel", ["flash", thorough("dot")])
def test_grouped_queries_are_made_by_one_matrix_too(keys: dict[str, Any], kernel: str) -> None:
    """Each head of keys and values behind the queries that share it."""
    three = small(attention=kernel, **keys)
    one = small(attention=kernel, fused_qkv=True, **keys)
    assert one.parameter_count == three.parameter_count
    for mesh in ({"fsdp": 8}, {"fsdp": 4, "tensor": 2}):
        plan, pod = plan_of(mesh), Slice("v5e", "2x4")
        if mesh.get("tensor", 1) > keys.get("kv_heads", 8):
            continue
        made, expected = (simulate(model, plan, pod) for model in (one, three))
        assert made.flops.model == expected.flops.model
        assert 0.8 * expected.step_time_s < made.step_time_s < 1.02 * expected.step_time_s


def test_one_einsum_takes_the_place_of_three() -> None:
    (scan,) = (
        op for op in small(fused_qkv=True).graph(batch=1, seq_len=16).ops if hasattr(op, "body")
    )
    shapes = {op.name: op.rhs.dims for op in scan.body if isinstance(op, Einsum)}
    assert shapes["layer/wqkv"] == ("embed", "qkv", "heads", "head_dim")
    assert not {"layer/wq", "layer/wk", "layer/wv"} & set(shapes)


def test_the_kernels_operands_are_copied_out_of_the_product_in_one_pass() -> None:
    """What lies between, a rotation or a norm, takes slices of the product instead."""
    for rotary in (False, True):
        model = small(attention="flash", rotary=rotary, fused_qkv=True)
        nodes = [node.op for node, _ in calcs(partitioned_of(model, plan_of({"fsdp": 8})))]
        copies = [op for op in nodes if isinstance(op, Pointwise) and op.name.endswith("kernel_in")]
        assert {len(op.inputs) for op in copies} == {3 if rotary else 1}


def test_its_gradients_are_reduced_at_once() -> None:
    reduced = {
        comm.tensor: comm
        for comm, _ in comms(partitioned_of(small(fused_qkv=True), plan_of({"fsdp": 8})))
        if comm.purpose is Purpose.GRADIENT
    }
    assert "d(layer/wqkv)" in reduced
    assert "d(layer/wq)" not in reduced


def gathers_of_input(model: Transformer) -> set[Mode]:
    """The modes in which the layers gather the input of attention over `tensor`, forward."""
    found: set[Mode] = set()

    def look(ops: tuple[Op, ...]) -> None:
        for op in ops:
            if isinstance(op, Loop):
                look(op.body)
            elif isinstance(op, Collective) and op.phase == "forward" and op.axes == ("tensor",):
                found.update({op.mode} if op.scope == "layer/attn_norm" and op.bytes > 1e7 else ())

    look(program_of(model, PLAN, POD).body)
    return found


def test_its_one_reader_gathers_in_a_ring() -> None:
    """As in compiled programs of 175B on v5p 4x4x8 and v5e 4x4, where three readers wait."""
    assert gathers_of_input(small(**WIDE, fused_qkv=True)) == {Mode.RING}
    assert gathers_of_input(small(**WIDE)) == {Mode.SYNC}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"window": 8, "global_every": 2, "global_keys_as_values": True}, "write one of the two"),
        ({"kv_rank": 16, "rope_dim": 8}, "with kv_rank = 16 they are made of latents"),
    ],
)
def test_layers_that_it_cannot_make_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        small(fused_qkv=True, **keys)

"""Layers of linear attention in turn with attention, and layers whose heads differ."""

from math import prod
from typing import Any

import pytest
from extent import thorough
from plans import calcs, flat, lowered_forward, partitioned_of, plan_of, small

import tpusim as ts
from tpusim import models
from tpusim.base import ModelError, PlanError
from tpusim.frames import choices_of
from tpusim.graph import (
    Attention,
    Graph,
    LinearAttention,
    Remat,
    forward_pass,
    model_flops,
    training_step,
    walk,
    with_linear_states,
)
from tpusim.hardware import Slice, placements
from tpusim.models import Transformer
from tpusim.partition import partition_graph, resolve_rules
from tpusim.plan import Plan
from tpusim.program import Compute, LinearAttentionWork

POD = Slice("v5p", "2x2x2")
LINEAR = {
    "linear": "gated-delta", "linear_heads": 16, "linear_key_heads": 4, "linear_head_dim": 8,
    "linear_value_dim": 12, "linear_conv": 4, "global_every": 3,
}  # fmt: skip
KINDS = ("gated-delta", "kimi-delta", "lightning")
SEQ, BATCH = 128, 8


def hybrid(**changes: Any) -> Transformer:
    return small(**({"layers": 6} | LINEAR | changes))


def graph(**changes: Any) -> Graph:
    return hybrid(**changes).graph(batch=BATCH, seq_len=SEQ)


def kernels(of: Graph) -> list[Attention | LinearAttention]:
    return [op for op, _ in walk(of.ops) if isinstance(op, Attention | LinearAttention)]


def kinds(model: Transformer) -> list[str]:
    """The kernels of the layers in order, `full` or the window."""
    made = model.graph(batch=1, seq_len=2 * SEQ)
    found: list[str] = []
    for scan in (op for op in made.ops if hasattr(op, "trips")):
        own = [
            "linear" if isinstance(op, LinearAttention) else str(op.window or "full")
            for op, _ in walk(scan.body)
            if isinstance(op, Attention | LinearAttention)
        ]
        found += own * scan.trips
    return found


def test_each_third_layer_is_full_attention() -> None:
    assert kinds(hybrid()) == ["linear", "linear", "full"] * 2
    assert kinds(hybrid(global_every=0)) == ["linear"] * 6


def test_single_layers_at_the_ends_see_all_keys() -> None:
    """Kimi Linear's layers 4, 8, ..., 24 and 27, counted from 1; MiMo-V2-Flash's nine of 48."""
    kimi, flash, pro = (kinds(models.load(name)) for name in
                        ("kimi-linear-48b-a3b", "mimo-v2-flash", "mimo-v2.5-pro"))  # fmt: skip
    whole = [layer for layer, kind in enumerate(kimi, start=1) if kind == "full"]
    assert whole == [4, 8, 12, 16, 20, 24, 27]
    assert kimi.count("linear") == 20
    whole = [layer for layer, kind in enumerate(flash) if kind == "full"]
    assert whole == [0, 5, 11, 17, 23, 29, 35, 41, 47]
    assert [pro.count("full"), pro.count("128"), pro[0], pro[-1]] == [10, 60, "full", "full"]


def test_values_have_a_width_of_their_own() -> None:
    made = small(v_head_dim=16, kv_heads=2).graph(batch=1, seq_len=SEQ)
    (kernel,) = kernels(made)
    sizes = made.sizes
    assert [sizes[t.dims[-1]] for t in (kernel.query, kernel.key, kernel.value)] == [32, 32, 16]
    plain = small(kv_heads=2).parameter_count
    assert plain - small(v_head_dim=16, kv_heads=2).parameter_count == 3 * 64 * 16 * (2 + 8)


def test_a_gate_on_the_result_is_one_more_projection() -> None:
    assert small(out_gate=True).parameter_count - small().parameter_count == 3 * 64 * 8 * 32


@pytest.mark.parametrize(("kind", "products"), [("gated-delta", 6), ("kimi-delta", 6),
                                                ("lightning", 4)])  # fmt: skip
def test_flops_are_those_of_the_recurrence(kind: str, products: int) -> None:
    made = graph(linear=kind)
    (op, *_) = kernels(made)
    assert model_flops(op, made.sizes) == products * BATCH * SEQ * 16 * 8 * 12
    step = training_step(made, Remat("full"))
    back = [op for op, _ in walk(step.ops) if isinstance(op, LinearAttention) and op.backward]
    assert {model_flops(op, step.sizes) for op in back} == {2 * model_flops(op, made.sizes)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_a_layer_has_a_gradient(kind: str) -> None:
    made = graph(linear=kind)
    step = training_step(made, Remat("full"))
    assert {name for name, _ in step.gradients} == {p.tensor.name for p in made.parameters}


def test_parameters_of_a_layer_by_hand() -> None:
    """Gated DeltaNet as huggingface/transformers has it, beside attention in its place."""
    embed, heads, keys, width, values = 64, 16, 4, 8, 12
    inner = 2 * keys * width + heads * values
    own = embed * (inner + heads * values + 2 * heads) + 4 * inner + 2 * heads + values
    own += heads * values * embed
    full = 4 * embed * 8 * 32
    assert hybrid().parameter_count - small(layers=6).parameter_count == 4 * (own - full)


def test_heads_and_sequences_divide_and_tokens_do_not() -> None:
    plan = plan_of({"data": 2, "tensor": 2, "context": 2}, seq_len=SEQ)
    found = [dict(node.split) for node, _ in calcs(partitioned_of(hybrid(), plan))
             if isinstance(node.op, LinearAttention)]  # fmt: skip
    heads = {"linear.heads": ("tensor",), "linear.kv_heads": ("tensor",), "batch": ("data",)}
    assert all(split == heads for split in found)
    assert len(found) == 2 * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", [{"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"fsdp": 4, "context": 2}])
@pytest.mark.parametrize("remat", ["full", thorough("none")])
def test_the_bound_is_below_the_step(kind: str, mesh: dict[str, int], remat: str) -> None:
    plan = plan_of(mesh, seq_len=SEQ, remat=remat)
    model = hybrid(linear=kind, experts=4, experts_per_token=2)
    assert 0 < ts.bound(model, plan, POD) <= ts.simulate(model, plan, POD).step_time_s


def test_a_step_of_qwen3_next_is_simulated() -> None:
    plan = Plan(mesh={"fsdp": 16, "tensor": 4}, seq_len=4096, global_batch=64, style="maxtext")
    result = ts.simulate("qwen3-next-80b-a3b", plan, Slice("v5p", "4x4x4"))
    kernel = 6 * 64 * 4096 * 32 * 128 * 128 * 36
    works = [op.work for op, _ in flat(result.program.body)
             if isinstance(op, Compute) and isinstance(op.work, LinearAttentionWork)]  # fmt: skip
    assert {(w.heads, w.key_dim, w.decay, w.delta) for w in works} == {(8, 128, "head", True)}
    assert result.fits
    assert 3 * kernel < float(result.flops.model)
    assert "linear attention backward" in str(result.program)


def decode(devices: dict[str, int], batch: int = 32) -> tuple[Graph, Any]:
    """A token of each sequence, whose layers go on from their states."""
    made = hybrid().graph(batch=batch, seq_len=1)
    alone = with_linear_states(forward_pass(made))
    plan = Plan(mesh=devices, global_batch=batch, seq_len=1)
    partitioned = partition_graph(alone, plan.sharding, resolve_rules(plan.sharding, alone))
    pod = Slice("v5e", "2x2" if plan.devices == 4 else "1x1")
    at = placements(pod, plan.mesh)[0]
    return alone, lowered_forward(alone, partitioned, choices_of(plan), pod, at)


@pytest.mark.parametrize("mesh", [{"data": 1}, {"data": 2, "tensor": 2}])
def test_a_state_is_held_and_read_and_written_once(mesh: dict[str, int]) -> None:
    graph, program = decode(mesh)
    devices = prod(mesh.values())
    state = 32 * 16 * 8 * 12 * 4 / devices
    held = {alloc.tensor: alloc.bytes for alloc in program.resident if alloc.category == "state"}
    past = {"q": 4 * 8, "k": 4 * 8, "v": 16 * 12}
    for layer in ("layer/0", "layer/1"):
        assert held[f"{layer}/linear_attention_state"] == 2 * state
        for name, width in past.items():
            convolved = held[f"{layer}/{name}_convolved_state"]
            assert convolved == 2 * 32 * 3 * width * 2 / devices
    assert len(held) == 2 * 4
    works = [op.work for op, _ in flat(program.body)
             if isinstance(op, Compute) and isinstance(op.work, LinearAttentionWork)]  # fmt: skip
    result = 32 * 16 * 12 * 2 / devices
    assert [work.write_bytes for work in works] == [state + result] * 2
    assert all(work.read_bytes > state for work in works)
    plain = forward_pass(hybrid().graph(batch=32, seq_len=1))
    assert graph.model_flops() == plain.model_flops()


def test_a_model_without_linear_attention_has_no_such_state() -> None:
    plain = small().graph(batch=2, seq_len=16)
    assert with_linear_states(plain) == plain


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"window": 8}, r'window is 8, but the layers .* \(linear = "gated-delta"\)'),
        ({"attention": "none"}, r'attention is "none", which leaves no attention'),
        ({"linear": "mamba"}, "linear is 'mamba'; write one of gated-delta, kimi-delta, lightning"),
        ({"linear": ""}, "linear_heads is 16, but no layer has linear attention"),
        ({"linear_key_heads": 3}, "16 heads of linear attention cannot share 3 heads"),
        ({"kind": "encoder"}, r'linear is "gated-delta", whose tokens see those before'),
        ({"global_ends": "last"}, "the last of 6 layers fills a pattern of 3, so it is like oth"),
        ({"global_ends": "first"}, "dense_layers is 0; write dense_layers = 1, or another"),
        ({"v_head_dim": 8, "fused_qkv": True}, "fused_qkv makes values as wide as keys, 32, but"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        hybrid(**changes)


def test_latent_attention_has_no_gate() -> None:
    with pytest.raises(ModelError, match=r"out_gate is true, but latent attention \(kv_rank\)"):
        small(kv_rank=8, rope_dim=4, out_gate=True)


def test_it_is_not_exported() -> None:
    with pytest.raises(PlanError, match=r"is linear attention, which tpusim cannot write as JAX"):
        ts.export_jax(hybrid(), plan_of({"fsdp": 8}, seq_len=SEQ), POD)

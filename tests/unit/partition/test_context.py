"""Sequences over several devices: which collectives a plan asks for, and what it cannot ask for."""

from collections.abc import Iterable
from typing import Any

import pytest
from plans import GIB, comms, partitioned_of, plan_of, program_of, small

from tpusim.base import PlanError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import LoopNode
from tpusim.program import Collective, CollectiveKind, Loop, Mode, Op
from tpusim.simulation import simulate

POD = Slice("v4", "2x2x4")
MESH = {"fsdp": 2, "context": 8}
NORMS = {"act_residual_seq": "tensor"}


def communicated(body: Iterable[Op]) -> list[tuple[str, str, str]]:
    """Mode, kind and axes of what a body communicates; a ring, with its first permute, is one."""
    found = []
    for op in body:
        if isinstance(op, Loop):
            found += sorted({one for one in communicated(op.body) if one[0] == Mode.RING})
        elif isinstance(op, Collective) and not op.name.endswith(("first permute", "last permute")):
            found.append((str(op.mode), str(op.kind), "+".join(op.axes)))
    return found


PLAIN = Transformer(
    layers=4, embed=2048, mlp=8192, heads=16, vocab=32000, gated=False, attention="dot"
)
GATED = Transformer(layers=4, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000)


GATHER, SCATTER = ("sync", "all-gather", "tensor"), ("sync", "reduce-scatter", "tensor")
CARRIED = ("async", "all-gather", "tensor")
RING = ("ring", "collective-permute", "tensor")
NEAR = (
    "the plan has 94 instructions between Q and the gradient of its weight, and copies of their "
    "own take more than 100: the rings over four devices are written out, which is not counted, "
    "as that would be wrong in more programs than it mends"
)


@pytest.mark.parametrize(("model", "mesh", "seq_len", "batch", "pod", "backward"), [
    pytest.param(
        PLAIN, {"data": 4, "tensor": 4}, 1024, 32, Slice("v5e", "4x4"),
        [CARRIED, RING, *3 * [CARRIED], SCATTER, CARRIED],
        marks=pytest.mark.xfail(reason=NEAR, strict=True),
    ),
    (GATED, {"fsdp": 4, "tensor": 4}, 4096, 16, Slice("v6e", "4x4"),
     [GATHER, RING, RING, GATHER, *3 * [GATHER], SCATTER]),
    (GATED, {"fsdp": 16, "tensor": 8}, 4096, 128, Slice("v5p", "4x4x8"),
     [GATHER, RING, RING, GATHER, SCATTER, *3 * [GATHER]]),
])  # fmt: skip
def test_sequence_sharded_norms_are_lowered_as_compiled(
    model: Transformer,
    mesh: dict[str, int],
    seq_len: int,
    batch: int,
    pod: Slice,
    backward: list[tuple[str, str, str]],
) -> None:
    """Language models on v5e 4x4, v6e 4x4 and v5p 4x4x8 (libtpu 0.0.42.1).

    Forward: a gather before QKV, a scatter after wo, a gather before the MLP, a ring after it.
    Backward: the same gathers again, and wo's scatter; a gather for each last projection; rings
    for the gradients of the MLP's input, and one scatter for those of Q's, K's and V's. Each of
    their weights' gradients gathers the input again: on v5e beside matmuls that wait to carry it,
    the last one beside weights' gradients after the scatter; on v5p, where these come last and
    attention is a kernel, each when its ring comes.
    """
    plan = plan_of(mesh, seq_len=seq_len, global_batch=batch, rules=NORMS)
    forward, found = (
        [one for one in communicated(op.body) if one[2] == "tensor"]
        for op in program_of(model, plan, pod).body
        if isinstance(op, Loop) and op.name.startswith("layers")
    )
    assert forward == [GATHER, SCATTER, GATHER, RING]
    assert found == [GATHER, SCATTER, GATHER, *backward]


KEYS = ("layer/k_kernel", "layer/v_kernel")


@pytest.mark.parametrize(("changes", "gathered", "saved"), [
    ({"remat": "none"}, 0, ()),
    ({"remat": "none", "context_exchange": "ring"}, 2, ("context",)),
    ({"remat": {"save": ["k_kernel", "v_kernel"]}}, 2, ("context",)),
])  # fmt: skip
def test_keys_without_a_checkpoint_are_saved_as_their_kernel_reads_them(
    changes: dict[str, Any], gathered: int, saved: tuple[str, ...]
) -> None:
    """A kernel's residuals leave its `shard_map` gathered; a policy saves each device's part."""
    plan = plan_of({"fsdp": 2, "context": 4}, **changes)
    partitioned = partitioned_of(small(attention="flash"), plan)
    again = [c for c, _ in comms(partitioned) if c.tensor in KEYS and "bwd/" in c.writes[0]]
    assert len(again) == gathered
    forward = next(node for node in partitioned.nodes if isinstance(node, LoopNode))
    kept = [key for key in forward.saves if key.startswith(KEYS)]
    assert [partitioned.buffers[key].local.layout[1] for key in kept] == 2 * [saved]


def activations(model: Transformer, plan: Any) -> dict[CollectiveKind, int]:
    """How many collectives of activations a layer has forward, by kind."""
    found: dict[CollectiveKind, int] = {}
    for comm, _ in comms(partitioned_of(model, plan)):
        if comm.purpose == "activation" and comm.writes[0].startswith("layer/"):
            found[comm.kind] = found.get(comm.kind, 0) + 1
    return found


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("attention", ["flash", "dot"])
def test_sharded_norms_scatter_what_was_all_reduced(gated: bool, attention: str) -> None:
    """Two all-reduces a layer become as many scatters and gathers; Q, K and V share one."""
    model = small(gated=gated, attention=attention)
    mesh = {"fsdp": 4, "tensor": 4}
    kinds = CollectiveKind
    assert activations(model, plan_of(mesh)) == {kinds.ALL_REDUCE: 2}
    sharded = activations(model, plan_of(mesh, rules=NORMS))
    assert sharded == {kinds.ALL_GATHER: 2, kinds.REDUCE_SCATTER: 2}


def test_sharded_norms_lie_over_the_context_too() -> None:
    mesh = {"fsdp": 2, "context": 2, "tensor": 4}
    layouts = partitioned_of(small(), plan_of(mesh, rules=NORMS)).layouts
    for name in ("embedded", "layer/layer_in", "layer/attn_norm", "layer/mid", "final_norm"):
        assert layouts[name] == (("fsdp",), ("context", "tensor"), ())
    assert layouts["layer/q"] == (("fsdp",), ("context",), ("tensor",), ())
    assert layouts["layer/mlp_hidden"] == (("fsdp",), ("context",), ("tensor",))


def test_sharded_norms_save_their_part_of_each_layers_input() -> None:
    model = small(layers=64, embed=2048, vocab=8)
    whole, sharded = (
        simulate(model, plan_of({"fsdp": 4, "tensor": 4}, seq_len=2048, rules=rules), POD)
        for rules in ({}, NORMS)
    )
    saved = [result.memory_bytes["saved activations"] for result in (whole, sharded)]
    assert saved[0] == 4 * saved[1] == 64 * 8 * 2048 * 2048 * 2 == 4 * GIB


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_copies_into_a_kernel_move_no_heads(kv_heads: int) -> None:
    """K/V heads that lie as the queries do, or on every device, are where they are wanted."""
    found = activations(small(kv_heads=kv_heads), plan_of({"fsdp": 4, "tensor": 4}))
    assert found == {CollectiveKind.ALL_REDUCE: 2}


def test_heads_that_are_repeated_move_no_heads() -> None:
    model = small(kv_heads=4, attention="dot")
    assert activations(model, plan_of({"fsdp": 4, "tensor": 4})) == {CollectiveKind.ALL_REDUCE: 2}


@pytest.mark.parametrize(("kv_heads", "dropped"), [
    (8, ()), (4, ()), (2, (("kv_heads", 2, "context", 4),)), (1, (("kv_heads", 1, "context", 4),)),
])  # fmt: skip
def test_key_heads_too_few_for_an_exchange_are_told_of(
    kv_heads: int, dropped: tuple[tuple[str, int, str, int], ...]
) -> None:
    """Whether they are repeated, as two are for four devices, or gathered, as one is."""
    plan = plan_of({"fsdp": 4, "context": 4}, context_exchange="all-to-all")
    assert partitioned_of(small(kv_heads=kv_heads), plan).dropped == dropped


def test_several_axes_cross_in_their_own_ways() -> None:
    """An all-to-all over part of the context, and a ring round the rest (arXiv:2405.07719)."""
    plan = plan_of(
        {"fsdp": 2, "heads": 2, "round": 4}, seq_len=64,
        context_exchange={"heads": "all-to-all", "round": "ring"},
    )  # fmt: skip
    partitioned = partitioned_of(small(), plan)
    assert partitioned.layouts["layer/q"] == (("fsdp",), ("round", "heads"), (), ())
    assert partitioned.layouts["layer/q_kernel"] == (("fsdp",), ("round",), ("heads",), ())
    assert partitioned.layouts["layer/wq"] == (("fsdp", "round", "heads"), (), ())
    found = [
        one
        for op in program_of(small(), plan, POD).body
        if isinstance(op, Loop) and op.name == "layers"
        for one in communicated(op.body)
        if "fsdp" not in one[2]
    ]
    exchange, hop = ("sync", "all-to-all", "heads"), ("ring", "collective-permute", "round")
    assert found == [*3 * [exchange], *2 * [hop], exchange]


def test_what_the_plan_asks_for_is_not_unasked() -> None:
    for way in ("gather", "ring", "all-to-all"):
        plan = plan_of(MESH, seq_len=64, context_exchange=way)
        assert simulate(small(), plan, POD).implicit_reshardings == ()


def test_a_context_may_lie_across_slices() -> None:
    plan = plan_of(
        {"fsdp": 16, "dcn_context": 2}, seq_len=64, context_exchange={"dcn_context": "ring"}
    )
    result = simulate(small(), plan, Slice("v4", "2x2x4", 2))
    assert result.breakdown_s["exposed dcn_context"] > 0


def test_a_plan_says_how_its_sequences_cross() -> None:
    assert "over the context" not in str(plan_of(MESH))
    assert ", ring over the context, bf16" in str(plan_of(MESH, context_exchange="ring"))
    late = str(plan_of(MESH, context_exchange={"context": "ring"}, context_balanced=False))
    assert ", ring over context, context not balanced, bf16" in late


def fails(model: Transformer, mesh: dict[str, int], **changes: Any) -> str:
    with pytest.raises(PlanError) as raised:
        simulate(model, plan_of(mesh, **({"seq_len": 64} | changes)), POD)
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"context_exchange": "rings"}, "plan.context_exchange is 'rings': did you mean 'ring'?"),
    ({"context_exchange": {"context": 3}}, "plan.context_exchange.context is 3: valid are "),
    ({"context_exchange": {"contxt": "ring"}}, "plan.context_exchange names 'contxt', which is no "
     "axis of the mesh: did you mean 'context'?"),
    ({"context_balanced": 1}, "plan.context_balanced is 1; write true or false"),
    ({"seq_len": 100}, "plan.seq_len is 100, which does not divide by the 8 shards of its axes "
     "(context=8); write a multiple, such as 96 or 104"),
    ({"seq_len": 4}, "plan.seq_len is 4, which is shorter than the 8 shards of its axes "
     "(context=8); write a multiple, such as 8"),
    ({"seq_len": 72}, "plan.context_balanced gives each device of context=8 an early and a late "
     "part of a sequence, but its 72 tokens do not divide into 16; write a multiple of 16, or "
     "context_balanced = false"),
])  # fmt: skip
def test_a_context_that_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in fails(small(), MESH, **changes)


def test_norms_that_cannot_be_sharded_evenly() -> None:
    text = fails(small(), {"fsdp": 4, "tensor": 4}, seq_len=18, rules=NORMS)
    assert "is 18, which does not divide by the 4 shards of its axes (tensor=4)" in text


def test_more_devices_than_heads_to_exchange() -> None:
    text = fails(small(heads=4, kv_heads=1), MESH, context_exchange="all-to-all")
    assert text == (
        "plan.context_exchange shards the 4 heads of the model over context=8, which does not "
        "divide them; write a smaller axis for the all-to-all, and a ring or a gather over another"
    )
    tensor = {"tensor": 4, "context": 4}
    assert "heads of the model over tensor=4 x context=4, which" in fails(
        small(), tensor, context_exchange="all-to-all"
    )


@pytest.mark.parametrize("way", ["ring", "all-to-all"])
def test_only_kernels_take_keys_otherwise_than_gathered(way: str) -> None:
    assert fails(small(attention="dot"), MESH, context_exchange=way) == (
        f'plan.context_exchange is "{way}", which takes the keys to an attention kernel, but the '
        'model has none; write attention = "flash", or context_exchange = "gather"'
    )


def test_one_kernel_takes_its_keys_in_one_way() -> None:
    text = fails(
        small(), {"fsdp": 4, "a": 2, "b": 2}, context_exchange={"a": "ring", "b": "gather"}
    )
    assert "has a ring over 'a' and a gather over 'b'" in text


def test_ways_for_no_axis_are_refused() -> None:
    with pytest.raises(PlanError, match="context_exchange is empty; write"):
        plan_of(MESH, context_exchange={})


@pytest.mark.parametrize("way", ["gather", "ring", "all-to-all"])
def test_an_axis_of_weights_may_shard_the_sequence(way: str) -> None:
    """As `context` does, which shards weights and sequences by default: the same collectives."""
    found = []
    for axis in ("fsdp", "context"):
        plan = plan_of(
            {"data": 2, axis: 8}, rules={"act_batch": ["data"]}, context_exchange={axis: way}
        )
        found.append(
            [
                (str(node.payload).replace(axis, "axis"), node.kind, times)
                for node, times in comms(partitioned_of(small(), plan))
            ]
        )
        assert simulate(small(), plan, POD).step_time_s > 0
    assert found[0] == found[1]


def test_an_axis_of_the_batch_does_not_shard_the_sequence_too() -> None:
    said = fails(small(), {"data": 2, "fsdp": 8}, context_exchange={"fsdp": "ring"})
    assert said == (
        "plan.context_exchange names 'fsdp', which shards the batch, so it cannot shard the "
        "sequence too; name another axis, or write rules.act_batch = ['data']"
    )

"""Which collectives a sharding gives, and how many bytes: worked by hand.

The totals are those of "How to Scale Your Model" (jax-ml.github.io/scaling-book), training chapter:
its summary of the communication of one MLP layer [B, D] x [D, F] x [F, D] in bytes is, forward and
backward, 0 + 8DF for data parallelism, 4DF + 8DF for FSDP, 4BD + 4BD for tensor parallelism, and
4BD/X + 4DF/Y, then 8BD/X + 8DF/Y for both, an all-reduce counted twice.
"""

from collections import Counter
from dataclasses import replace

import pytest
from plans import (
    ENCODER_480B,
    PLAN_480B,
    calcs,
    comms,
    partitioned_of,
    payload,
    plan_of,
    sizes_of,
    small,
)

from tpusim.base import Phase
from tpusim.frames import updates_of
from tpusim.models import Transformer
from tpusim.partition import CollectiveNode, PartitionedGraph, Purpose
from tpusim.plan import Plan
from tpusim.program import CollectiveKind

GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
REDUCE, EXCHANGE = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL

LAYERS, B, S, D, F, HEADS, HEAD_DIM, VOCAB = 3, 32, 16, 64, 256, 8, 32, 512
TOKENS = B * S
FEW_ROWS = 48
"""Of a table that is gathered under FSDP: fewer than the tokens of one of eight devices."""


def layer(partitioned: PartitionedGraph, *kinds: CollectiveKind) -> list[CollectiveNode]:
    """The collectives inside of the two loops over layers, of these kinds."""
    return [c for c, n in comms(partitioned) if n == LAYERS and c.kind in (kinds or CollectiveKind)]


def named(found: list[CollectiveNode]) -> Counter[tuple[CollectiveKind, str, Phase]]:
    return Counter((c.kind, c.tensor, c.phase) for c in found)


def ungated(**changes: object) -> Transformer:
    return small(gated=False, rotary=False, **changes)


def mlp_bytes(model: Transformer, plan: Plan) -> dict[bool, float]:
    """Bytes of the MLP's collectives in one layer, forward and backward; all-reduces twice."""
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    moved = {True: 0.0, False: 0.0}
    parts = ("wi", "wo_mlp", "mlp_out", "mlp_norm", "layer_out")
    for comm in layer(partitioned):
        part = comm.tensor.removeprefix("d(").removesuffix(")").removeprefix("layer/")
        if part in parts and comm.purpose is not Purpose.STATISTICS:
            times = 2 if comm.kind is REDUCE else 1
            moved[comm.phase is Phase.FORWARD] += times * payload(comm, sizes)
    return moved


def test_data_parallelism_reduces_each_gradient_once_and_does_nothing_else() -> None:
    model, plan = small(), plan_of({"data": 8})
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    found = comms(partitioned)
    assert {(c.kind, c.axes, c.purpose) for c, _ in found} == {
        (REDUCE, ("data",), Purpose.GRADIENT)
    }
    assert len(found) == len(partitioned.weights)
    assert sum(n * payload(c, sizes) for c, n in found) == 2 * model.parameter_count


def test_data_parallel_bytes_are_those_of_the_book() -> None:
    moved = mlp_bytes(ungated(), plan_of({"data": 8}, remat="none"))
    assert moved[True] == 0
    assert moved[False] == 8 * D * F


def test_fsdp_gathers_each_weight_forward_and_backward_and_scatters_its_gradient() -> None:
    model, plan = small(vocab=FEW_ROWS), plan_of({"fsdp": 8})
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    matrices = {f"layer/{w}" for w in ("wq", "wk", "wv", "wo", "wi_0", "wi_1", "wo_mlp")}
    forward = [c for c in layer(partitioned, GATHER) if c.phase is Phase.FORWARD]
    again = [c for c in layer(partitioned, GATHER) if c.phase is not Phase.FORWARD]
    assert Counter(c.tensor for c in forward) == Counter(matrices)
    assert Counter(c.tensor for c in again) == Counter(matrices)
    scattered = Counter(c.tensor for c in layer(partitioned, SCATTER))
    assert scattered == Counter(f"d({name})" for name in matrices)
    assert {c.tensor for c in layer(partitioned, REDUCE)} == {
        "d(layer/attn_norm_scale)", "d(layer/mlp_norm_scale)",
    }  # fmt: skip
    outside = {(c.kind, c.tensor) for c, n in comms(partitioned) if n == 1 and c.kind is not REDUCE}
    assert outside == {
        (GATHER, "embedding"), (GATHER, "head"), (SCATTER, "d(head)"), (SCATTER, "d(embedding)"),
    }  # fmt: skip
    assert all(c.axes == ("fsdp",) and c.asked for c, _ in comms(partitioned))
    whole = sum(payload(c, sizes) for c in forward)
    assert whole == 2 * (4 * D * HEADS * HEAD_DIM + 3 * D * F)


def test_fsdp_bytes_are_those_of_the_book() -> None:
    moved = mlp_bytes(ungated(), plan_of({"fsdp": 8}, remat="none"))
    assert moved[True] == 4 * D * F
    assert moved[False] == 8 * D * F


@pytest.mark.parametrize(("parallel", "count"), [(False, 2), (True, 1)])
def test_megatron_sums_activations_once_a_block_and_direction(parallel: bool, count: int) -> None:
    """After wo and after wo_mlp, and of the gradients of both inputs (arXiv:1909.08053, fig. 3).

    A parallel block adds attention and MLP up before their common all-reduce.
    """
    partitioned = partitioned_of(ungated(parallel=parallel), plan_of({"tensor": 8}, remat="none"))
    found = layer(partitioned)
    assert {(c.kind, c.axes) for c in found} == {(REDUCE, ("tensor",))}
    assert Counter(c.phase for c in found) == {Phase.FORWARD: count, Phase.BACKWARD: count}
    sizes = sizes_of(ungated(), plan_of({"tensor": 8}))
    assert {payload(c, sizes) for c in found} == {2 * TOKENS * D}


def test_tensor_parallel_bytes_are_those_of_the_book() -> None:
    """Activations sharded on D: gather and scatter; backward gathers the saved input again."""
    plan = plan_of({"tensor": 8}, remat="none", rules={"act_embed": "tensor"})
    partitioned = partitioned_of(ungated(), plan)
    forward = [c for c in layer(partitioned, GATHER, SCATTER) if c.phase is Phase.FORWARD]
    assert [(c.kind, c.tensor) for c in forward] == [
        (GATHER, "layer/attn_norm"), (SCATTER, "layer/out"),
        (GATHER, "layer/mlp_norm"), (SCATTER, "layer/mlp_out"),
    ]  # fmt: skip
    moved = mlp_bytes(ungated(), plan)
    assert moved[True] == 4 * TOKENS * D
    again = 2 * TOKENS * D
    assert moved[False] == 4 * TOKENS * D + again


def test_both_together_move_the_bytes_of_the_book() -> None:
    """X = 4 over the batch, Y = 8 over the heads and F."""
    plan = plan_of({"fsdp": 4, "tensor": 8}, remat="none", rules={"act_embed": "tensor"})
    moved = mlp_bytes(ungated(), plan)
    assert moved[True] == 4 * TOKENS * D / 4 + 4 * D * F / 8
    again = 2 * TOKENS * D / 4
    assert moved[False] == 4 * TOKENS * D / 4 + again + 8 * D * F / 8


def test_sequence_parallelism_by_annotation_gathers_and_scatters_sequences() -> None:
    """Korthikanti et al., arXiv:2205.05198, section 4.2.2."""
    heads, rows = (None, None, "tensor", None), (None, "tensor", None)
    annotated = {f"layer/{name}": heads for name in ("q", "k", "v", "context")}
    annotated |= {"layer/layer_in": rows, "layer/mlp_hidden": (None, None, "tensor")}
    plan = plan_of({"tensor": 8}, remat="none", annotate=annotated)
    partitioned = partitioned_of(ungated(), plan)
    forward = [c for c in layer(partitioned) if c.phase is Phase.FORWARD]
    assert [(c.kind, c.tensor, c.dim) for c in forward] == [
        (GATHER, "layer/attn_norm", "seq"), (SCATTER, "layer/out", "seq"),
        (GATHER, "layer/mlp_norm", "seq"), (SCATTER, "layer/mlp_out", "seq"),
    ]  # fmt: skip
    assert all(c.asked for c, _ in comms(partitioned))


def test_a_sequence_rule_gathers_keys_and_values_only() -> None:
    """Context parallelism: queries stay where they are, each device sees all keys and values.

    Without a checkpoint a kernel saves them gathered, so that its backward pass gathers none.
    """
    plan = plan_of({"data": 2, "tensor": 4}, remat="none", rules={"act_seq": "tensor"})
    found = [c for c in layer(partitioned_of(ungated(), plan)) if c.purpose is Purpose.ACTIVATION]
    gathers = {(GATHER, f"layer/{t}_kernel", Phase.FORWARD): 1 for t in "kv"}
    scatters = {(SCATTER, f"d(layer/{t}_kernel)", Phase.BACKWARD): 1 for t in "kv"}
    assert named(found) == gathers | scatters
    assert all(c.asked for c in found)


def test_tied_embeddings_are_gathered_once() -> None:
    """The rows of the lookup are added to the head's gradient, which is reduced and gathered."""
    plan = plan_of({"fsdp": 8})
    head = "d(embedding)~logits"
    for tied, gathered, reduced in (
        (True, ["embedding", head], [head, "d(embedding)"]),
        (False, ["embedding", "head"], ["d(head)", "d(embedding)"]),
    ):
        partitioned = partitioned_of(small(tied_embeddings=tied, vocab=FEW_ROWS), plan)
        tables = [c for c, n in comms(partitioned) if n == 1]
        assert [c.tensor for c in tables if c.kind is GATHER] == gathered
        assert [c.tensor for c in tables if c.kind is SCATTER] == reduced


def test_a_lookup_adds_up_what_the_shards_of_the_table_hold() -> None:
    partitioned = partitioned_of(ungated(), plan_of({"tensor": 8}))
    (found,) = (c for c, _ in comms(partitioned) if c.tensor == "embedded")
    assert (found.kind, found.axes) == (REDUCE, ("tensor",))


def test_one_annotation_lays_the_flagship_out_as_its_rule_does() -> None:
    """GSPMD, arXiv:2105.04663, section 5.1: a few annotations, the rest propagates."""
    ruled = partitioned_of(ENCODER_480B, PLAN_480B)
    annotate = {"layer/layer_in": ("fsdp", None, "tensor")}
    annotated = partitioned_of(ENCODER_480B, replace(PLAN_480B, rules={}, annotate=annotate))
    assert annotated.layouts == ruled.layouts
    assert annotated.nodes == ruled.nodes
    plain = partitioned_of(ENCODER_480B, replace(PLAN_480B, rules={}))
    assert plain.layouts != ruled.layouts


def test_annotations_that_quarrel_cost_exchanges_that_nobody_asked_for() -> None:
    """The hidden layer over sequences, its input and output over embed, on the same axis."""
    annotate = {
        "layer/mlp_hidden": (None, "tensor", None), "layer/layer_in": (None, None, "tensor"),
    }  # fmt: skip
    partitioned = partitioned_of(ungated(), plan_of({"tensor": 8}, remat="none", annotate=annotate))
    unasked = {(c.kind, c.tensor) for c, _ in comms(partitioned) if not c.asked}
    assert (EXCHANGE, "layer/mlp_out") in unasked
    assert (EXCHANGE, "layer/mlp_in") in unasked
    assert EXCHANGE not in {
        c.kind for c, _ in comms(partitioned_of(ungated(), plan_of({"tensor": 8})))
    }


def test_heads_fewer_than_the_axis_are_replicated_and_listed() -> None:
    partitioned = partitioned_of(small(kv_heads=2), plan_of({"fsdp": 2, "tensor": 4}))
    assert partitioned.dropped == (("kv_heads", 2, "tensor", 4),)
    (weight,) = (w for w in partitioned.weights if w.name == "layer/wk")
    assert weight.local.layout == (("fsdp",), (), ())
    enough = partitioned_of(small(kv_heads=4), plan_of({"fsdp": 2, "tensor": 4}))
    assert enough.dropped == ()
    (weight,) = (w for w in enough.weights if w.name == "layer/wk")
    assert weight.local.layout == (("fsdp",), ("tensor",), ())


def test_a_vocabulary_of_30522_over_8_is_3816_a_device() -> None:
    plan = plan_of({"fsdp": 2, "tensor": 8})
    model = small(vocab=30522)
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    logits = partitioned.buffers["logits"]
    assert sizes.elements(logits.local) == B // 2 * S * 3816
    (head,) = (w for w in partitioned.weights if w.name == "head")
    assert sizes.elements(head.local) == D // 2 * 3816


LLAMA_2_13B = Transformer(
    name="llama-2-13b", layers=40, embed=5120, mlp=13824, heads=40, head_dim=128, vocab=32000
)


def test_llama_2_13b_has_the_parameters_and_bytes_of_the_books_problems() -> None:
    """Training chapter, question 1: 8.5e9 + 4.2e9 + 0.33e9; here with the 81 norms' scales.

    Question 2: bf16 weights and f32 moments take (2 + 4 + 4) x 13e9, about 130 GB.
    """
    matrices = 3 * 40 * 5120 * 13824 + 4 * 5120 * 40 * 128 * 40 + 2 * 32000 * 5120
    assert matrices == pytest.approx(13.0e9, rel=0.005)
    assert LLAMA_2_13B.parameter_count == matrices + 81 * 5120
    plan = plan_of({"fsdp": 16}, param_dtype="bf16", global_batch=16)
    partitioned, sizes = partitioned_of(LLAMA_2_13B, plan), sizes_of(LLAMA_2_13B, plan)
    held = sum(alloc.bytes for alloc in updates_of(plan, sizes).resident(partitioned.weights))
    scales = 10 * 81 * 5120
    assert held == 10 * matrices / 16 + scales
    assert 16 * held == pytest.approx(130e9, rel=0.01)


def test_a_product_over_two_sharded_dimensions_is_scattered_over_one_and_summed_over_none() -> None:
    """2-D: each weight gradient is divided over both axes and summed over the batch's only."""
    partitioned = partitioned_of(ENCODER_480B, PLAN_480B)
    split = {c.name: dict(c.split) for c, _ in calcs(partitioned)}["bwd/layer/wi_0/dw"]
    assert split == {"batch": ("fsdp",), "mlp": ("tensor",)}
    (found,) = (c for c, _ in comms(partitioned) if c.tensor == "d(layer/wi_0)")
    assert (found.kind, found.axes, found.dim) == (SCATTER, ("fsdp",), "embed")

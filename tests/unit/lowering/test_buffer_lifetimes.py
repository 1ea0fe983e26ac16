"""When buffers are taken and given back: who writes over what, what outlives its last reader."""

import pytest
from plans import any_program_of, loop, plan_of, small

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Loop, Op
from tpusim.simulation import simulate

POD = Slice("v5p", "2x2x4")
RESIDUAL, HIDDEN = 2 * 16 * 64, 2 * 16 * 256
"""Bytes of a sequence of 16 tokens: of the residual stream, of the MLP's hidden layer."""


def step(model: Transformer, **changes: object) -> tuple[Op, ...]:
    plan = plan_of({"fsdp": 16}, global_batch=16, style="maxtext", **changes)
    return any_program_of(model, plan, POD).body


def named(body: tuple[Op, ...], name: str) -> Compute | Collective:
    (found,) = (op for op in body if op.name == name)
    assert isinstance(found, Compute | Collective)
    return found


def taken(op: Compute | Collective) -> dict[str, float]:
    return {alloc.tensor: float(alloc.bytes) for alloc in op.allocs}


def test_an_epilogue_writes_over_what_it_is_the_last_to_read() -> None:
    """The gradients of gate and up, which the matmul before them makes in its epilogue."""
    backward = loop(step(small()), "layers/d").body
    matmul = named(backward, "bwd/layer/wo_mlp/dx")
    assert not taken(matmul)
    freed = [name for op in backward for name in getattr(op, "frees", ())]
    assert {"bwd/layer/mlp_in_0", "bwd/layer/mlp_in_1"} <= set(freed)


def test_a_product_never_writes_over_its_own_operands() -> None:
    """Square matrices: an output as large as the input that dies with it."""
    body = loop(step(small(mlp=64, gated=False)), "layers").body
    assert taken(named(body, "layer/wi")) == {"layer/mlp_hidden": RESIDUAL}


def plain(
    mesh: dict[str, int], model: Transformer | None = None, **changes: object
) -> tuple[Op, ...]:
    plan = plan_of(mesh, global_batch=16, **changes)
    return any_program_of(model or small(vocab=512), plan, POD).body


def all_taken(body: tuple[Op, ...]) -> set[str]:
    return {alloc.tensor for op in body for alloc in getattr(op, "allocs", ())}


def freed_by(body: tuple[Op, ...], tensor: str) -> list[str]:
    return [op.name for op in body if tensor in getattr(op, "frees", ())]


def test_a_ring_reads_the_gradient_of_the_logits_from_a_buffer_of_its_own() -> None:
    """A loss reads its logits twice, so its gradient is no write in place."""
    body = plain({"fsdp": 16}, seq_len=2048)
    assert "logits/dw/ring" in {op.name for op in body}
    assert taken(named(body, "loss/d")) == {"d(logits)": 2 * 2048 * 512}
    assert "logits" in named(body, "loss/d").frees


@pytest.mark.parametrize("fsdp", [2, 4, 8])
def test_a_ring_over_four_devices_is_no_loop_and_computes_what_it_reads(fsdp: int) -> None:
    """Its two steps are unrolled: programs with fsdp 4 x tensor 4 hold the logits alone."""
    plan = plan_of({"fsdp": fsdp, "tensor": 16 // fsdp}, seq_len=65536, global_batch=16)
    body = any_program_of(small(vocab=512), plan, Slice("v5e", "4x4")).body
    rings = {op.name for op in body if op.name == "logits/dw/ring"}
    assert ("d(logits)" in all_taken(body)) is (fsdp == 8)
    assert rings or fsdp == 2


def test_matmuls_of_one_operation_compute_the_gradient_of_the_logits() -> None:
    """They read the logits for it, which the last of them gives back."""
    body = plain({"data": 16})
    assert "d(logits)" not in all_taken(body)
    order = [op.name for op in body]
    last = max(("logits/dx", "logits/dw"), key=order.index)
    assert freed_by(body, "logits") == [last]


def test_matmuls_compute_the_norm_that_only_they_read() -> None:
    """Its operand lives until the last of them; collectives and rings need the norm itself."""
    layers = loop(plain({"data": 16}), "layers").body
    assert "layer/mlp_norm" not in all_taken(layers)
    gathered = loop(plain({"tensor": 16}, rules={"act_residual_seq": "tensor"}), "layers").body
    assert "layer/mlp_norm" in all_taken(gathered)


def test_a_matmul_in_batches_computes_probabilities_that_it_alone_reads() -> None:
    """In the backward pass of 7x two matmuls read them."""
    plan = plan_of({"data": 16}, global_batch=16)
    body = any_program_of(small(attention="dot"), plan, POD).body
    assert "layer/probs" not in all_taken(loop(body, "layers").body)
    body = any_program_of(small(attention="dot"), plan, Slice("7x", "2x2x2")).body
    assert "bwd/layer/probs" in all_taken(loop(body, "layers/d").body)


def test_attention_through_hbm_fills_whole_tiles() -> None:
    """Of 40 positions and heads of 32: 128 lanes and 40 or 32 sublanes."""
    m = small(attention="dot", layers=1)
    plan = plan_of({"data": 16}, global_batch=16, seq_len=40)
    backward = loop(any_program_of(m, plan, POD).body, "layers/d").body
    held = {a.tensor: a.bytes for op in backward for a in getattr(op, "allocs", ())}
    assert held["bwd/layer/scores"] == m.heads * 40 * 128 * 2
    assert held["bwd/layer/v"] == m.heads * m.head_dim * 128 * 2


@pytest.mark.parametrize(("sequences", "rows"), [(64, 16), (65, 13)])
def test_positions_fill_sublanes_unless_many_examples_do(sequences: int, rows: int) -> None:
    plan = plan_of({"data": 16}, global_batch=16 * sequences, seq_len=13)
    backward = loop(any_program_of(small(), plan, POD).body, "layers/d").body
    held = {a.tensor: a.bytes for op in backward for a in getattr(op, "allocs", ())}
    assert held["bwd/layer/mlp_in_0"] == 2 * sequences * rows * small().mlp


def test_terms_of_a_sum_are_added_up_in_one_buffer() -> None:
    """The gradients of a norm's output by queries, keys and values."""
    backward = loop(plain({"data": 16}), "layers/d").body
    terms = {t for t in all_taken(backward) if t.startswith("bwd/d(layer/attn_norm)")}
    assert len(terms) == 1
    assert len(freed_by(backward, *terms)) == 1


def test_an_all_reduce_of_one_tensor_runs_in_place() -> None:
    layers = loop(plain({"tensor": 16}, small(kv_heads=16, heads=16)), "layers").body
    (summed,) = (op for op in layers if op.name == "all-reduce/layer/mlp_out@tensor")
    assert isinstance(summed, Collective)
    assert not taken(summed)


HEAD = 2 * 64 * 512
"""Bytes of the head and of its whole gradient, in bf16."""


def with_head_reduced_early(mesh: dict[str, int], microbatches: int = 1) -> tuple[Op, ...]:
    """A step whose head's gradient is reduced before the layers' backward pass, or one of many."""
    plan = plan_of(
        mesh,
        global_batch=64 * microbatches,
        microbatches=microbatches,
        seq_len=64,
        style="maxtext",
        without_passes=["merge-gradients"],
    )
    body = any_program_of(small(vocab=512), plan, Slice("v5e", "8x8")).body
    if microbatches > 1:
        body = loop(body, "microbatches").body
    order = [op.name for op in body]
    assert order.index("reduce-scatter/d(head)@fsdp") < order.index("layers/d")
    return body


@pytest.mark.parametrize(
    ("mesh", "freed"),
    [
        ({"fsdp": 64}, "reduce-scatter/d(embedding)@fsdp"),
        ({"data": 4, "fsdp": 16}, "reduce-scatter/d(head)@fsdp"),
    ],
)
def test_an_all_reduced_gradient_is_held_whole_until_the_optimizer(
    mesh: dict[str, int], freed: str
) -> None:
    """Over the whole slice it is all-reduced and then sliced; over a part of it, scattered.

    Its shard is there from the reduction on in either case. The table's follows the layers.
    """
    body = with_head_reduced_early(mesh)
    assert taken(named(body, "logits/dw")) == {"d(head)": HEAD}
    shard = taken(named(body, "reduce-scatter/d(head)@fsdp"))
    assert shard == {"d(head)@fsdp": HEAD / mesh["fsdp"]}
    assert freed_by(body, "d(head)") == [freed]


def test_the_sum_over_tiles_of_the_loss_is_freed_where_it_is_reduced() -> None:
    """Before the layers: Llama 3.1 405B on v5p 8x8x8 needs 89 GiB so, compiled 91.5."""
    plan = plan_of({"fsdp": 512}, global_batch=512, style="maxtext", vocab_tiles=4)
    body = any_program_of(small(vocab=2**17, embed=512), plan, Slice("v5p", "8x8x8")).body
    names = [op.name for op in body]
    (freed,) = freed_by(body, "d(head)")
    assert freed.startswith("reduce-scatter/d(head)")
    assert names.index(freed) < names.index("layers/d")


def test_one_that_is_added_to_those_of_other_microbatches_is_sliced_at_once() -> None:
    body = with_head_reduced_early({"fsdp": 64}, microbatches=2)
    assert freed_by(body, "d(head)") == ["reduce-scatter/d(head)@fsdp"]


def test_a_gathered_weight_is_given_back_by_its_last_matmul() -> None:
    """No attention kernel that follows later holds it."""
    backward = loop(step(small()), "layers/d").body
    (gather,) = (op for op in backward if op.name == "all-gather/bwd/layer/wo_mlp@fsdp")
    assert isinstance(gather, Collective)
    (key,) = taken(gather)
    assert key in named(backward, "bwd/layer/wo_mlp/dx").frees


@pytest.mark.parametrize("name", ["mlp_in_0", "q"])
def test_a_saved_tensor_is_copied_out_of_its_stack_while_a_layer_reads_it(name: str) -> None:
    backward = loop(step(small(), save=(name,)), "layers/d").body
    key = f"bwd/layer/{name}"
    owners = [op for op in backward if isinstance(op, Compute) and key in taken(op)]
    givers = [op for op in backward if isinstance(op, Compute) and key in op.frees]
    size = {"mlp_in_0": HIDDEN, "q": 2 * 16 * 8 * 32}[name]
    assert [taken(op)[key] for op in owners] == [size]
    assert len(givers) == 1
    assert backward.index(owners[0]) <= backward.index(givers[0])


def test_a_loop_holds_what_it_stacks_and_reads_and_its_neighbours_do_not() -> None:
    """Stacks begin with it, what it is the last to read ends with it, a carry has one buffer."""
    body = plain({"fsdp": 16})
    forward, backward = loop(body, "layers"), loop(body, "layers/d")
    stacks = [alloc for alloc in forward.allocs if alloc.category == "saved activations"]
    assert [alloc.tensor for alloc in stacks] == ["layer/layer_in x3"]
    assert "layer/layer_in x3" in backward.frees
    beside = {alloc.tensor for op in body if not isinstance(op, Loop) for alloc in op.allocs}
    assert not beside & {"layers_out", "layer/layer_in x3", "d(embedded)"}


def test_the_buffers_of_a_body_of_rings_alone_are_those_of_its_rings() -> None:
    """Weight gradients that are rings, each reduced by itself beside the core."""
    model = Transformer(layers=2, embed=64, mlp=256, heads=4, head_dim=64, vocab=100)
    plan = Plan(
        mesh={"fsdp": 8, "tensor": 4, "stage": 2}, seq_len=1, global_batch=512, microbatches=8,
        lowering="ideal", style="maxtext", schedule="zb-h2", without_passes=["merge-gradients"],
    )  # fmt: skip
    result = simulate(model, plan, Slice("v5p", "4x4x4"))
    assert (
        result.step_time_s
        > simulate(model, plan.replace(without_passes=[]), result.pod).step_time_s
    )


PLAIN_MLP = {"gated": False, "activation": "gelu", "mlp_bias": True}


def test_a_gradient_computes_the_activation_function_that_is_recomputed() -> None:
    """One buffer as wide as the MLP is alive: a ring needs its operand, and two operands stay."""
    backward = loop(plain({"data": 16}, small(**PLAIN_MLP), seq_len=128), "layers/d").body
    assert "bwd/layer/mlp_hidden" not in all_taken(backward)
    assert taken(named(backward, "bwd/layer/wi")) == {"bwd/layer/wi_biased": 8 * HIDDEN}
    order = [op.name for op in backward]
    assert order.index("bwd/layer/wo_mlp/dw") < order.index("bwd/layer/wo_mlp/dx")
    assert "bwd/d(layer/wi_biased)" not in all_taken(backward)
    for mesh, model in (({"fsdp": 16}, PLAIN_MLP), ({"data": 16}, {})):
        held = loop(plain(mesh, small(**model), seq_len=2048), "layers/d").body
        assert "bwd/layer/mlp_hidden" in all_taken(held)


def test_the_gradient_runs_later_without_its_pass() -> None:
    without = ["gradient-before-overwrite"]
    backward = loop(
        plain({"data": 16}, small(**PLAIN_MLP), without_passes=without), "layers/d"
    ).body
    order = [op.name for op in backward]
    assert order.index("bwd/layer/wo_mlp/dw") > order.index("bwd/layer/wo_mlp/dx")
    assert "bwd/d(layer/wi_biased)" in all_taken(backward)


def test_a_norm_that_is_recomputed_has_no_buffer_either() -> None:
    backward = loop(plain({"data": 16}), "layers/d").body
    assert not {"bwd/layer/attn_norm", "bwd/layer/mlp_norm"} & all_taken(backward)
    rings = loop(plain({"fsdp": 16}, seq_len=2048), "layers/d").body
    assert {"bwd/layer/attn_norm", "bwd/layer/mlp_norm"} <= all_taken(rings)


def test_what_a_loop_carries_has_one_buffer() -> None:
    """Of it, an iteration leaves the next one's; until it has read its own there are two."""
    body = plain({"data": 16}, remat="full")
    backward = loop(body, "layers/d").body
    assert "bwd/d(layer/layer_out)" in all_taken(body)
    assert {"d(layers_out)", "d(embedded)"}.isdisjoint(all_taken(body))
    taken_inside = [a.tensor for op in backward for a in getattr(op, "allocs", ())]
    freed_inside = [name for op in backward for name in getattr(op, "frees", ())]
    assert sorted(taken_inside) == sorted(freed_inside)


@pytest.mark.parametrize(
    ("remat", "attention", "held"), [("full", "flash", 1), ("none", "flash", 0), ("full", "dot", 0)]
)
def test_row_sums_of_a_kernel_that_runs_again_are_held_for_each_lane(
    remat: str, attention: str, held: int
) -> None:
    """Until the backward kernel: in f32, 128 times."""
    model = small(vocab=512, attention=attention, head_dim=128)
    backward = loop(plain({"data": 16}, model, remat=remat), "layers/d").body
    sums = [a for op in backward for a in getattr(op, "allocs", ()) if "row sums" in a.tensor]
    assert len(sums) == held
    for one in sums:
        output = next(a for op in backward for a in op.allocs if a.tensor == "bwd/layer/context")
        assert one.bytes == output.bytes / 2 / 128 * 128 * 4
        (last,) = freed_by(backward, one.tensor)
        order = [op.name for op in backward]
        assert order.index("bwd/layer/mlp_norm/d") < order.index(last)
        assert order.index(last) < order.index("bwd/layer/attention/d")


def beside_rotations(body: tuple[Op, ...]) -> dict[str, float]:
    """Return what the rotations of the forward pass hold beside their tensors."""
    layers = loop(body, "layers").body
    held = (a for op in layers for a in getattr(op, "allocs", ()))
    return {a.tensor: float(a.bytes) for a in held if "_rotary/" in a.tensor}


@pytest.mark.parametrize(("head_dim", "half"), [(64, 3), (128, 1), (256, 0)])
def test_a_rotation_beside_a_kernel_holds_its_operand_in_f32_and_two_halves(
    head_dim: int, half: int
) -> None:
    """Each half fills its lanes: one lies in the place of the operand."""
    model = small(attention="flash", heads=4, kv_heads=2, head_dim=head_dim)
    held = beside_rotations(plain({"data": 16}, model, seq_len=128))
    queries = 4 * 128 * 2 * head_dim
    assert held["layer/q_rotary/in f32"] == 2 * queries
    assert held["layer/q_rotary/other half"] == half * queries
    assert held["layer/k_rotary/in f32"] == queries


@pytest.mark.parametrize(("kv_heads", "together"), [(4, True), (2, False)])
def test_queries_and_keys_of_one_shape_are_rotated_together(kv_heads: int, together: bool) -> None:
    model = small(attention="flash", heads=4, kv_heads=kv_heads, head_dim=128)
    layers = loop(plain({"data": 16}, model), "layers").body
    (end,) = freed_by(layers, "layer/q_rotary/in f32")
    assert (end == "layer/k_rotary") is together


@pytest.mark.parametrize(
    ("attention", "rotary", "without"),
    [("dot", True, ()), ("flash", False, ()), ("flash", True, ("observed",))],
)
def test_no_rotation_beside_no_kernel_nor_without_what_was_observed(
    attention: str, rotary: bool, without: tuple[str, ...]
) -> None:
    model = small(attention=attention, rotary=rotary, head_dim=128)
    assert not beside_rotations(plain({"data": 16}, model, without_passes=without))


@pytest.mark.parametrize(("changes", "seq_len"), [({}, 16), ({"mlp_bias": False}, 128)], ids=str)
def test_a_larger_gradient_does_not_run_first_and_none_without_a_bias(
    changes: dict[str, bool], seq_len: int
) -> None:
    """A matrix of 64 x 256 is larger than 16 tokens of 256."""
    body = plain({"data": 16}, small(**(PLAIN_MLP | changes)), seq_len=seq_len)
    order = [op.name for op in loop(body, "layers/d").body]
    assert order.index("bwd/layer/wo_mlp/dw") > order.index("bwd/layer/wo_mlp/dx")


@pytest.mark.parametrize(("head_dim", "times"), [(64, 2), (128, 1), (256, 1)])
def test_kernels_have_the_elements_of_a_head_in_the_lanes(head_dim: int, times: int) -> None:
    """And stacks of what is saved, but not the queries that are copied into this layout."""
    model = small(attention="flash", heads=2, kv_heads=2, head_dim=head_dim)
    body = plain({"data": 16}, model, seq_len=128, save=["context", "q"])
    heads = 2 * 128 * 2 * head_dim
    layers = loop(body, "layers")
    assert taken(named(layers.body, "layer/attention")) == {"layer/context": times * heads}
    assert taken(named(layers.body, "layer/wq")) == {"layer/q": heads}
    stacks = {a.tensor: a.bytes for op in body for a in getattr(op, "allocs", ())}
    for name in ("q", "context"):
        assert stacks[f"layer/{name} x{layers.trips}"] == times * heads * layers.trips

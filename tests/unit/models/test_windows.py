"""Layers that see a window of the keys, in turn with layers that see all of them."""

from collections import Counter
from typing import Any

import pytest
from plans import holders, plan_of, small

from tpusim.base import ModelError, Phase
from tpusim.graph import Attention, Remat, Scan, model_flops, training_step, walk
from tpusim.hardware import Slice
from tpusim.results import PlanResult
from tpusim.simulation import simulate

SEQ, WINDOW = 64, 8


def kernels(**changes: int) -> list[Attention]:
    graph = small(**({"layers": 6} | changes)).graph(batch=1, seq_len=SEQ)
    return [op for op, _ in walk(graph.ops) if isinstance(op, Attention)]


def test_each_third_layer_sees_all_keys() -> None:
    windows = [op.window for op in kernels(window=WINDOW, global_every=3)]
    assert windows == [WINDOW, WINDOW, 0]


def test_without_global_layers_all_see_the_window() -> None:
    assert [op.window for op in kernels(window=WINDOW)] == [WINDOW]


def test_a_window_counts_its_keys_and_a_causal_layer_half_of_all() -> None:
    sizes = small(layers=6).graph(batch=1, seq_len=SEQ).sizes
    whole = 4 * SEQ * SEQ * 8 * 32
    local, _, everything = kernels(window=WINDOW, global_every=3)
    assert model_flops(local, sizes) == whole * WINDOW // SEQ
    assert model_flops(everything, sizes) == whole // 2


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    model = small(layers=6)
    windowed = small(layers=6, window=SEQ)
    plain, same = (m.graph(batch=1, seq_len=SEQ) for m in (model, windowed))
    assert plain == same


def test_patterns_do_not_change_the_parameters() -> None:
    assert (
        small(layers=6, window=8, global_every=3).parameter_count == small(layers=6).parameter_count
    )


def test_full_remat_saves_the_input_of_each_layer_of_a_pattern() -> None:
    model = small(layers=6, window=WINDOW, global_every=3)
    step = training_step(model.graph(batch=4, seq_len=SEQ), Remat("full"))
    forward = next(op for op in step.ops if isinstance(op, Scan))
    assert [tensor.name for tensor in forward.saves] == [
        "layer/1/layer_in", "layer/2/layer_in", "layer/layer_in",
    ]  # fmt: skip


def test_a_pattern_costs_what_its_layers_cost() -> None:
    """Between all windows and none, and folded as unfolded."""
    pod, plan = Slice("v5e", "4x4"), plan_of({"fsdp": 16}, seq_len=4096)
    times = [
        simulate(small(layers=6, heads=8, **w), plan, pod).step_time_s
        for w in ({"window": 64}, {"window": 64, "global_every": 3}, {})
    ]
    assert times == sorted(times)
    assert len(set(times)) == 3


REST = {"layers": 8, "window": WINDOW, "global_every": 3}


def test_layers_that_do_not_fill_the_last_pattern_see_the_window() -> None:
    """Eight in patterns of three: two patterns, and two local layers (Gemma 3 27B: 62 of 6)."""
    graph = small(**REST).graph(batch=1, seq_len=SEQ)
    scans = [(op.name, op.trips) for op in graph.ops if isinstance(op, Scan)]
    assert scans == [("layers", 2), ("last_layers", 2)]
    windows = [
        op.window for op, n in walk(graph.ops) if isinstance(op, Attention) for _ in range(n)
    ]
    assert Counter(windows) == {WINDOW: 6, 0: 2}
    assert small(**REST).parameter_count == small(layers=8).parameter_count


@pytest.mark.parametrize("remat", ["full", "minimal", "none"])
def test_what_is_left_costs_its_layers(remat: str) -> None:
    """With windows of all keys, eight layers in two scans are eight in one."""
    pod, plan = Slice("v5e", "4x4"), plan_of({"fsdp": 16}, seq_len=SEQ, remat=remat)
    whole = small(layers=8, head_dim=128)
    parts = whole.replace(window=SEQ, global_every=3)
    one, two = (simulate(m, plan, pod) for m in (whole, parts))
    assert two.flops == one.flops
    assert two.breakdown_s["matmul"] == pytest.approx(one.breakdown_s["matmul"], rel=1e-9)
    kept = ("weights", "optimizer state")
    assert [two.memory_bytes.get(k) for k in kept] == [one.memory_bytes.get(k) for k in kept]
    assert stacked(two) == stacked(one)


def stacked(result: PlanResult) -> float:
    """Bytes of what a step's loops save."""
    allocs = (alloc for op, _ in holders(result.program.body) for alloc in op.allocs)
    return sum(alloc.bytes for alloc in allocs if alloc.category == "saved activations")


def test_stacks_of_both_scans_are_given_back() -> None:
    program = simulate(
        small(**REST), plan_of({"fsdp": 16}, seq_len=SEQ), Slice("v5e", "4x4")
    ).program
    ops = [op for op, _ in holders(program.body)]
    taken = [alloc.tensor for op in ops for alloc in op.allocs if " x2" in alloc.tensor]
    freed = [name for op in ops for name in op.frees if " x2" in name]
    assert len([name for name in taken if "layer_in" in name]) == 4
    assert Counter(taken) == Counter(freed)


def test_fewer_layers_than_a_pattern_are_all_local() -> None:
    assert [op.window for op in kernels(layers=2, window=WINDOW, global_every=3)] == [WINDOW]


def test_each_layer_of_a_pattern_is_computed_again_right_before_its_backward_pass() -> None:
    model = small(layers=6, window=WINDOW, global_every=3)
    step = training_step(model.graph(batch=4, seq_len=SEQ), Remat("full"))
    body = next(op.body for op in step.ops if isinstance(op, Scan) and op.loads)
    order = dict.fromkeys((op.name.split("/")[1], op.phase) for op in body)
    assert [(layer, phase) for layer, phase in order if layer.isdigit()] == [
        (layer, phase) for layer in "210" for phase in (Phase.RECOMPUTE, Phase.BACKWARD)
    ]


def test_a_pattern_holds_the_activations_of_one_layer() -> None:
    pod, plan = Slice("v5e", "4x4"), plan_of({"data": 16}, seq_len=512)
    one, many = (
        simulate(small(layers=12, window=WINDOW, global_every=every), plan, pod).memory_bytes
        for every in (0, 6)
    )
    assert many["activations"] <= 1.25 * one["activations"]
    assert many["saved activations"] == one["saved activations"]


def test_layers_that_see_all_keys_have_heads_of_their_own() -> None:
    """Two projections of 4 heads of 64 in place of four of 8 x 32: K makes the values too."""
    model = small(
        layers=6, window=WINDOW, global_every=3, global_head_dim=64, global_kv_heads=4,
        global_keys_as_values=True,
    )  # fmt: skip
    plain = small(layers=6, window=WINDOW, global_every=3)
    embed, heads = plain.embed, plain.heads
    queries, keys = heads * 32, plain.kv_heads * 32
    each = embed * (2 * heads * 64 + 4 * 64) - embed * (2 * queries + 2 * keys)
    assert model.parameter_count - plain.parameter_count == 2 * each
    graph = model.graph(batch=1, seq_len=SEQ)
    kernels = [op for op, _ in walk(graph.ops) if isinstance(op, Attention)]
    assert [graph.sizes[op.inputs[0].dims[-1]] for op in kernels] == [32, 32, 64]
    assert model_flops(kernels[2], graph.sizes) == 4 * SEQ * SEQ * heads * 64 // 2


@pytest.mark.parametrize(
    "key", [{"global_head_dim": 64}, {"global_kv_heads": 2}, {"global_keys_as_values": True}]
)
@pytest.mark.parametrize("own", [{}, {"window": 8}])
def test_heads_of_global_layers_need_some(key: dict[str, int], own: dict[str, int]) -> None:
    (name,) = key
    with pytest.raises(
        ModelError, match=f"{name} is .*no layer differs.*write a window and global_every"
    ):
        small(layers=6, **own, **key)


def test_wide_layers_follow_the_others() -> None:
    """Three of five, with one matmul more in width each; and the rest as it was."""
    model = small(layers=5, wide_layers=3, wide_mlp=512)
    plain = small(layers=5)
    matrices = 3 if plain.gated else 2
    assert model.parameter_count - plain.parameter_count == 3 * matrices * plain.embed * (
        512 - plain.mlp
    )
    scans = [op for op in model.graph(batch=1, seq_len=SEQ).ops if isinstance(op, Scan)]
    assert [(op.name, op.trips) for op in scans] == [("layers", 2), ("wide_layers", 3)]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"wide_layers": 2}, "wide_layers is 2 and wide_mlp 0; write both"),
        ({"wide_mlp": 64}, "wide_layers is 0 and wide_mlp 64; write both"),
        ({"wide_layers": 7, "wide_mlp": 64}, "7, but the model has 6 layers; write 6 or less"),
        ({"wide_layers": 2, "wide_mlp": 64, "experts": 4, "experts_per_token": 2},
         "wide_layers is 2, but layers of experts have no wide MLP"),
        ({"logit_cap": -1.0}, "logit_cap is -1.0; it must be at least 0"),
        ({"logit_cap": "30"}, "logit_cap is '30'; it must be a number"),
        ({"logit_cap": float("nan")}, "logit_cap is nan; it must be at least 0 and finite"),
        ({"logit_cap": float("inf")}, "logit_cap is inf; it must be at least 0 and finite"),
        ({"window": 8, "global_every": 2, "global_kv_heads": 3},
         "8 heads cannot share 3 K/V heads evenly; write a global_kv_heads that divides 8"),
        ({"window": 8, "global_every": 2, "global_head_dim": 64, "kv_rank": 16, "rope_dim": 8},
         "with latent attention .* leave global_head_dim"),
    ],
)  # fmt: skip
def test_what_no_model_has_is_one_sentence(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        small(layers=6, **keys)


def test_a_layer_looks_tokens_up_in_a_table_of_its_own() -> None:
    """A table, three matrices of embed x 16 and norms of 16 and embed, in each of six layers."""
    model, plain = small(layers=6, layer_embed=16), small(layers=6)
    own = plain.vocab * 16 + 3 * plain.embed * 16 + 16 + plain.embed
    assert model.parameter_count - plain.parameter_count == 6 * own
    flops = sum(
        model_flops(op, graph.sizes) * trips
        for graph in [model.graph(batch=2, seq_len=SEQ)]
        for op, trips in walk(graph.ops)
        if "layer_embed" in op.name
    )
    assert flops == 6 * 3 * 2 * (2 * SEQ) * plain.embed * 16


def test_two_scans_may_add_up_gradients_of_one_tensor() -> None:
    """Layers and wide layers both read the embeddings of the tokens, twice in a pattern each."""
    model = small(
        layers=8, layer_embed=16, window=WINDOW, global_every=2, wide_layers=4, wide_mlp=64
    )
    step = training_step(model.graph(batch=2, seq_len=SEQ), Remat("full"))
    names = [op.name for op, _ in walk(step.ops)]
    assert [name for name in names if name.endswith("embedded/dsum")] == [
        "wide_layers/embedded/dsum", "layers/embedded/dsum", "embedded/dsum",
    ]  # fmt: skip


def test_a_cap_of_logits_costs_vector_work_alone() -> None:
    capped, plain = (small(logit_cap=cap).graph(batch=2, seq_len=SEQ) for cap in (30.0, 0.0))
    flops = [next(op.flops for op, _ in walk(g.ops) if op.name == "loss") for g in (capped, plain)]
    assert flops[0] - flops[1] == 10.0
    backward = [
        next(o.flops for o, _ in walk(training_step(g, Remat("full")).ops) if o.name == "loss/d")
        for g in (capped, plain)
    ]
    assert backward == [flops[1] + 13.0, flops[1]]
    assert [op.name for op in capped.ops] == [op.name for op in plain.ops]


def test_keys_that_are_the_values_have_the_gradients_of_both() -> None:
    """The kernel's copy reads one tensor twice, where queries and keys are not rotated."""
    model = small(
        layers=2, rotary=False, window=WINDOW, global_every=2, global_keys_as_values=True,
    )  # fmt: skip
    step = training_step(model.graph(batch=2, seq_len=SEQ), Remat("full"))
    ops = [op for op, _ in walk(step.ops) if op.name.endswith("layer/1/k/dsum")]
    assert [len({tensor.name for tensor in op.inputs}) for op in ops] == [2]

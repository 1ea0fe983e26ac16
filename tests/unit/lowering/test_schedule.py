"""The order of a body: prefetching gathers, merging reductions, gathering again."""

from collections import Counter
from functools import lru_cache
from itertools import pairwise

import pytest
from plans import (
    ENCODER_480B,
    MIB,
    PLAN_480B,
    any_program_of,
    calcs,
    comms,
    flat,
    loop,
    partitioned_of,
    payload,
    plan_of,
    program_of,
    sizes_of,
    small,
    v4_2048,
)

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.program import (
    AttentionWork,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Loop,
    MatmulWork,
    Mode,
    Program,
)

LM_32B = Transformer(
    layers=32, embed=8192, mlp=28672, heads=64, kv_heads=64, head_dim=128, vocab=32000
)


@lru_cache(maxsize=1)
def gathers_beside_matmuls() -> Program:
    """A 32-billion-parameter model on v5e 16x16, FSDP 256, as MaxText runs it."""
    plan = plan_of({"fsdp": 256}, seq_len=2048, global_batch=1024, style="maxtext")
    return program_of(LM_32B, plan, Slice("v5e", "16x16"))


def weight_gathers(body: tuple[object, ...]) -> list[Collective]:
    kind = CollectiveKind.ALL_GATHER
    return [op for op in body if isinstance(op, Collective) and op.kind is kind]


@pytest.mark.parametrize("name", ["layers", "layers/d"])
def test_only_the_first_gather_of_a_layer_is_synchronous(name: str) -> None:
    modes = [op.mode for op in weight_gathers(loop(gathers_beside_matmuls().body, name).body)]
    assert modes == [Mode.SYNC] + [Mode.ASYNC] * 6


@pytest.mark.parametrize("name", ["layers", "layers/d"])
def test_each_gather_runs_beside_the_matmul_before_its_own(name: str) -> None:
    """Depth one: it starts when the one before it is done, which is when that one's user starts."""
    body = loop(gathers_beside_matmuls().body, name).body
    found = weight_gathers(body)
    for before, gather in pairwise(found):
        assert Dep(before.name) in gather.deps
        user = body[body.index(gather) + 1]
        assert isinstance(user.work, MatmulWork)
        assert Dep(before.name) in user.deps
        assert Dep(gather.name) not in user.deps


def test_no_gather_crosses_the_boundary_of_a_layer() -> None:
    for name in ("layers", "layers/d"):
        body = loop(gathers_beside_matmuls().body, name).body
        assert not [dep for op in weight_gathers(body) for dep in op.deps if dep.distance]


def test_a_kernel_carries_no_gather() -> None:
    """The one that is under way is waited for before the kernel starts."""
    body = loop(gathers_beside_matmuls().body, "layers").body
    (kernel,) = (i for i, op in enumerate(body)
                 if isinstance(op, Compute) and isinstance(op.work, AttentionWork))  # fmt: skip
    under_way = weight_gathers(body[:kernel])[-1]
    assert under_way.mode is Mode.ASYNC
    assert Dep(under_way.name) in body[kernel].deps


def test_each_weight_is_gathered_twice_a_step_and_reduced_whole() -> None:
    """Forward, and once for remat and backward; 1856 MiB a layer, gradients likewise."""
    body = [loop(gathers_beside_matmuls().body, name).body for name in ("layers", "layers/d")]
    per_layer = 4 * 128 * MIB + 3 * 448 * MIB
    assert [sum(op.bytes for op in weight_gathers(b)) for b in body] == [per_layer] * 2
    reduced = [op for op in body[1] if isinstance(op, Collective) and op.kind != "all-gather"]
    assert {op.mode for op in reduced} == {Mode.SYNC}
    assert {op.algorithm or op.kind for op in reduced} == {"all-reduce"}
    scales = 2 * 2 * 8192
    assert sum(op.bytes for op in reduced) == per_layer + scales


def test_what_is_used_far_apart_is_gathered_again() -> None:
    """The 480-billion-parameter encoder gathers wq and wk twice in the backward pass, not wv."""
    body = loop(program_of(ENCODER_480B, PLAN_480B, v4_2048()).body, "layers/d").body
    gathers = weight_gathers(body)
    count = Counter(op.scope for op in gathers if op.axes == ("fsdp",))
    assert {name for name, n in count.items() if n == 2} == {"layer/wq", "layer/wk"}
    assert set(count.values()) == {1, 2}


def test_a_gathered_copy_is_given_back_before_it_is_gathered_again() -> None:
    body = loop(program_of(ENCODER_480B, PLAN_480B, v4_2048()).body, "layers/d").body
    first, second = (i for i, op in enumerate(body) if op.name.startswith("all-gather/bwd/layer/wq")
                     or op.name.startswith("all-gather/layer/wq"))  # fmt: skip
    taken = body[first].allocs[0].tensor
    freed = [i for i, op in enumerate(body) if taken in getattr(op, "frees", ())]
    assert first < freed[0] < second


def test_small_gradients_are_merged_at_the_end_of_a_layer() -> None:
    body = loop(program_of(ENCODER_480B, PLAN_480B, v4_2048()).body, "layers/d").body
    (merged,) = (
        op for op in body
        if isinstance(op, Collective) and op.axes == ("fsdp",) and op.kind == "all-reduce"
    )  # fmt: skip
    assert merged.name.endswith("(+3)")
    after = body[body.index(merged) + 1 :]
    assert after[-1].name == "stack/layers/d"
    assert all(isinstance(op, Collective) and not op.asked for op in after[:-1])


MESHES = [
    {"data": 64}, {"fsdp": 64}, {"data": 4, "fsdp": 16}, {"fsdp": 16, "tensor": 4},
    {"data": 4, "fsdp": 4, "tensor": 4},
]  # fmt: skip


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("rules", [{}, {"act_embed": "tensor"}], ids=["1-D", "2-D"])
@pytest.mark.parametrize("style", ["plain", "maxtext"])
def test_merging_and_scheduling_conserve_the_bytes(
    mesh: dict[str, int], rules: dict[str, str], style: str
) -> None:
    """What the program moves is what the structure asks for, and what is gathered again.

    Rings of n move n - 1 of n chunks of an activation, and n + 1 of a weight.
    """
    if "tensor" not in mesh and rules:
        mesh = mesh | {"tensor": 1}
    model = small(kv_heads=2, tied_embeddings=True)
    plan = plan_of(mesh, rules=rules, style=style, global_batch=64)
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    asked = Counter[tuple[str, ...]]()
    for comm, n in comms(partitioned):
        asked[comm.axes] += n * payload(comm, sizes)
    moved = Counter[tuple[str, ...]]()
    for op, n in flat(any_program_of(model, plan, Slice("v4", "4x4x4")).body):
        if isinstance(op, Collective) and op.scope != "gradient_norm" and " again" not in op.name:
            size = sizes.group(op.axes)
            chunks = size + 1 if op.algorithm in ("mesh order", "onward") else size - 1
            whole = size / chunks if op.kind is CollectiveKind.PERMUTE else 1
            moved[op.axes] += n * op.bytes * whole
    assert moved == pytest.approx(asked)


def test_no_operation_waits_for_one_that_is_not_in_its_program() -> None:
    for lowering in ("xla", "ideal"):
        plan = plan_of({"fsdp": 16, "tensor": 4}, lowering=lowering, rules={"act_embed": "tensor"})
        program = any_program_of(small(), plan, Slice("v4", "4x4x4"))
        names = [op.name for op, _ in flat(program.body)]
        assert len(names) == len(set(names))
        for op, _ in flat(program.body):
            assert {dep.op for dep in op.deps} <= set(names)


def test_a_trip_waits_for_what_the_trip_before_left() -> None:
    """The residual stream is carried forward, its gradient backward, from trip to trip.

    In their own loops, rings wait for their own permutes.
    """
    plan = plan_of({"fsdp": 4, "tensor": 4}, global_batch=256, seq_len=512)
    program = program_of(small(), plan, Slice("v4", "2x2x4"))
    carried = {"layers": "layer/layer_out", "layers/d": "bwd/layer/attn_norm/d"}
    for name, left in carried.items():
        body = loop(program.body, name).body
        rings = {op.name for ring in body if isinstance(ring, Loop) for op in ring.body}
        found = {dep for op, _ in flat(body) for dep in op.deps if dep.distance}
        deps = {dep for dep in found if dep.op not in rings}
        assert {dep.op.rpartition("/")[2] for dep in found - deps} == {"permute"}
        assert deps == {Dep(left, 1)}


def test_a_gradient_is_held_until_it_has_crossed() -> None:
    """Its ring takes it, and its crossing between the slices gives it back when it ends."""
    plan = plan_of(
        {"tensor": 16, "dcn_data": 2}, global_batch=64, remat="none", lowering="ideal",
        rules={"act_embed": "tensor", "embed": "tensor"},
    )  # fmt: skip
    program = program_of(small(heads=16, gated=True), plan, Slice("v5e", "4x4", 2))
    body = loop(program.body, "layers/d").body
    assert all(isinstance(op, Loop) for op in body[:2])
    key = "bwd/d(layer/wo_mlp)"
    takes = [op.name for op in body for alloc in op.allocs if alloc.tensor == key]
    gives = [op.name for op in body for name in op.frees if name == key]
    assert takes == ["bwd/layer/wo_mlp/dw/ring"]
    assert gives == [f"all-reduce/{key}@dcn_data"]


def test_element_wise_groups_run_in_the_epilogue_of_the_product_before_them() -> None:
    """An activation function and its gradient, but no norm, no softmax and no rotation."""
    partitioned = partitioned_of(small(), plan_of({"fsdp": 16}, remat="dots"))
    fused = {
        c.name: [group.name for group in c.epilogue] for c, _ in calcs(partitioned) if c.epilogue
    }
    assert fused["layer/wi_1"] == ["layer/silu"]
    assert fused["layer/wo"] == ["layer/mid"]
    assert fused["layer/wo_mlp"] == ["layer/layer_out"]
    assert fused["bwd/layer/wo_mlp/dx"] == ["layer/silu/d"]
    alone = {c.name for c, _ in calcs(partitioned)}
    assert {"layer/attn_norm", "layer/mlp_norm", "layer/q_rotary", "layer/k_rotary"} <= alone
    assert "layer/silu" not in alone


def test_an_activation_function_that_keeps_its_linearisation_stands_alone() -> None:
    """And its gradient does not."""
    partitioned = partitioned_of(small(), plan_of({"fsdp": 16}, remat="none"))
    found = {c.name: c for c, _ in calcs(partitioned)}
    assert found["layer/silu"].writes[0] == "layer/mlp_hidden"
    assert [group.name for group in found["bwd/layer/wo_mlp/dx"].epilogue] == ["layer/silu/d"]


def test_what_only_the_epilogue_reads_is_never_written() -> None:
    partitioned = partitioned_of(small(), plan_of({"fsdp": 16}))
    writes = {c.name: c.writes for c, _ in calcs(partitioned)}
    assert writes["layer/wi_1"] == ("layer/mlp_hidden",)
    assert writes["bwd/layer/wi_1"] == ("bwd/layer/mlp_in_1", "bwd/layer/mlp_hidden")


def gathers_of_experts(
    chip: str, style: str, seq_len: int = 4096, **way: float
) -> tuple[list[Collective], Loop]:
    """The gathers of experts' weights, and the layer: 8 experts, 4 x 4 chips, fsdp 4 x expert 4.

    With 256 tokens a device, a ring over 4 does not pay: compiled plan for v5e 4x4.
    """
    model = Transformer(
        layers=2, embed=4096, mlp=14336, heads=32, vocab=32000, experts=8, experts_per_token=2
    )
    plan = plan_of(
        {"fsdp": 4, "expert": 4}, seq_len=seq_len, global_batch=16, style=style, **way
    )  # fmt: skip
    layer = loop(any_program_of(model, plan, Slice(chip, "4x4")).body, "layers")
    return [op for op in weight_gathers(layer.body) if "expert_w" in op.scope], layer


AMONG_RINGS = pytest.mark.parametrize(
    ("chip", "style", "seq_len"), [("v6e", "maxtext", 4096), ("v5e", "plain", 256)]
)


@AMONG_RINGS
def test_gathers_of_experts_run_beside_what_comes_before_them(
    chip: str, style: str, seq_len: int
) -> None:
    """Also across the rings of other weights and the synchronous exchange of tokens."""
    (first, *others), layer = gathers_of_experts(chip, style, seq_len, capacity_factor=1.25)
    body = layer.body
    assert {op.mode for op in (first, *others)} == {Mode.ASYNC}
    exchanges = [op for op in body if getattr(op, "kind", "") == CollectiveKind.ALL_TO_ALL]
    assert {op.mode for op in exchanges} == {Mode.SYNC}
    (router,) = (i for i, op in enumerate(body) if op.name in ("layer/router", "layer/router/ring"))
    assert body.index(first) < router < body.index(exchanges[0]) < body.index(others[0])


@AMONG_RINGS
def test_the_first_gather_starts_with_the_layer_where_the_others_are_rings(
    chip: str, style: str, seq_len: int
) -> None:
    (first, *_), layer = gathers_of_experts(chip, style, seq_len, capacity_factor=1.25)
    assert layer.body[0] == first


def test_grouped_kernels_carry_no_gather() -> None:
    """Sorted experts, forward, on v5e 4x4: the first beside the routing, two between kernels."""
    found, layer = gathers_of_experts("v5e", "plain")
    assert [op.mode for op in found] == [Mode.ASYNC, Mode.SYNC, Mode.SYNC]
    for op in found[1:]:
        user = layer.body[layer.body.index(op) + 1]
        assert user.name == op.scope


def test_gradients_of_experts_are_reduced_whole_over_32_chips() -> None:
    """Layers of 8 experts on v6e 16x16, fsdp 32 x expert 8; over 4 chips a fused reduce-scatter.

    So it is where tokens are too few for rings, as 32 and 512 a device are here.
    """
    model = Transformer(
        layers=2, embed=4096, mlp=14336, heads=32, vocab=32000, experts=8, experts_per_token=2
    )
    found = {}
    for topology, mesh in (("4x4", {"fsdp": 4, "expert": 4}), ("16x16", {"fsdp": 32, "expert": 8})):
        plan = plan_of(mesh, seq_len=16, global_batch=512, capacity_factor=1.25)
        layer = loop(any_program_of(model, plan, Slice("v6e", topology)).body, "layers/d")
        found[topology] = {
            (op.algorithm or op.kind, op.mode, op.axes)
            for op in layer.body
            if isinstance(op, Collective) and op.scope.startswith("d(layer/expert_w")
        }
    assert found["4x4"] == {("reduce-scatter", Mode.SYNC, ("fsdp",))}
    assert found["16x16"] == {("all-reduce", Mode.SYNC, ("fsdp",))}

"""Weights that are updated in parts: moments, bytes on the wire, FLOPs, and what stays."""

from collections import Counter
from typing import Any

import pytest
from plans import any_program_of, flat, holders, partitioned_of, plan_of, sizes_of, small

from tpusim.base import Phase, PlanError
from tpusim.frames import MICROBATCHES
from tpusim.hardware import Slice
from tpusim.models import TextTower, Transformer, TwoTowers, VisionTransformer
from tpusim.partition import LocalShape
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, Loop, Program
from tpusim.simulation import simulate

MODEL = small(embed=1024, mlp=4096, heads=8, head_dim=128, vocab=2048)
MATRICES = 3 * (4 * 1024 * 1024 + 3 * 1024 * 4096) + 2 * 2048 * 1024
NORMS = (2 * 3 + 1) * 1024
WEIGHTS = MATRICES + NORMS
AR, RS, AG = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER,
)  # fmt: skip
MOMENTS = {"adam": 2, "lamb": 2, "momentum": 1, "lars": 1}
F32, BF16 = 4, 2


def plan(mesh: dict[str, int], **changes: Any) -> Plan:
    given = {"seq_len": 512, "global_batch": 512, "weight_update_axes": ["data"]}
    return Plan(mesh=mesh, **(given | changes))


def pod(mesh: Any) -> Slice:
    return Slice("v5p", "2x2x4", num_slices=mesh.get("dcn_data", 1))


def program(whole: Plan, model: Any = MODEL) -> Program:
    return any_program_of(model, whole, pod(whole.mesh))


def resident(made: Program, category: str) -> float:
    return sum(alloc.bytes for alloc in made.resident if alloc.category == category)


def moved(made: Program, phase: Phase) -> Counter[tuple[CollectiveKind, tuple[str, ...]]]:
    """Bytes of collectives of a phase, over the step, by kind and axes."""
    found: Counter[tuple[CollectiveKind, tuple[str, ...]]] = Counter()
    for op, times in flat(made.body):
        if isinstance(op, Collective) and op.phase is phase:
            found[op.kind, tuple(sorted(op.axes))] += int(op.bytes) * times
    return found


@pytest.mark.parametrize("optimizer", MOMENTS)
@pytest.mark.parametrize(
    ("mesh", "stored", "parts"),
    [
        ({"data": 16}, 1, 16),
        ({"data": 4, "fsdp": 4}, 4, 16),
        ({"data": 4, "tensor": 4}, 4, 16),
        ({"data": 2, "fsdp": 4, "tensor": 2}, 8, 16),
    ],
)
def test_moments_and_stored_weights_are_divided_by_the_replicas(
    mesh: dict[str, int], stored: int, parts: int, optimizer: str
) -> None:
    """Scales are sharded by no rule, and by the updates."""
    made = program(plan(mesh, optimizer=optimizer))
    whole = program(plan(mesh, optimizer=optimizer, weight_update_axes=[]))
    assert resident(whole, "weights") == F32 * (MATRICES / stored + NORMS)
    assert resident(made, "weights") == F32 * (MATRICES / parts + NORMS / mesh["data"])
    per_weight = MOMENTS[optimizer] * F32
    assert resident(whole, "optimizer state") == per_weight * (MATRICES / stored + NORMS)
    assert resident(made, "optimizer state") == per_weight * (
        MATRICES / parts + NORMS / mesh["data"]
    )


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("replicas", [2, 8, 16])
def test_gradients_are_scattered_and_weights_gathered(replicas: int, dtype: str) -> None:
    """In place of the all-reduce of the gradients, and in the compute dtype."""
    mesh = {"data": replicas, "tensor": 16 // replicas}
    whole = plan(mesh, dtype=dtype, lowering="ideal", without_passes=["merge-gradients"])
    made = program(whole)
    plain = program(whole.replace(weight_update_axes=[]))
    matrices = MATRICES * replicas // 16
    item = {"f32": F32, "bf16": BF16}[dtype]
    assert moved(plain, Phase.BACKWARD)[AR, ("data",)] == item * (matrices + NORMS)
    assert moved(made, Phase.BACKWARD)[RS, ("data",)] == item * (matrices + NORMS)
    assert (AR, ("data",)) not in moved(made, Phase.BACKWARD)
    assert moved(made, Phase.FORWARD)[AG, ("data",)] == item * (matrices + NORMS)
    assert (AG, ("data",)) not in moved(plain, Phase.FORWARD)


def test_with_fsdp_weights_are_gathered_over_the_replicas_only() -> None:
    mesh = {"data": 4, "fsdp": 4}
    whole = plan(mesh, lowering="ideal", without_passes=["merge-gradients"])
    made = program(whole)
    assert moved(made, Phase.FORWARD)[AG, ("data",)] == BF16 * (MATRICES // 4 + NORMS)
    found = moved(made, Phase.BACKWARD)
    assert found[RS, ("data", "fsdp")] == BF16 * MATRICES
    assert found[RS, ("data",)] + found[AR, ("fsdp",)] > 0
    assert resident(made, "weights") == F32 * (MATRICES / 16 + NORMS / 4)


@pytest.mark.parametrize("optimizer", [*MOMENTS, "sgd", "adafactor", "muon"])
@pytest.mark.parametrize(
    "mesh", [{"data": 16}, {"data": 4, "fsdp": 4}, {"data": 2, "fsdp": 4, "tensor": 2}]
)
def test_flops_are_those_of_whole_updates(mesh: dict[str, int], optimizer: str) -> None:
    """Of the model; the iterations of Muon are of other shapes where columns are divided."""
    parts, whole = (
        simulate(MODEL, plan(mesh, optimizer=optimizer, weight_update_axes=axes), pod(mesh))
        for axes in (["data"], [])
    )
    assert parts.flops.model == whole.flops.model
    assert parts.flops.recompute == whole.flops.recompute
    assert parts.flops.redundant == whole.flops.redundant
    kept = ("weights", "optimizer state", "gradients")
    held = [sum(one.memory_bytes.get(kind, 0) for kind in kept) for one in (parts, whole)]
    assert held[0] < held[1]


@pytest.mark.parametrize("mesh", [{"fsdp": 16}, {"fsdp": 8, "tensor": 2}, {"data": 1, "fsdp": 16}])
@pytest.mark.parametrize("lowering", ["xla", "ideal"])
def test_one_replica_has_the_program_of_whole_updates(mesh: dict[str, int], lowering: str) -> None:
    mesh = {"data": 1, **mesh}
    parts = plan(mesh, lowering=lowering)
    assert program(parts) == program(parts.replace(weight_update_axes=[]))


def test_axes_that_shard_a_weight_change_nothing() -> None:
    """Over `fsdp` only the scales of norms are replicated."""
    mesh = {"fsdp": 16}
    made = program(plan(mesh, weight_update_axes=["fsdp"]))
    assert resident(made, "optimizer state") == 2 * F32 * (MATRICES + NORMS) / 16
    gathers = [
        op for op, _ in flat(made.body)
        if isinstance(op, Collective) and "/whole@" in op.name
    ]  # fmt: skip
    assert {op.scope for op in gathers} == {
        "layer/attn_norm_scale", "layer/mlp_norm_scale", "final_norm_scale",
    }  # fmt: skip


@pytest.mark.parametrize("reduction", ["per-microbatch", "per-step"])
def test_microbatches_add_up_parts_unless_terms_are_left(reduction: str) -> None:
    mesh = {"data": 16}
    made = program(plan(mesh, microbatches=4, gradient_reduction=reduction))
    allocs = [alloc for op, _ in holders(made.body) for alloc in op.allocs]
    held = sum(a.bytes for a in allocs if a.category == "gradient accumulators")
    late = reduction == "per-step"
    first = BF16 * WEIGHTS * (1 if late else 1 / 16)
    after = BF16 * WEIGHTS / 16 if late else 0
    assert held in (first, first + after)
    assert resident(made, "optimizer state") == 2 * F32 * WEIGHTS / 16
    (loop,) = (op for op in made.body if isinstance(op, Loop) and op.name == MICROBATCHES)
    inside = [op for op, _ in flat(loop.body) if isinstance(op, Collective)]
    assert bool(inside) is not late


def test_slices_have_parts_too() -> None:
    mesh = {"data": 16, "dcn_data": 2}
    both = plan(mesh, weight_update_axes=["data", "dcn_data"])
    within = plan(mesh)
    state = 2 * F32 * WEIGHTS
    assert resident(program(both), "optimizer state") == state / 32
    assert resident(program(within), "optimizer state") == state / 16
    gathered = moved(program(both), Phase.FORWARD)
    assert gathered[AG, ("data",)] == BF16 * WEIGHTS
    assert gathered[AG, ("dcn_data",)] == BF16 * WEIGHTS // 16
    assert (AG, ("dcn_data",)) not in moved(program(within), Phase.FORWARD)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
@pytest.mark.parametrize(
    ("mesh", "sharded"), [({"data": 16}, {("data",)}), ({"data": 4, "fsdp": 4}, None)]
)
def test_rates_take_two_sums_of_each_weight(
    mesh: dict[str, int], sharded: set[tuple[str, ...]] | None, optimizer: str
) -> None:
    """One all-reduce for all weights that the same axes divide, of two numbers for each layer."""
    made = program(plan(mesh, optimizer=optimizer))
    sums = [
        op for op, _ in flat(made.body) if isinstance(op, Collective) and op.scope == "rates"
    ]  # fmt: skip
    if sharded is not None:
        assert {op.axes for op in sums} == sharded
    copies = 3 * (4 + 3 + 2) + 3
    assert sum(op.bytes for op in sums) == F32 * 2 * copies
    names = [op.name for op, _ in flat(made.body)]
    last = max(names.index(op.name) for op in sums)
    assert last < min(names.index(name) for name in names if name.startswith("update/"))
    alone = program(plan({"data": 16}, optimizer=optimizer, weight_update_axes=[]))
    assert not [op for op, _ in flat(alone.body) if getattr(op, "scope", "") == "rates"]


def test_frozen_weights_have_no_update_and_no_gather() -> None:
    image = VisionTransformer(
        layers=2, embed=64, mlp=256, heads=4, patch=8, image=32, classes=16
    )  # fmt: skip
    text = TextTower(layers=2, embed=64, mlp=256, heads=4, vocab=256, length=8)
    model = TwoTowers(image=image, text=text, shared=32, frozen="image")
    made = program(plan({"data": 16}, seq_len=0, global_batch=64), model)
    gathered = {
        op.scope for op, _ in flat(made.body)
        if isinstance(op, Collective) and "/whole@" in op.name
    }  # fmt: skip
    assert gathered
    assert not [name for name in gathered if name.startswith("image/")]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "circular"])
def test_stages_update_their_parts(schedule: str) -> None:
    mesh = {"stage": 2, "data": 8}
    model = small(embed=1024, mlp=4096, heads=8, head_dim=128, vocab=2048, layers=4)
    whole = plan(mesh, microbatches=4, schedule=schedule)
    for changes in ({}, {"tied_embeddings": True}):
        own = Transformer(**{**model.flat(), **changes})
        parts, plain = (
            simulate(own, whole.replace(weight_update_axes=axes), pod(mesh))
            for axes in (["data"], [])
        )
        states = [
            sum(a.bytes for a in one.programs[0].resident if a.category == "optimizer state")
            for one in (parts, plain)
        ]
        assert states[1] == 8 * states[0]
        assert parts.flops.model == plain.flops.model


def test_a_weight_that_no_axis_divides_is_updated_whole() -> None:
    """Of 12 over 16 devices; of 24 x 36 over 4 x 3 the axes divide one dimension each."""
    model = small(embed=96, mlp=100, heads=4, head_dim=24, vocab=250)
    made = partitioned_of(model, plan_of({"data": 16}, weight_update_axes=["data"]))
    updated = {weight.name: weight.updated.layout for weight in made.weights}
    assert updated["layer/wi_0"] == (("data",), ())
    assert updated["layer/wq"] == (("data",), (), ())
    assert updated["layer/attn_norm_scale"] == (("data",),)
    odd = small(embed=90, mlp=100, heads=6, head_dim=15, vocab=250)
    made = partitioned_of(odd, plan_of({"data": 16}, weight_update_axes=["data"]))
    assert all(weight.update is None for weight in made.weights)


def test_a_sharded_dimension_is_divided_further() -> None:
    whole = plan({"data": 4, "fsdp": 4})
    made = partitioned_of(MODEL, whole)
    sizes = sizes_of(MODEL, whole)
    for weight in made.weights:
        assert sizes.elements(weight.updated) * 4 == sizes.elements(weight.local)
    (down,) = (weight for weight in made.weights if weight.name == "layer/wo_mlp")
    assert down.updated == LocalShape(("mlp", "embed"), ((), ("fsdp", "data")))


def test_updates_read_and_write_parts() -> None:
    """Adam reads weight and moments in f32 and the gradient in bf16, and writes the former."""
    made = program(plan({"data": 16}))
    (update,) = (
        op for op, _ in flat(made.body) if isinstance(op, Compute) and op.name == "update/head"
    )
    elements = 2048 * 1024 / 16
    assert update.work.read_bytes == elements * (3 * F32 + BF16)
    assert update.work.write_bytes == elements * 3 * F32


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"weight_update_axes": ["dat"]},
         "plan.weight_update_axes divides updates over 'dat', which is no axis of the mesh"),
        ({"weight_update_axes": "data"},
         "plan.weight_update_axes is 'data'; write a list of names, such as \\[\"data\"\\]"),
        ({"weight_update_axes": ["data", "data"]},
         "plan.weight_update_axes lists 'data' twice; write each name once"),
        ({"weight_update_axes": ["stage"], "mesh": {"data": 8, "stage": 2}, "microbatches": 4},
         "plan.weight_update_axes lists 'stage', but each stage has weights of its own; write"),
        ({"optimizer": "lamb", "offload_optimizer": True},
         "rates need the moments of all weights before the first update; write 'adam', or keep"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(keys: dict[str, Any], sentence: str) -> None:
    mesh = keys.pop("mesh", {"data": 16}) if "mesh" in keys else {"data": 16}
    with pytest.raises(PlanError, match=sentence):
        simulate(MODEL, plan(mesh, **keys), pod(mesh))


@pytest.mark.parametrize("mesh", [{"data": 1, "fsdp": 16}, {"fsdp": 8, "data": 2}])
def test_axes_that_divide_no_update_are_noted(mesh: dict[str, int]) -> None:
    """They are of size one, or shard all weights already."""
    rules = {"embed": ["fsdp", "data"], "norm": ["fsdp", "data"]}
    whole = plan(mesh, rules=rules)
    note = "plan.weight_update_axes is not used, as it divides no weight further"
    assert note in str(simulate(MODEL, whole, pod(mesh))).replace("\n            ", " ")
    assert "weight_update_axes" not in str(simulate(MODEL, plan({"data": 16}), pod(mesh)))

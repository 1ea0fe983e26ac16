"""Gradients that devices add up over all microbatches before they are reduced (`per-step`)."""

import random
from collections import Counter
from typing import Any

import pytest
from extent import examples, sample, seeds
from hypothesis import given
from hypothesis import strategies as st
from lowered import collective_bytes
from plans import (
    any_program_of,
    comms,
    flat,
    graph_of,
    holders,
    partitioned_of,
    plan_of,
    sizes_of,
    small,
)
from steps import planned_step
from test_any_plan import PODS, SEVERAL, obeys_folded_and_not, random_model, random_plan
from test_partition_memory import run as run_memory

from tpusim.base import Phase, PlanError, TpusimError
from tpusim.export.plan_to_jax import check_sayable
from tpusim.frames import MICROBATCHES, asked_place, choices_of
from tpusim.hardware import Slice, placements
from tpusim.models import Transformer
from tpusim.partition import PartitionedGraph, Purpose, Sizes, late_reductions
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, Loop, Op, Program
from tpusim.results.unused_keys import unused_keys
from tpusim.simulation import simulate

MODEL = small(embed=1024, mlp=4096, heads=8, head_dim=128, vocab=2048)
"""With no more rows than a device has tokens in a microbatch, so that its table is gathered."""
MATRICES = 3 * (4 * 1024 * 1024 + 3 * 1024 * 4096) + 2 * 2048 * 1024
NORMS = (2 * 3 + 1) * 1024
AR, RS, AG = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER,
)  # fmt: skip
Moved = Counter[tuple[CollectiveKind, tuple[str, ...]]]


def plan(mesh: dict[str, int], count: int = 4, **changes: Any) -> Plan:
    given = {"seq_len": 512, "global_batch": 512, "microbatches": count}
    return Plan(mesh=mesh, **(given | {"gradient_reduction": "per-step"} | changes))


def pod(mesh: dict[str, int]) -> Slice:
    return Slice("v5p", "2x2x4", num_slices=mesh.get("dcn_data", 1))


def program(whole: Plan, model: Transformer = MODEL) -> Program:
    return any_program_of(model, whole, pod(dict(whole.mesh)))


def reductions(made: Program) -> Moved:
    """Bytes of the collectives of gradients, over the whole step."""
    found: Moved = Counter()
    for op, times in flat(made.body):
        if isinstance(op, Collective) and _is_of_gradient(op):
            found[op.kind, op.axes] += int(op.bytes) * times
    return found


def _is_of_gradient(op: Collective) -> bool:
    own = ("d(layer/w", "d(layer/attn_norm_s", "d(layer/mlp_norm_s", "d(final_norm_s", "d(head",
           "d(embedding")  # fmt: skip
    return op.phase is Phase.BACKWARD and op.scope.startswith(own)


def taken(made: Program, category: str) -> float:
    allocs = (alloc for op, _ in holders(made.body) for alloc in op.allocs)
    return float(sum(alloc.bytes for alloc in allocs if alloc.category == category))


@pytest.mark.parametrize("accumulator", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("mesh", "expected", "held"),
    [
        ({"data": 16}, {(AR, ("data",)): MATRICES + NORMS}, MATRICES + NORMS),
        ({"fsdp": 16}, {(RS, ("fsdp",)): MATRICES, (AR, ("fsdp",)): NORMS}, MATRICES + NORMS),
        ({"data": 4, "tensor": 4}, {(AR, ("data",)): MATRICES // 4 + NORMS}, MATRICES // 4 + NORMS),
        ({"data": 4, "fsdp": 4},
         {(RS, ("fsdp",)): MATRICES, (AR, ("data",)): MATRICES // 4,
          (AR, ("data", "fsdp")): NORMS},
         MATRICES + NORMS),
        ({"fsdp": 16, "dcn_data": 2},
         {(RS, ("fsdp",)): MATRICES + NORMS, (AR, ("dcn_data",)): (MATRICES + NORMS) // 16,
          (AG, ("fsdp",)): NORMS},
         MATRICES + NORMS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [2, 8])
def test_each_gradient_is_reduced_once_and_held_as_its_matmul_leaves_it(
    count: int,
    mesh: dict[str, int],
    expected: dict[tuple[CollectiveKind, tuple[str, ...]], int],
    held: int,
    accumulator: str,
) -> None:
    """In the accumulators' dtype: whole where weights are gathered, a shard over `tensor`."""
    item = {"bf16": 2, "f32": 4}[accumulator]
    without = ["merge-gradients"]
    made = program(plan(mesh, count, accumulator_dtype=accumulator, without_passes=without))
    assert merged(reductions(made)) == {key: item * n for key, n in merged(expected).items()}
    assert taken(made, "gradient accumulators") == item * held


def merged(moved: Any) -> Moved:
    """The same with axes in alphabetical order."""
    found: Moved = Counter()
    for (kind, axes), nbytes in moved.items():
        found[kind, tuple(sorted(axes))] += nbytes
    return found


@pytest.mark.parametrize("mesh", [{"data": 16}, {"data": 4, "tensor": 4}])
def test_a_microbatch_reduces_nothing_of_a_weight(mesh: dict[str, int]) -> None:
    """What the default reduces in each of n microbatches is n times what is reduced here."""
    late, each = program(plan(mesh)), program(plan(mesh, gradient_reduction="per-microbatch"))
    assert {key: 4 * n for key, n in reductions(late).items()} == reductions(each)
    (loop,) = (op for op in late.body if isinstance(op, Loop) and op.name == MICROBATCHES)
    assert not [op for op, _ in flat(loop.body) if isinstance(op, Collective)
                and _is_of_gradient(op)]  # fmt: skip


@pytest.mark.parametrize("lowering", ["xla", "ideal"])
@pytest.mark.parametrize("mesh", [{"data": 16}, {"fsdp": 4, "tensor": 4}, {"fsdp": 16}])
def test_one_microbatch_has_the_program_of_the_default(mesh: dict[str, int], lowering: str) -> None:
    once = plan(mesh, 1, lowering=lowering)
    assert program(once) == program(once.replace(gradient_reduction="per-microbatch"))


def test_the_reductions_wait_for_the_last_addition_and_the_optimizer_for_them() -> None:
    made = program(plan({"data": 16}))
    names = [op.name for op in made.body]
    (wq,) = (op for op in made.body if isinstance(op, Collective) and op.scope == "d(layer/wq)")
    assert names.index(MICROBATCHES) < names.index(wq.name) < names.index("gradient_norm")
    assert [dep.op for dep in wq.deps] == ["accumulate/layer/wq"]
    (update,) = (op for op in made.body if op.name == "update/layer/wq")
    assert isinstance(update, Compute)
    assert wq.name in [dep.op for dep in update.deps]


def test_an_all_reduce_of_an_accumulator_writes_over_it_and_a_scatter_frees_it() -> None:
    for mesh, gradients in (({"data": 16}, 0), ({"fsdp": 16}, 3 * 4 * 1024 * 1024 * 2 // 16)):
        made = program(plan(mesh))
        ops = [op for op in made.body if isinstance(op, Collective)]
        attention = [op for op in ops if op.scope[8:] in ("wq)", "wk)", "wv)", "wo)")]
        assert len(attention) == 4
        assert sum(alloc.bytes for op in attention for alloc in op.allocs) == gradients
        freed = {name for op in attention for name in op.frees}
        assert len(freed) == (4 if gradients else 0)


def test_slices_exchange_gradients_once_a_step() -> None:
    """The step of four microbatches then sends as much over DCN as that of one."""
    mesh = {"fsdp": 16, "dcn_data": 2}
    across = {
        key: sum(n for (_, axes), n in reductions(program(given)).items() if axes == ("dcn_data",))
        for key, given in {
            "late": plan(mesh), "one": plan(mesh, 1),
            "each": plan(mesh, gradient_reduction="per-microbatch"),
        }.items()
    }  # fmt: skip
    assert across["late"] == across["one"] == across["each"] / 4
    names = [op.name for op in program(plan(mesh)).body]
    assert names.count("slices") == 1
    assert names.index("slices") > names.index("all-reduce/layer/wq/accumulator@fsdp@dcn_data")


def moved_by(partitioned: PartitionedGraph, sizes: Sizes) -> Moved:
    """Elements of gradients that a partitioned graph moves."""
    found: Moved = Counter()
    for node, times in comms(partitioned):
        if node.purpose is Purpose.GRADIENT:
            elements = float(collective_bytes(node, sizes)) / sizes.itemsize(node.dtype)
            found[node.kind, node.axes] += int(elements) * times
    return found


@pytest.mark.parametrize("seed", seeds(150, default=25))
def test_any_plan_reduces_once_what_each_microbatch_would(seed: int) -> None:
    """The two terms of a tied embedding are added before they are reduced, so they move less."""
    rng = random.Random(seed)
    slices = Slice(*rng.choice((*PODS, *SEVERAL)))
    model, some = random_model(rng), random_plan(rng, slices)
    each = some.replace(microbatches=2, global_batch=2 * some.microbatch)
    late = each.replace(gradient_reduction="per-step")
    try:
        before, after = partitioned_of(model, each), partitioned_of(model, late)
    except TpusimError:
        return
    sizes = sizes_of(model, each)
    assert moved_by(after, sizes) == {}
    names = {weight.name: weight.name for weight in after.weights}
    made = late_reductions(after.weights, names, "bf16", sizes)
    once, usual = moved_by(made.graph, made.sizes), moved_by(before, sizes)
    assert once <= usual if model.tied_embeddings else once == usual


@pytest.mark.parametrize("seed", seeds(40, default=6))
def test_a_random_plan_obeys_the_laws(seed: int) -> None:
    rng = random.Random(seed)
    slices = Slice(*rng.choice((*PODS[:7], *SEVERAL)))
    model, some = random_model(rng), random_plan(rng, slices)
    late = some.replace(
        microbatches=3, global_batch=3 * some.microbatch, gradient_reduction="per-step",
        accumulator_dtype=rng.choice(["", "bf16", "f32"]),
    )  # fmt: skip
    obeys_folded_and_not(model, late, slices)


KINDS = {
    "tied": small(tied_embeddings=True),
    "experts": small(experts=4, experts_per_token=2, expert_mlp=128, dense_layers=1, shared_mlp=64),
    "latent": small(kv_heads=8, kv_rank=32, q_rank=48, rope_dim=8),
}
WAYS: dict[str, dict[str, Any]] = {
    "tiles of the loss": {"vocab_tiles": 4},
    "Muon": {"optimizer": "muon"},
    "blocks of the vocabulary": {"vocab_blocks": 4},
    "sorted experts": {"dispatch": "sort", "capacity_factor": 1.0},
    "f32 sums": {"accumulator_dtype": "f32", "grad_dtype": "bf16"},
}


@examples(40)
@given(
    model=st.sampled_from(sorted(KINDS)), way=st.sampled_from(sorted(WAYS)),
    mesh=st.sampled_from([
        {"data": 16}, {"fsdp": 16}, {"data": 2, "fsdp": 2, "tensor": 4}, {"expert": 4, "fsdp": 4},
        {"fsdp": 8, "context": 2},
    ]),
    remat=st.sampled_from(["full", "minimal", "none"]),
    style=st.sampled_from(["plain", "maxtext"]),
)  # fmt: skip
def test_what_is_held_is_given_back_and_the_flops_are_the_same(
    model: str, way: str, mesh: dict[str, int], remat: str, style: str
) -> None:
    given = {"remat": remat, "style": style, "microbatches": 2, **WAYS[way]}
    each = plan_of(mesh, **{"seq_len": 128, "global_batch": 64, **given})
    late = each.replace(gradient_reduction="per-step")
    try:
        made = simulate(KINDS[model], late, pod(mesh))
    except TpusimError:
        with pytest.raises(TpusimError):
            simulate(KINDS[model], each, pod(mesh))
        return
    held: dict[str, float] = {}
    assert run_memory(made.program.body, held) > 0
    assert held == {}
    assert made.flops == simulate(KINDS[model], each, pod(mesh)).flops
    assert moved_by(partitioned_of(KINDS[model], late), sizes_of(KINDS[model], late)) == {}


SCHEDULES: tuple[dict[str, Any], ...] = (
    {"schedule": "1f1b"}, {"schedule": "gpipe"}, {"schedule": "zb-h1"},
    {"schedule": "interleaved", "virtual_stages": 2}, {"schedule": "circular"},
    {"schedule": "circular", "virtual_stages": 2},
)  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("keys", sample(SCHEDULES, 3))
@pytest.mark.parametrize("mesh", [{"data": 8, "stage": 2}, {"fsdp": 8, "stage": 2}])
def test_stages_reduce_their_gradients_after_their_last_microbatch(
    mesh: dict[str, int], keys: dict[str, Any], tied: bool
) -> None:
    """The layers move as much as in a step of one stage: each stage has half of them.

    The bubbles of a circular pipeline reduce nothing either.
    """
    model = small(layers=4, embed=1024, heads=8, head_dim=128, tied_embeddings=tied)
    late = plan(mesh, global_batch=128, seq_len=128, without_passes=["merge-gradients"], **keys)
    result = simulate(model, late, pod(mesh))
    each = simulate(model, late.replace(gradient_reduction="per-microbatch"), pod(mesh))
    assert result.flops == each.flops
    assert result.step_time_s < each.step_time_s
    layer = 4 * 1024 * 1024 + 3 * 1024 * 256
    kind, axis = (AR, "data") if "data" in mesh else (RS, "fsdp")
    for made in result.programs:
        found = [
            op
            for op in ops_of(made)
            if isinstance(op, Collective)
            and op.kind is kind
            and op.axes == (axis,)
            and op.scope.startswith("d(layer/w")
        ]
        assert sum(op.bytes for op in found) == 2 * layer * 2


def ops_of(made: Program) -> list[Op]:
    """Every operation of a program once, those of its loops too."""
    bodies = [made.body, *(segment.body for segment in made.segments)]
    return [op for body in bodies for op, _ in flat(tuple(o for o in body if not is_call(o)))]


def is_call(op: object) -> bool:
    return type(op).__name__ == "Call"


@pytest.mark.parametrize("mesh", [{"data": 16}, {"data": 8, "stage": 2}])
def test_placements_are_told_apart_by_the_axes_of_the_late_reductions(mesh: dict[str, int]) -> None:
    """No other collective is over `data`."""
    step = planned_step(MODEL.replace(layers=4), plan(mesh), pod(mesh))
    place = asked_place(step.pod, placements(step.pod, mesh)[0], choices_of(step.plan))
    step.lower(place)
    assert {axes for axes, _ in place.answers.lowerings} == {("data",)}


def test_a_key_that_changes_nothing_is_listed() -> None:
    sentence = "plan.gradient_reduction is not used, as there is one microbatch"
    assert sentence in unused_keys(MODEL, plan({"data": 16}, 1))
    assert sentence not in unused_keys(MODEL, plan({"data": 16}, 2))
    assert "gradients reduced per step" in str(plan({"data": 16}))
    assert "reduced" not in str(plan({"data": 16}, gradient_reduction="per-microbatch"))


def test_other_words_and_twins_are_refused() -> None:
    with pytest.raises(PlanError) as word:
        plan({"data": 16}, gradient_reduction="once")
    assert str(word.value) == (
        "plan.gradient_reduction is 'once': valid are per-microbatch, per-step"
    )
    check_sayable(plan({"data": 16}, 1))
    with pytest.raises(PlanError) as said:
        check_sayable(plan({"data": 16}))
    assert str(said.value) == (
        "plan.gradient_reduction is 'per-step', which tpusim cannot write as JAX yet; write "
        "'per-microbatch', as the compiler reduces in each"
    )


def test_a_graph_is_partitioned_apart_for_either() -> None:
    each = plan({"data": 16}, gradient_reduction="per-microbatch")
    graphs = [partitioned_of(MODEL, each.replace(gradient_reduction=how))
              for how in ("per-microbatch", "per-step", "per-microbatch")]  # fmt: skip
    assert graphs[0].nodes == graphs[2].nodes != graphs[1].nodes
    assert graph_of(MODEL, each) is graph_of(MODEL, each.replace(gradient_reduction="per-step"))

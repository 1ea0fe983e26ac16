"""Microbatches: the same step in parts, one after the other, and what that costs and saves."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from accounts import total_flops
from extent import examples, thorough
from hypothesis import given
from hypothesis import strategies as st
from plans import (
    any_program_of,
    flat,
    graph_of,
    holders,
    loop,
    partitioned_of,
    plan_of,
    sizes_of,
    small,
)
from steps import partitioned_graph
from test_partition_memory import run as run_memory

from tpusim.base import PlanError
from tpusim.frames import MICROBATCHES
from tpusim.hardware import Chip, Slice, load_chip
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, Loop, Op, Program, TopOp, Transfer
from tpusim.report import timeline_data
from tpusim.report.figures.time_windows import TimeWindow
from tpusim.results import Result
from tpusim.simulation import simulate

COUNTS = (2, 4, 8)
MODEL = small(embed=1024, mlp=4096, heads=8, head_dim=128, vocab=32000)
GATHERED = replace(MODEL, vocab=2048)
"""With no more rows than a device has tokens in any microbatch, so that its table is gathered."""
FREE = load_chip("v5p").replace(
    ici_bandwidth=1e18, hop_latency=0.0, collective_launch=0.0, dcn_bandwidth=1e18, dcn_latency=0.0
)
MESHES = ({"fsdp": 16}, {"data": 4, "fsdp": 4}, {"fsdp": 4, "tensor": 4})


def pod(chip: Chip | str = FREE, slices: int = 1) -> Slice:
    return Slice(chip, "2x2x4", slices)


def plan(mesh: dict[str, int], count: int = 1, **changes: Any) -> Plan:
    given = {"seq_len": 512, "global_batch": 512, "microbatches": count}
    return Plan(mesh=mesh, **(given | changes))


def of_one(whole: Plan) -> Plan:
    """The plan of a step with no more than one of its microbatches."""
    return replace(whole, microbatches=1, global_batch=whole.microbatch)


@cache
def step(
    fsdp: int, count: int, free: bool = True, lowering: str = "xla", vocab: int = MODEL.vocab
) -> Result:
    mesh = {"data": 16 // fsdp, "fsdp": fsdp}
    chosen = pod(FREE if free else "v5p")
    return simulate(replace(MODEL, vocab=vocab), plan(mesh, count, lowering=lowering), chosen)


def named(body: tuple[Op, ...], prefix: str) -> list[Compute]:
    return [op for op in body if isinstance(op, Compute) and op.name.startswith(prefix)]


def without_casts(op: TopOp, late: Collection[str] = ()) -> TopOp:
    """The operation without what it allocates and frees of cast weights and the loss's value.

    late: whole gradients, which it does not free either.
    """
    value = "loss/value"
    given = [a for a in getattr(op, "allocs", ()) if a.category != "cast weights"]
    taken = [name for name in getattr(op, "frees", ()) if not name.endswith("/cast")]
    allocs = tuple(alloc for alloc in given if alloc.tensor != value)
    frees = tuple(name for name in taken if name != value and name not in late)
    return replace(op, allocs=allocs, frees=frees) if hasattr(op, "allocs") else op


@pytest.mark.parametrize("mesh", MESHES)
def test_the_loop_runs_the_program_of_one_microbatch(mesh: dict[str, int]) -> None:
    """What is before and after it is there once; who frees gradients and cast weights differs.

    The next microbatch reads cast weights again. The whole gradient that an all-reduce over all
    axes sums is sliced by the optimizer where it comes next, and is held until then; where it is
    added to an accumulator it is sliced at once (2 of 2 programs of microbatches).
    """
    whole = plan(mesh, 4)
    one = any_program_of(MODEL, of_one(whole), pod()).body
    many = any_program_of(MODEL, whole, pod()).body
    batch, cast, zeros, repeated, *updates = many
    assert isinstance(repeated, Loop)
    additions = named(repeated.body, "accumulate/")
    assert (repeated.name, repeated.trips) == (MICROBATCHES, 4)
    before = [op.name for op in one].index("gradient_norm")
    assert isinstance(batch, Transfer)
    part = replace(batch, bytes=batch.bytes / 4)
    body = (part, cast, *repeated.body[: -len(additions)])
    (*_, last) = one[:before]
    late = [name for name in last.frees if name == "d(embedding)"]
    assert late == (["d(embedding)"] if mesh == {"data": 4, "fsdp": 4} else [])
    assert [op.name for op in body if late and late[0] in op.frees] == [
        f"all-reduce/{name}@fsdp@data" for name in late
    ]
    assert [without_casts(op, late) for op in body] == [
        without_casts(op, late) for op in one[:before]
    ]
    assert [op.work for op in named(tuple(updates), "update/")] == [
        op.work for op in named(one, "update/")
    ]
    assert [op.frees for op in additions] == [op.frees[:1] for op in named(one, "update/")]
    assert zeros.name == "zero_accumulators"


@pytest.mark.parametrize("lowering", ["xla", thorough("ideal")])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("fsdp", [thorough(1), 16])
def test_a_step_takes_k_times_forward_and_backward_of_one(
    fsdp: int, count: int, free: bool, lowering: str
) -> None:
    """And one optimizer step, k additions (read two, write one) and one filling with zeros.

    Of a table that no microbatch copies into the order of rows and back, as steps of one do (none
    of 2 programs of microbatches).
    """
    whole = step(fsdp, count, free, lowering, GATHERED.vocab)
    straight = replace(of_one(whole.plan), without_passes=["turn-tables"])
    one = simulate(GATHERED, straight, whole.pod, placement=whole.placement)
    device = whole.pod.chip.device
    graph = graph_of(GATHERED, whole.plan)
    params, weights = graph.parameter_count, len(graph.parameters)
    norms = (2 * GATHERED.layers + 1) * GATHERED.embed
    local = (params - norms) / fsdp + norms
    rate = device.hbm_bandwidth * device.costs.hbm_efficiency
    add_s = 2 * local * 3 / rate + weights * device.costs.vector_launch
    fill_s = 2 * local / rate + device.costs.vector_launch
    (cast,) = [t for t in one.timeline.tasks if t.name == "cast_weights"]
    phases = one.phases_s
    once = phases["optimizer"] + cast.duration_ps * 1e-12
    expected = once + count * (one.step_time_s - once + add_s) + fill_s
    assert whole.step_time_s == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("count", COUNTS)
def test_the_work_is_the_same(mesh: dict[str, int], count: int) -> None:
    one, many = (simulate(MODEL, plan(mesh, k), pod()) for k in (1, count))
    assert many.flops == one.flops
    assert many.tokens == one.tokens == 512 * 512


@pytest.mark.parametrize("grad_dtype", ["bf16", "f32"])
@pytest.mark.parametrize("mesh", MESHES)
def test_activations_shrink_and_accumulators_appear(mesh: dict[str, int], grad_dtype: str) -> None:
    """Saved activations are those of one microbatch; a sum for each weight, sharded like it."""
    plans = {k: plan(mesh, k, grad_dtype=grad_dtype) for k in (1, *COUNTS)}
    programs = {k: any_program_of(MODEL, each, pod()) for k, each in plans.items()}
    saved = {k: taken(each, "saved activations") for k, each in programs.items()}
    assert saved == {k: saved[1] / k for k in plans}
    sizes = sizes_of(MODEL, plans[1])
    local = sum(w.copies * sizes.elements(w.local) for w in partitioned_of(MODEL, plans[1]).weights)
    sums = {k: taken(each, "gradient accumulators") for k, each in programs.items()}
    assert sums == {1: 0} | dict.fromkeys(COUNTS, local * sizes.itemsize(grad_dtype))
    assert len({taken(each, "gradients") for each in programs.values()}) == 1


def taken(program: Program, category: str) -> float:
    allocs = (alloc for op, _ in holders(program.body) for alloc in op.allocs)
    return float(sum(alloc.bytes for alloc in allocs if alloc.category == category))


def test_the_peak_holds_the_sums_and_the_gradients_of_a_microbatch() -> None:
    """Of a small vocabulary, so that the peak is in a layer and not at the loss."""
    one, many = step(16, 1, vocab=512), step(16, 8, vocab=512)
    assert many.hbm_peak_bytes < one.hbm_peak_bytes
    assert many.memory_bytes["gradient accumulators"] > 0
    held = {name: many.memory_bytes[name] for name in ("gradients", "gradient accumulators")}
    assert held["gradients"] <= held["gradient accumulators"]


@pytest.mark.parametrize("axis", ["dcn_data", "dcn_fsdp"])
def test_weights_are_gathered_and_gradients_reduced_each_microbatch(axis: str) -> None:
    mesh = {"fsdp": 16, axis: 2}
    plans = (plan(mesh, count, without_passes=["rings-across-slices"]) for count in (1, 4))
    one, many = (moved(any_program_of(GATHERED, each, pod(slices=2))) for each in plans)
    assert many == {kind: 4 * nbytes for kind, nbytes in one.items()}
    assert {axes for _, axes in one} == {("fsdp",), (axis,)}


def moved(program: Program) -> Counter[tuple[CollectiveKind, tuple[str, ...]]]:
    """Bytes of collectives that move weights and their gradients."""
    found: Counter[tuple[CollectiveKind, tuple[str, ...]]] = Counter()
    for op, times in flat(program.body):
        if isinstance(op, Collective) and not op.scope.startswith(("loss", "gradient_norm")):
            found[op.kind, op.axes] += int(op.bytes) * times
    return found


@pytest.mark.parametrize("mesh", [{"fsdp": 16, "dcn_data": 2}, {"data": 16, "dcn_fsdp": 2}])
@pytest.mark.parametrize("lowering", ["xla", "ideal"])
def test_slices_wait_for_each_other_once_a_step(mesh: dict[str, int], lowering: str) -> None:
    """After the last microbatch, when all has crossed; folded or not."""
    given, two = plan(mesh, 4, lowering=lowering), pod("v5p", 2)
    folded, unfolded = (simulate(MODEL, given, two, fold=fold) for fold in (True, False))
    assert folded.timeline.total_ps == unfolded.timeline.total_ps
    names = [op.name for op in folded.program.body]
    assert names.index("slices") == names.index(MICROBATCHES) + 1
    assert [n for op, n in flat(folded.program.body) if op.name == "slices"] == [1]


def test_folding_does_not_simulate_each_microbatch() -> None:
    """Nor does a thousand of them take more events than a handful, once their tokens have come."""
    quick = pod(load_chip("v5p").replace(pcie_bandwidth="1 TB/s"))
    few, many = (
        simulate(MODEL, plan({"fsdp": 16}, k, global_batch=16 * k), quick) for k in (8, 1024)
    )
    assert many.timeline.stats.events == few.timeline.stats.events


@pytest.mark.parametrize("count", [1, 3])
@examples(30)
@given(
    model=st.builds(
        small, layers=st.integers(1, 3), tied_embeddings=st.booleans(), gated=st.booleans(),
        attention=st.sampled_from(["dot", "flash"]),
    ),
    given=st.builds(
        plan_of, st.sampled_from(MESHES), remat=st.sampled_from(["full", "minimal", "none"]),
        optimizer=st.sampled_from(["adam", "sgd"]), param_dtype=st.sampled_from(["f32", "bf16"]),
        style=st.sampled_from(["plain", "maxtext"]), lowering=st.sampled_from(["xla", "ideal"]),
    ),
)  # fmt: skip
def test_what_a_microbatch_takes_it_gives_back(count: int, model: Transformer, given: Plan) -> None:
    whole = replace(given, microbatches=count, global_batch=count * given.global_batch)
    program = any_program_of(model, whole, pod())
    held: dict[str, float] = {}
    assert run_memory(program.body, held) > 0
    assert held == {}
    assert total_flops(program.body).model == count * graph_of(model, whole).model_flops()


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_timeline_shows_layers_of_the_last_microbatch(layers: int) -> None:
    """One trip of each loop, as long as in the step of one microbatch."""
    whole = plan({"fsdp": 16}, 4)
    model = replace(MODEL, layers=layers)
    many = timeline_data(simulate(model, whole, pod("v5p")))
    one = timeline_data(simulate(model, of_one(whole), pod("v5p")))
    assert [window.title for window in many] == [window.title for window in one]
    for ours, theirs in zip(many, one, strict=True):
        assert names(ours) == names(theirs)
        assert ours.end_ps - ours.start_ps == pytest.approx(theirs.end_ps - theirs.start_ps, abs=9)


def names(window: TimeWindow) -> list[str]:
    return [each.record.name for each in window.core if each.record]


@pytest.mark.parametrize(
    ("batch", "count", "sentence"),
    [
        (1000, 4, "plan.global_batch is 1000, which does not divide by 4 microbatches x the 16 "
         "shards of its axes (fsdp=16) = 64; write a multiple, such as 960 or 1024"),
        (96, 4, "plan.global_batch is 96, which does not divide by 4 microbatches x the 16 shards "
         "of its axes (fsdp=16) = 64; write a multiple, such as 64 or 128, or microbatches = 3"),
        (32, 4, "plan.global_batch is 32, which is smaller than 4 microbatches x the 16 shards of "
         "its axes (fsdp=16) = 64; write a multiple, such as 64, or microbatches = 2"),
        (64, 0, "plan.microbatches is 0; it must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_divide_gets_one_sentence(
    batch: int, count: int, sentence: str
) -> None:
    with pytest.raises(PlanError) as raised:
        simulate(MODEL, plan({"fsdp": 16}, count, global_batch=batch), pod())
    assert str(raised.value) == sentence


def test_a_batch_on_one_shard_says_so() -> None:
    with pytest.raises(PlanError, match=r"does not divide by 2 microbatches x 1 shard = 2; "):
        simulate(MODEL, plan({"tensor": 16}, 2, global_batch=3), pod())


def test_the_additions_belong_to_the_backward_pass() -> None:
    body = loop(step(16, 4).program.body, MICROBATCHES).body
    assert {op.phase for op in named(body, "accumulate/")} == {"backward"}


def test_a_graph_of_the_whole_batch_is_refused() -> None:
    whole = plan({"fsdp": 16}, 4)
    graph = graph_of(MODEL, replace(whole, microbatches=1))
    with pytest.raises(PlanError, match="a batch of 512, but a microbatch of the plan has 128"):
        partitioned_graph(graph, whole)

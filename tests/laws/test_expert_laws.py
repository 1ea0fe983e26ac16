"""What holds of experts on any plan: tokens and FLOPs are conserved, one expert is an MLP."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any

import pytest
from accounts import total_flops
from extent import examples
from hypothesis import given
from hypothesis import strategies as st
from plans import any_program_of, comms, flat, graph_of, partitioned_of, plan_of, sizes_of, small

from tpusim.base import Phase
from tpusim.graph import POLICIES
from tpusim.hardware import Slice, placements
from tpusim.models import Transformer
from tpusim.partition import Purpose
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, MatmulWork, Program
from tpusim.simulation import simulate

PODS = {1: "1x1x1", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4"}
EXCHANGES = ("all-to-all", "gather", "ring")
WAYS = ({}, {"capacity_factor": 1.0}, {"capacity_factor": 1.0, "dispatch": "sort"})


def moe(**changes: Any) -> Transformer:
    return small(**({"experts": 8, "experts_per_token": 2, "expert_mlp": 128} | changes))


def pod_for(plan: Plan) -> Slice:
    return Slice("v4", PODS[prod(plan.mesh.values())])


def program(model: Transformer, plan: Plan) -> Program:
    return any_program_of(model, plan, pod_for(plan))


@st.composite
def meshes(draw: st.DrawFn) -> dict[str, int]:
    devices = draw(st.sampled_from([8, 16]))
    expert = draw(st.sampled_from([1, 2, 4, 8]))
    other = draw(st.sampled_from([n for n in (1, 2, 4) if n <= devices // expert]))
    axis = draw(st.sampled_from(["tensor", "context", "data"]))
    return {"expert": expert, "fsdp": devices // expert // other, axis: other}


models = st.builds(
    moe,
    expert_every=st.sampled_from([1, 2]),
    dense_layers=st.sampled_from([0, 1]),
    shared_mlp=st.sampled_from([0, 96]),
    gated=st.booleans(),
    experts_per_token=st.sampled_from([1, 2, 3]),
)
plans = st.builds(
    lambda mesh, way, **rest: plan_of(mesh, **way, **rest),
    meshes(),
    st.sampled_from([*WAYS, {"capacity_factor": 1.25}, {"capacity_factor": 0.5}]),
    remat=st.sampled_from(POLICIES),
    expert_exchange=st.sampled_from(EXCHANGES),
    style=st.sampled_from(["plain", "maxtext"]),
    lowering=st.sampled_from(["xla", "ideal"]),
    microbatches=st.sampled_from([1, 2]),
)


@examples(100)
@given(models, plans)
def test_flops_are_conserved(model: Transformer, plan: Plan) -> None:
    made = program(model, plan)
    counted = total_flops(made.body)
    local = sum(
        n * 2 * prod(map(Fraction, (op.work.batch, op.work.m, op.work.k, op.work.n)))
        for op, n in flat(made.body)
        if isinstance(op, Compute) and isinstance(op.work, MatmulWork)
    )
    kernels = sum(
        n * op.flops.model + n * op.flops.recompute
        for op, n in flat(made.body)
        if isinstance(op, Compute) and op.scope.endswith(("attention", "attention/d"))
    )
    whole = counted.model + counted.recompute + counted.redundant + counted.padding
    assert local * made.devices + kernels == whole
    assert counted.model == plan.microbatches * graph_of(model, plan).model_flops()
    assert counted.redundant >= 0 <= counted.padding


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("mesh", [{"fsdp": 8}, {"expert": 8}, {"expert": 4, "fsdp": 2},
                                  {"expert": 2, "context": 2, "fsdp": 2},
                                  {"expert": 2, "tensor": 2, "fsdp": 2}])  # fmt: skip
def test_tokens_are_conserved(mesh: dict[str, int], exchange: str, way: dict[str, Any]) -> None:
    """At capacity 1 the slots of all devices are the choices of all tokens, wherever they lie."""
    plan = plan_of(mesh, expert_exchange=exchange, **way)
    partitioned, sizes = partitioned_of(moe(), plan), sizes_of(moe(), plan)
    tokens, choices = plan.global_batch * plan.seq_len, 2
    for name in ("layer/expert_mlp_in_0", "bwd/d(layer/expert_mlp_hidden)"):
        local = partitioned.buffers[name].local
        shards = prod(plan.mesh[axis] for axes in local.layout for axis in axes)
        assert shards == plan.devices, name
        assert sizes.elements(local) * shards == tokens * choices * 128, name


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("remat", POLICIES)
def test_one_expert_has_the_flops_of_an_mlp(remat: str, exchange: str) -> None:
    plan = plan_of({"fsdp": 8}, remat=remat)
    dense = total_flops(program(small(), plan).body)
    plan = plan.replace(expert_exchange=exchange)
    routed = total_flops(program(small(experts=1, experts_per_token=1), plan).body)
    router = 2 * 16 * 32 * 64 * 3
    assert routed.model == dense.model + 3 * router
    again = 0 if remat in ("none", "dots", "minimal") else router
    projection = 0 if remat in ("none", "dots", "minimal") else 2 * 16 * 32 * 64 * 256 * 3
    assert routed.recompute == dense.recompute + again + projection, (
        "gates need the experts' result"
    )


def core_ps(model: Transformer, plan: Plan, pod: Slice) -> Counter[str]:
    """How long each operation of the core takes the first time, experts' called as the MLP's."""
    spent: Counter[str] = Counter()
    for task in simulate(model, plan, pod).timeline.tasks:
        if task.stream == "core":
            spent[task.name.replace("expert_", "")] += task.end_ps - task.start_ps
    return spent


def test_one_expert_takes_the_time_of_an_mlp_and_of_routing() -> None:
    """To the picosecond: the residual sum moves to the combine, and the router is a weight more."""
    model = small(embed=512, mlp=2048, head_dim=128, vocab=8192)
    plan = Plan(mesh={"fsdp": 1}, seq_len=1024, global_batch=8, remat="none")
    pod = Slice("v5e", "1x1")
    dense = core_ps(model, plan, pod)
    one = model.replace(experts=1, experts_per_token=1)
    routed = core_ps(one, plan.replace(capacity_factor=1.0), pod)
    routing = ("router", "top_k", "gates", "mask", "dispatch", "combine", "layer/out")
    for name in {*dense, *routed}:
        if not any(part in name for part in routing):
            change = routed[name] - dense[name]
            assert change >= 0 or name == "layer/wo_mlp", name
            assert abs(change) <= 0.1 * dense[name], name
            assert not change or name in (
                "layer/wo_mlp", "cast_weights", "gradient_norm", "stack/layers/d"
            )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_expert_axis_of_one_is_none(way: dict[str, Any]) -> None:
    without = plan_of({"fsdp": 8}, **way)
    plan = plan_of({"fsdp": 8, "expert": 1}, **way)
    assert program(moe(), plan).body == program(moe(), without).body


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("expert", [2, 4, 8])
def test_exchanges_move_the_bytes_of_the_closed_form(expert: int, way: dict[str, Any]) -> None:
    """Each way, a device of n sends `tokens k embed 2 (n - 1) / n`, and it is asked for."""
    plan = plan_of({"expert": expert, "fsdp": 8 // expert}, **way)
    tokens = plan.global_batch * plan.seq_len // 8
    found = [
        op for op, n in flat(program(moe(), plan).body)
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL and n == 3
    ]  # fmt: skip
    assert all(op.asked and op.axes == ("expert",) for op in found)
    assert Counter(op.phase for op in found) == {
        Phase.FORWARD: 2, Phase.RECOMPUTE: 1, Phase.BACKWARD: 3,
    }  # fmt: skip
    for op in found:
        sent = op.bytes * (expert - 1) / expert
        assert sent == tokens * 2 * 64 * 2 * (expert - 1) / expert


@examples(40)
@given(
    st.sampled_from([2, 4, 8]),
    st.integers(0, 1000),
    st.lists(st.floats(0, 1), min_size=2, max_size=3).map(sorted),
    st.sampled_from(EXCHANGES),
)
def test_more_skew_is_never_faster(
    expert: int, seed: int, skews: list[float], exchange: str
) -> None:
    """Nor is less held, where the order of a layer is the same: more rows are freed sooner."""
    plan = plan_of(
        {"expert": expert, "fsdp": 8 // expert}, seed=seed, expert_exchange=exchange,
        without_passes=["weight-gradients-last"],
    )  # fmt: skip
    model, pod = moe(embed=256, expert_mlp=512, layers=2), pod_for(plan)
    placement = placements(pod, plan.mesh)[0]
    results = [
        simulate(model, plan.replace(expert_skew=skew), pod, placement=placement)
        for skew in skews
    ]  # fmt: skip
    for less, more in pairwise(results):
        assert less.step_time_s <= more.step_time_s
        assert less.timeline.memory[0].peak_bytes <= more.timeline.memory[0].peak_bytes
        assert less.flops == more.flops


def test_skew_is_nothing_where_each_device_has_all_experts() -> None:
    plan = plan_of({"fsdp": 8})
    assert program(moe(), plan) == program(moe(), plan.replace(expert_skew=1.0))


def test_gradients_of_experts_are_reduced_over_the_batch_alone() -> None:
    """Their weights are gathered over it alone too; all others also over the experts' axis."""
    plan = plan_of({"fsdp": 2, "expert": 4})
    found = [comm for comm, _ in comms(partitioned_of(moe(), plan))]
    for comm in found:
        if comm.purpose in (Purpose.WEIGHT, Purpose.GRADIENT) and "expert_w" in comm.tensor:
            assert comm.axes == ("fsdp",), comm.name
        if comm.purpose is Purpose.WEIGHT and "/w" in comm.tensor:
            assert comm.axes == ("fsdp", "expert"), comm.name
    assert sum("expert_w" in comm.tensor for comm in found) == 3 + 3 + 3

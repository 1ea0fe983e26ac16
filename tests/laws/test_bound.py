"""The bound in closed form is never above the simulated step, nor its memory above the peak."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from statistics import median

import numpy as np
import pytest
from extent import sample, seeds, thorough
from many_plans import Rests
from test_any_plan import (
    PODS,
    Case,
    context_plan,
    expert_plan,
    latent_plan,
    plain_plan,
    plan_across_slices,
    quantised_plan,
    random_mesh,
    random_model,
    random_plan,
    tiled_plan,
)

from tpusim.base import TpusimError
from tpusim.bounds import PlanArrays, bound, bounds
from tpusim.bounds.footprints import Footprints, least_seconds
from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.placed_bounds import columns_of, placed_seconds
from tpusim.costs import route, route_seconds
from tpusim.hardware import Slice, candidates
from tpusim.models import Transformer
from tpusim.network import ALGORITHMS as NETWORK_ALGORITHMS
from tpusim.network import Algorithm
from tpusim.plan import Plan
from tpusim.program import CollectiveKind
from tpusim.searches import PlanSpace
from tpusim.simulation import simulate

BLOCK = 25
"""Plans of one test."""

ALIKE = {
    "window": 0, "global_every": 0, "global_head_dim": 0, "global_kv_heads": 0,
    "global_keys_as_values": False, "wide_layers": 0, "wide_mlp": 0, "layer_embed": 0,
}  # fmt: skip


def pipelined_plan(seed: int) -> Case:
    """Return a plan with a pipeline."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice([one for one in PODS if one[2] == 1]))
    stages, chunks = rng.choice([2, 4]), rng.choice([1, 1, 2])
    single, several = ["gpipe", "1f1b", "zb-h1", "zb-h2", "circular"], ["interleaved", "circular"]
    schedule = rng.choice(single if chunks == 1 else several)
    model = random_model(rng).replace(layers=rng.choice([8, 16]), **ALIKE)
    given, count = random_plan(rng, pod), rng.choice([4, 8, 16])
    plan = given.replace(
        mesh=random_mesh(rng, pod.devices // stages, list(given.mesh)) | {"stage": stages},
        schedule=schedule, virtual_stages=chunks, microbatches=count,
        global_batch=count * pod.devices * rng.choice([1, 4]),
    )  # fmt: skip
    return model, plan, pod


KINDS: Mapping[str, tuple[Callable[[int], Case], float]] = {
    "dense": (plain_plan, 0.7), "latent": (latent_plan, 0.7), "slices": (plan_across_slices, 0.6),
    "quantised": (quantised_plan, 0.7), "tiles": (tiled_plan, 0.8), "experts": (expert_plan, 0.65),
    "context": (context_plan, 0.8), "pipeline": (pipelined_plan, 0.7),
}  # fmt: skip
"""Random plans of each kind, and the least median share of the step that their bounds are."""


def shares(kind: str, numbers: range) -> Iterator[float]:
    """Yield the shares of the steps that bounds are; plans that are refused are left out."""
    for seed in numbers:
        try:
            model, plan, pod = KINDS[kind][0](seed)
            result = simulate(model, plan, pod)
        except TpusimError:
            continue
        found = bounds(model, PlanArrays.of([(plan, pod)]))
        assert 0 < found.seconds[0] <= result.step_time_s, (kind, seed)
        if plan.placement is None:
            plans = PlanArrays.of([(plan, pod)])
            placed = placed_seconds(model, plans, GroupAnswers(plans.pods))[0]
            assert found.seconds[0] * (1 - 1e-9) <= placed <= result.step_time_s, (kind, seed)
        assert 0 < found.hbm_bytes[0] <= result.hbm_peak_bytes, (kind, seed)
        yield float(found.seconds[0]) / result.step_time_s


@pytest.mark.parametrize("block", seeds(50, default=1))
@pytest.mark.parametrize("kind", sample(KINDS, 8))
def test_the_bounds_of_random_plans_are_below_their_steps_but_not_far(
    kind: str, block: int
) -> None:
    found = list(shares(kind, range(BLOCK * block, BLOCK * (block + 1))))
    assert len(found) > BLOCK / 2
    if block == 0:
        assert median(found) > KINDS[kind][1]


def test_merged_gradients_hide_their_hops_behind_what_other_groups_send() -> None:
    """Gradients of 23 MB in one all-reduce on a ring of 128, whose links two groups share."""
    assert len(list(shares("tiles", range(52, 53)))) == 1


def beside_the_core(seed: int) -> Case:
    """Return a plan of large layers on 7x, whose transfers run beside the core."""
    rng = random.Random(seed)
    pod = Slice("7x", rng.choice(["4x4x8", "4x8x8", "4x4x12", "8x8x8"]))
    model = Transformer(
        layers=rng.choice([3, 8]), embed=rng.choice([4096, 20480]), mlp=rng.choice([16384, 81920]),
        heads=32, vocab=51200, gated=rng.random() < 0.5, rotary=rng.random() < 0.5,
    )  # fmt: skip
    axes = rng.choice([["fsdp", "tensor"], ["data", "fsdp", "tensor"], ["fsdp"]])
    plan = Plan(
        mesh=random_mesh(rng, pod.devices, axes), seq_len=2048, global_batch=2 * pod.devices,
        remat=rng.choice(["full", "minimal"]), microbatches=rng.choice([1, 2]),
    )  # fmt: skip
    return model, plan, pod


@pytest.mark.parametrize("seed", seeds(200, default=8))
def test_the_bound_on_placements_is_near_the_step_where_transfers_are_beside_the_core(
    seed: int,
) -> None:
    model, plan, pod = beside_the_core(seed)
    step = simulate(model, plan, pod).step_time_s
    plans = PlanArrays.of([(plan, pod)])
    placed = placed_seconds(model, plans, GroupAnswers(plans.pods))[0]
    assert 0.5 * step < placed <= step


TORUSES = [
    ("v4", "4x4x4"), ("v4", "2x2x1"), ("v5e", "4x8"), ("v6e", "2x4"), ("7x", "2x2x2"),
    ("v3", "4x4"), ("v5p", "2x2x4"), ("v5e", "8x16"), ("v4", "4x4x8_twisted"), ("v6e", "16x16"),
    ("7x", "4x4x4"), ("7x", "4x4x12"), ("v5p", "4x8x8"),
]  # fmt: skip
ALGORITHMS = {
    CollectiveKind.ALL_GATHER: ("", "nd", "all-reduce"),
    CollectiveKind.REDUCE_SCATTER: ("", "nd", "all-reduce"),
    CollectiveKind.ALL_REDUCE: ("", "nd"),
    CollectiveKind.ALL_TO_ALL: ("",),
    CollectiveKind.PERMUTE: ("", "onward"),
}


def least(pod: Slice, kind: CollectiveKind, name: str, columns: tuple[int, ...]) -> list[float]:
    """Seconds before bytes, for each byte, and on links, of a group that lies as columns say."""
    dies, *shape = np.array([columns[:4]]).T
    strides = np.array([columns[4:]]).T
    lies = Footprints((pod,), np.zeros(1, np.int64), np.stack(shape), dies, strides)
    found: list[float] = least_seconds(lies, kind, name)[:, 0].tolist()
    return found


def least_of_any(
    answers: GroupAnswers, devices: int, kind: CollectiveKind, name: str
) -> list[float]:
    """The same of a group of the first slice that lies as well as it can."""
    number = answers.numbers(np.zeros(1, np.int64), np.array([devices]))
    found: list[float] = answers.table.least(kind, name)[:, number[0]].tolist()
    return found


@pytest.mark.parametrize(("chip", "shape"), sample(TORUSES, 24))
def test_no_placement_has_a_collective_faster_than_the_least(chip: str, shape: str) -> None:
    pod = Slice(chip, shape)
    answers = GroupAnswers((pod,))
    halves = [2**at for at in range(12) if pod.devices % 2**at == 0]
    for inner in halves:
        for outer in (each for each in halves if pod.devices % (inner * each) == 0):
            mesh = {"a": inner, "b": outer, "c": pod.devices // inner // outer}
            for placement in candidates(pod, mesh):
                spans, columns = placement.spans("a"), columns_of(placement, "a")
                for kind, names in ALGORITHMS.items() if inner > 1 else ():
                    for name in names:
                        free = least_of_any(answers, inner, kind, name)
                        fixed, per_byte, on_links = least(pod, kind, name, columns)
                        assert free[0] <= fixed
                        assert free[1] <= per_byte
                        path = route(kind, spans, pod.topology, name)
                        for nbytes in (1.0, 1e5, 1e7, 1e9):
                            alone = route_seconds(path, nbytes, pod.chip)
                            assert fixed + per_byte * nbytes <= alone * (1 + 1e-9)
                            assert on_links * nbytes <= alone * (1 + 1e-9)


def test_the_least_of_a_collective_on_a_whole_ring_is_its_time() -> None:
    """A gather of n bytes on a ring of 16: (15 / 16 n) / 2 on each link, after 8 hops."""
    pod = Slice("v6e", "16x16")
    costs, rate = pod.chip.costs, pod.chip.ici_bandwidth * pod.chip.costs.ici_efficiency
    fixed, per_byte, _ = least_of_any(GroupAnswers((pod,)), 16, CollectiveKind.ALL_GATHER, "")
    assert per_byte == pytest.approx(15 / 32 / rate)
    assert fixed == pytest.approx(costs.collective_launch + 8 * costs.hop_latency)


def test_what_no_slice_has_is_no_group() -> None:
    """Three of the devices of a 2x2 cannot be: nothing is known of them, so nothing is bounded."""
    answers = GroupAnswers((Slice("v5e", "2x2"),))
    assert least_of_any(answers, 3, CollectiveKind.ALL_GATHER, "") == [0.0] * 3


def test_a_new_algorithm_is_asked_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that claims groups of eight chips: they gather by it, others as ever."""
    pods, kind = (Slice("v5e", "4x4"),), CollectiveKind.ALL_GATHER
    usual = {size: least_of_any(GroupAnswers(pods), size, kind, "") for size in (4, 8)}
    assert least_of_any(GroupAnswers(pods), 8, kind, Algorithm.ALL_REDUCE) != usual[8]
    claims = replace(
        NETWORK_ALGORITHMS[Algorithm.ALL_REDUCE], name="own", covers_dimensions=False,
        is_default=lambda kind, spans, topology: prod(span.size for span in spans) == 8,
    )  # fmt: skip
    monkeypatch.setitem(NETWORK_ALGORITHMS, "own", claims)
    answers = GroupAnswers(pods)
    assert least_of_any(answers, 8, kind, "") == least_of_any(
        answers, 8, kind, Algorithm.ALL_REDUCE
    )
    assert least_of_any(answers, 4, kind, "") == usual[4]


@pytest.mark.thorough
def test_bounds_of_plans_of_several_generations_are_those_of_each() -> None:
    """Many slices, slices joined by DCN, stages, microbatches, and weights that rings gather."""
    model = Transformer(layers=12, embed=4096, mlp=16384, heads=32, vocab=32000)
    base = Plan(mesh={"data": 1}, seq_len=2048, global_batch=192)
    pods = [
        Slice("v5e", "4x8"), Slice("v4", "2x4x4"), Slice("v5p", "2x2x4"), Slice("v6e", "4x4"),
        Slice("7x", "2x2x4"), Slice("v4", "2x2x4", 2), Slice("v6e", "4x8", 2),
    ]  # fmt: skip
    space = PlanSpace(
        base=base, slices=pods, axes=("fsdp", "tensor", "stage", "dcn_data"),
        most={"stage": 4}, vary={"microbatches": [1, 2, 8], "remat": ["full", "none"]},
    )  # fmt: skip
    rng = random.Random(1)
    for block in space.blocks:
        together = bounds(model, block).seconds
        finite = np.flatnonzero(np.isfinite(together)).tolist()
        assert len(finite) > 150
        for at in rng.sample(finite, 15):
            alone = bound(model, block.plan(at), block.pods[block.pod[at]])
            assert together[at] == pytest.approx(alone, rel=1e-12)


def test_the_bound_is_the_step_where_the_core_does_all() -> None:
    """One chip: nothing is left but operations one after another, which the bound adds up."""
    model = Transformer(layers=4, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000)
    plan = Plan(mesh={"data": 1}, seq_len=2048, global_batch=8)
    pod = Slice("v6e", "1x1")
    assert bound(model, plan, pod) == pytest.approx(
        simulate(model, plan, pod).step_time_s, rel=0.01
    )


@pytest.mark.thorough
def test_the_bound_of_many_plans_is_that_of_each() -> None:
    model = Transformer(layers=4, embed=256, mlp=1024, heads=8, kv_heads=2, vocab=1000)
    pods = [Slice("v5e", "4x4"), Slice("v4", "2x2x4")]
    base = Plan(mesh={"data": 1, "fsdp": 1, "tensor": 1}, seq_len=128, global_batch=64)
    plans = [
        (base.replace(mesh=mesh, microbatches=count), pod)
        for pod in pods
        for count in (1, 2, 4)
        for data in (1, 2, 4)
        for tensor in (1, 2, 4)
        for mesh in [{"data": data, "fsdp": 16 // data // tensor, "tensor": tensor}]
    ]
    together = bounds(model, PlanArrays.of(plans)).seconds
    assert np.allclose(together, [bound(model, *each) for each in plans], rtol=1e-12)


def test_the_bound_of_many_plans_with_muon_is_that_of_each() -> None:
    """Muon lays its matrices out by the sizes of the mesh, which arrays cannot decide together."""
    model = Transformer(layers=2, embed=256, mlp=1024, heads=8, kv_heads=2, vocab=1000)
    pod = Slice("v4", "2x2x4")
    base = Plan(mesh={"data": 1, "fsdp": 16}, seq_len=128, global_batch=64, optimizer="muon")
    meshes = [{"data": size, "fsdp": 16 // size} for size in (1, 2, 4, 8, 16)]
    plans = [(base.replace(mesh=mesh), pod) for mesh in meshes]
    together = bounds(model, PlanArrays.of(plans)).seconds
    assert np.allclose(together, [bound(model, *each) for each in plans], rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1200, thorough(4000)])
def test_thousands_of_refused_plans_are_bounded_together(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all batches, those that four devices or the microbatches do not divide are refused."""
    model = Transformer(layers=2, embed=256, mlp=1024, heads=8, vocab=1000)
    pod = Slice("v5e", "2x2")
    base = Plan(mesh={"data": 2, "fsdp": 2}, seq_len=64, global_batch=8)
    batch, counts = 6000 + np.arange(size), np.array([1, 2, 3, 4] * (size // 4))
    plans = PlanArrays(
        base, (pod,), np.zeros(size, np.int64),
        {"data": np.full(size, 2), "fsdp": np.full(size, 2)}, batch, counts,
    )  # fmt: skip
    made: list[int] = []
    divides = PlanArrays.plan
    monkeypatch.setattr(
        PlanArrays, "plan", lambda self, at: (made.append(at), divides(self, at))[1]
    )
    found = bounds(model, plans)
    assert len(made) < 20
    assert np.array_equal(np.isfinite(found.seconds), batch % (4 * counts) == 0)
    for at in (0, 4, 1, 501, 1002):
        one = plans.take(np.array([at]))
        assert bounds(model, one).seconds[0] == pytest.approx(found.seconds[at], rel=1e-12)


@pytest.mark.parametrize(("shape", "share"), [("1x1", 0.95), ("2x2", 0.9)])
def test_the_bound_has_all_iterations_of_muon(shape: str, share: float) -> None:
    """Five of three matmuls for each matrix: more than the matmuls of a batch of 64 tokens."""
    model = Transformer(layers=2, embed=2048, mlp=8192, heads=16, vocab=1000)
    pod = Slice("v6e", shape)
    plan = Plan(mesh={"fsdp": pod.devices}, seq_len=16, global_batch=4, optimizer="muon")
    step = simulate(model, plan, pod).step_time_s
    assert share * step < bound(model, plan, pod) <= step
    assert bound(model, plan.replace(optimizer="adam"), pod) < 0.7 * step


def test_the_last_of_transfers_in_turn_is_followed_by_what_reads_it() -> None:
    """The last one that waits its turn, which is not the same for all plans."""
    rests = Rests(9.0, {"first": np.array([5.0, 6.0]), "last": np.array([1.0, 2.0])})
    turns = {"first": np.array([3.0, 3.0]), "last": np.array([4.0, 0.0])}
    assert np.array_equal(np.asarray(rests.of_last(turns)), [1.0, 6.0])
    assert np.array_equal(np.asarray(rests.of_last({})), 0.0)

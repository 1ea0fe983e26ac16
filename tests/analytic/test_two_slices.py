"""Two slices joined by DCN: what crosses, when, and what of it the step feels.

A worked problem in the shape of compiled programs for two slices of v5e 4x4 (libtpu 0.0.42.1): a
gradient is reduced within the slice, each chip sends its 16th to its twin, and the next layer's
backward pass hides that.
"""

from functools import lru_cache

import pytest
from plans import any_program_of, flat, loop, plan_of

from tpusim.base import Phase
from tpusim.hardware import Slice, load_chip
from tpusim.models import Transformer
from tpusim.program import Barrier, Collective, CollectiveKind, Compute, Dep, Mode, Program
from tpusim.results import Result
from tpusim.simulation import simulate

GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
REDUCE = CollectiveKind.ALL_REDUCE
EMBED, MLP, VOCAB, LAYERS, CHIPS = 4096, 16384, 32000, 6, 16
LM = Transformer(
    layers=LAYERS, embed=EMBED, mlp=MLP, heads=32, kv_heads=8, head_dim=128, vocab=VOCAB
)
MATRICES = (2 * 4096 + 2 * 1024 + 3 * MLP) * EMBED
"""Elements of a layer's seven matrices: wq and wo, wk and wv, three of the MLP."""
TABLES = 2 * VOCAB * EMBED
LAYER_SHARDS = 2 * (MATRICES + 2 * EMBED) / CHIPS
"""Bytes in bf16 that a chip sends of a layer: its 16th of the matrices and of two scales."""
OTHER_SHARDS = 2 * (TABLES + EMBED) / CHIPS
"""Bytes in bf16 of embedding, head and the last scale."""


def two(chip: object = "v5e") -> Slice:
    return Slice(chip, "4x4", 2)  # type: ignore[arg-type]


def plan(axis: str = "dcn_data", **changes: object) -> object:
    return plan_of({"fsdp": CHIPS, axis: 2}, seq_len=2048, global_batch=64, **changes)


@lru_cache
def program(axis: str = "dcn_data", lowering: str = "xla", style: str = "plain") -> Program:
    one_by_one = {"without_passes": ["rings-across-slices"]}
    return any_program_of(LM, plan(axis, lowering=lowering, style=style, **one_by_one), two())


def collectives(program: Program, axis: str) -> list[tuple[Collective, int]]:
    """The collectives over `axis` and no other, with how often they run."""
    found = [(op, n) for op, n in flat(program.body)
             if isinstance(op, Collective) and op.scope != "gradient_norm"]  # fmt: skip
    assert all(len(op.axes) == 1 for op, _ in found)
    return [(op, n) for op, n in found if op.axes == (axis,)]


@pytest.mark.parametrize("lowering", ["xla", "ideal"])
def test_a_chip_sends_its_sixteenth_of_every_gradient(lowering: str) -> None:
    crossing = collectives(program(lowering=lowering), "dcn_data")
    assert {(op.kind, op.dtype) for op, _ in crossing} == {(REDUCE, "bf16")}
    assert sum(n * op.bytes for op, n in crossing) == LAYERS * LAYER_SHARDS + OTHER_SHARDS


def test_the_collectives_of_a_layer_are_counted() -> None:
    """Seven matrices one by one, the two scales as one; a scale is wanted whole, so gathered."""
    body = loop(program().body, "layers/d").body
    found = [op for op in body if isinstance(op, Collective)]
    over = {axis: [op for op in found if op.axes == (axis,)] for axis in ("fsdp", "dcn_data")}
    assert [op.kind for op in over["dcn_data"]] == 8 * [REDUCE]
    scatters = [op for op in over["fsdp"] if op.kind is SCATTER]
    assert len(scatters) == 7
    assert {op.algorithm for op in scatters} == {"all-reduce"}
    scales = [op for op in over["fsdp"] if "scale" in op.scope]
    assert [(op.kind, op.bytes) for op in scales] == [(REDUCE, 4 * EMBED), (GATHER, 4 * EMBED)]
    assert len(over["fsdp"]) == 7 + 2 + 7
    assert all(op.asked for op in found)


@pytest.mark.parametrize("lowering", ["xla", "ideal"])
@pytest.mark.parametrize("axis", ["dcn_data", "dcn_fsdp"])
def test_only_the_next_trip_waits_for_what_crosses(axis: str, lowering: str) -> None:
    """What waits is the reduction within the slice of the same weight, or a scale's gather.

    Where that is a ring, it is the matmul whose chunks are reduced.
    """
    body = [op for op, _ in flat(loop(program(axis, lowering).body, "layers/d").body)]
    crossing = {op.name: op for op in body if isinstance(op, Collective) and op.axes == (axis,)
                and op.scope.startswith("d(")}  # fmt: skip
    assert len(crossing) == 8
    assert {op.mode for op in crossing.values()} == {Mode.ASYNC}
    waiting = [(op, dep) for op in body for dep in op.deps if dep.op in crossing]
    assert {dep.distance for _, dep in waiting} == {1}
    makers = {
        dep.op: op.scope if isinstance(op, Collective) else f"d({op.scope.removesuffix('/dw')})"
        for op, dep in waiting
        if getattr(op, "kind", "") is not GATHER
    }
    assert makers == {name: op.scope for name, op in crossing.items()}
    scales = next(op for op in crossing.values() if "scale" in op.scope)
    (gather,) = (
        op for op in body if getattr(op, "kind", "") is GATHER and op.scope == scales.scope
    )
    assert Dep(scales.name, 1) in gather.deps
    for op in crossing.values():
        assert {alloc.tensor for alloc in op.allocs} <= set(op.frees)


def test_outside_of_the_loop_the_core_waits() -> None:
    outside = [op for op in program().body if isinstance(op, Collective)]
    assert {op.mode for op in outside} == {Mode.SYNC}
    assert sum(op.bytes for op in outside if op.axes == ("dcn_data",)) == OTHER_SHARDS
    ideal = [op for op in program(lowering="ideal").body if isinstance(op, Collective)]
    large = [op for op in ideal if op.axes == ("dcn_data",) and "scale" not in op.scope]
    assert [op.mode for op in large] == 2 * [Mode.ASYNC]


@pytest.mark.parametrize("lowering", ["xla", "ideal"])
def test_the_slices_wait_for_each_other_before_the_first_update(lowering: str) -> None:
    body = program(lowering=lowering).body
    (at,) = (place for place, op in enumerate(body) if isinstance(op, Barrier))
    updates = [getattr(op, "phase", None) is Phase.OPTIMIZER for op in body]
    assert not any(updates[:at])
    assert all(updates[at + 1 :])
    assert (body[at].name, body[at].axes) == ("slices", ("dcn_data",))
    behind = [op for op, _ in collectives(program(lowering=lowering), "dcn_data")
              if op.mode is Mode.ASYNC]  # fmt: skip
    assert set(body[at].deps) == {Dep(op.name) for op in behind}
    one = any_program_of(LM, plan_of({"fsdp": CHIPS}, seq_len=2048, global_batch=32),
                         Slice("v5e", "4x4"))  # fmt: skip
    assert not any(isinstance(op, Barrier) for op in one.body)


def test_weights_sharded_over_slices_cross_as_shards_in_both_directions() -> None:
    """Gathered as a 16th, layers forward and backward; all-reduced as one, and left as a 32nd."""
    crossing = collectives(program("dcn_fsdp", style="maxtext"), "dcn_fsdp")
    moved = {kind: sum(n * op.bytes for op, n in crossing if op.kind is kind)
             for kind in (GATHER, SCATTER, REDUCE)}  # fmt: skip
    assert moved[SCATTER] == 0
    assert moved[REDUCE] == LAYERS * LAYER_SHARDS + OTHER_SHARDS
    assert moved[GATHER] == 2 * (2 * LAYERS * MATRICES + TABLES) / CHIPS


def test_a_gather_takes_its_shards_from_the_other_slice_one_gather_ahead() -> None:
    body = loop(program("dcn_fsdp", style="maxtext").body, "layers").body
    ops = {op.name: op for op in body}
    places = {op.name: place for place, op in enumerate(body)}
    gathers = [op for op in body if isinstance(op, Collective) and op.axes == ("fsdp",)]
    feeds = [next(dep.op for dep in op.deps if ops[dep.op].axes == ("dcn_fsdp",))
             for op in gathers]  # fmt: skip
    for op, feed in zip(gathers, feeds, strict=True):
        assert (ops[feed].scope, ops[feed].bytes) == (op.scope, op.bytes / CHIPS)
        assert any(t in ops[op.name].frees for t in (a.tensor for a in ops[feed].allocs))
    assert [ops[feed].mode for feed in feeds] == [Mode.SYNC] + 6 * [Mode.ASYNC]
    for feed, before in zip(feeds[1:], gathers, strict=False):
        between = body[places[feed] : places[before.name]]
        assert between
        assert not any(isinstance(op, Compute) for op in between)


def test_how_weights_are_gathered_in_the_slice_does_not_depend_on_another_slice() -> None:
    """On v5p 4x4x4 nothing is gathered again, though groups on a part of the torus do that."""
    mesh, pod, long = {"fsdp": 64}, Slice("v5p", "4x4x4"), LM.replace(attention="dot")
    one = any_program_of(long, plan_of(mesh, global_batch=64), pod)
    both = any_program_of(
        long, plan_of(mesh | {"dcn_data": 2}, global_batch=128), Slice("v5p", "4x4x4", 2)
    )
    gathers = [[(op.scope, op.phase, op.mode) for op, _ in collectives(each, "fsdp")
                if op.scope.startswith("layer/")] for each in (one, both)]  # fmt: skip
    assert gathers[0] == gathers[1]


def crossing_seconds(shards: float, count: int, pod: Slice) -> float:
    """Seconds of `count` all-reduces between two slices, one after the other."""
    costs = pod.chip.costs
    return shards / pod.chip.dcn_bandwidth + count * (
        costs.collective_launch + 2 * costs.dcn_latency
    )


@lru_cache
def step(**changes: float) -> Result:
    chip = load_chip("v5e").replace(slice_jitter=0.0, **changes)
    return simulate(LM, plan(), two(chip))  # type: ignore[arg-type]


def test_the_next_layer_hides_what_crosses() -> None:
    """A fast DCN saves what lies outside of the loop, and the last layer's drain at the most.

    The bytes still go through HBM, which is about 3 % of their time over DCN.
    """
    saved = step().step_time_s - step(dcn_bandwidth=1e18, dcn_latency=0.0).step_time_s
    pod = two()
    least = crossing_seconds(OTHER_SHARDS, 0, pod)
    most = crossing_seconds(OTHER_SHARDS + LAYER_SHARDS, 3 + 8, pod)
    assert 0.95 * least <= saved <= most
    assert LAYERS * crossing_seconds(LAYER_SHARDS, 0, pod) > most


def test_what_the_compute_cannot_hide_is_waited_for() -> None:
    """A slow DCN sets the pace: all but the first layer's compute runs beside transfers."""
    slow = {"dcn_bandwidth": 1e8}
    pod = two(load_chip("v5e").replace(**slow))
    all_of_it = crossing_seconds(LAYERS * LAYER_SHARDS + OTHER_SHARDS, 0, pod)
    rest = step(dcn_bandwidth=1e18, dcn_latency=0.0).step_time_s
    assert all_of_it < step(**slow).step_time_s < all_of_it + rest


def test_one_layer_is_in_flight_at_most() -> None:
    chip = load_chip("v5e").replace(slice_jitter=0.0, dcn_bandwidth=1e8)
    timeline = simulate(LM, plan(), two(chip), fold=False).timeline  # type: ignore[arg-type]
    crossing = [r for r in timeline.tasks if r.stream == "dcn" and "wi_0" in r.name]
    first = "reduce-scatter/bwd/d(layer/wi_0)@fsdp/fsdp/0"
    made = [record for record in timeline.tasks if record.name == first]
    ends = sorted(start + r.duration_ps for r in crossing for start in r.starts())
    starts = sorted(start for r in made for start in r.starts())
    assert len(ends) == len(starts) == LAYERS
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))

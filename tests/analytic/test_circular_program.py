"""The trips of compiled circular pipelines: what is gathered, reduced, sent, copied and held.

4 stages x fsdp 4 on v6e 4x4, 8 microbatches of 2,048 tokens a chip, embed 4096, mlp 14336, one
layer a chunk, one chunk a stage and two, with MaxText's flags and without; and 2 stages x fsdp 4 on
two slices of v6e 2x2 (libtpu 0.0.42.1). Keys and values are projected here, which they are not
there: 8 MiB each.
"""

from functools import lru_cache
from typing import Any

import pytest
from plans import MIB, flat, loop

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import (
    Barrier,
    Collective,
    CollectiveKind,
    Compute,
    Loop,
    Mode,
    Op,
    Transfer,
    VectorWork,
)
from tpusim.results import Result
from tpusim.simulation import simulate

MICROBATCH, MICROBATCHES, STAGES = 16.0, 8, 4
ATTENTION = {"wq": 32.0, "wk": 8.0, "wv": 8.0, "wo": 32.0}
MLP = {"wi_0": 112.0, "wi_1": 112.0, "wo_mlp": 112.0}
SHARD = sum((*ATTENTION.values(), *MLP.values())) / 4
GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
FORWARD, BACKWARD = "pipeline/forward", "pipeline/backward"


@lru_cache
def run(chunks: int, style: str = "plain", **changes: Any) -> Result:
    model = Transformer(
        layers=STAGES * chunks, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000
    )
    plan = Plan(
        mesh={"stage": STAGES, "fsdp": 4}, seq_len=2048, global_batch=4 * MICROBATCHES,
        microbatches=MICROBATCHES, schedule="circular", virtual_stages=chunks, style=style,
        **changes,
    )  # fmt: skip
    return simulate(model, plan, Slice("v6e", "4x4"))


def trip(result: Result, name: str) -> tuple[Op, ...]:
    return loop(result.program.body, name).body


def every(body: tuple[Op, ...]) -> list[Compute | Collective | Transfer]:
    """The operations of a trip, with those of its layer, of which there is one."""
    found = list(flat(body))
    assert {times for _, times in found} == {1}
    return [op for op, _ in found]


def over(body: tuple[Op, ...], axis: str, *kinds: CollectiveKind) -> list[Collective]:
    found = [op for op in every(body) if isinstance(op, Collective) and op.axes == (axis,)]
    return [op for op in found if not kinds or op.kind in kinds]


@pytest.mark.parametrize("chunks", [1, 2])
def test_all_trips_run_bubbles_too(chunks: int) -> None:
    """11 trips of one chunk, 19 of two."""
    body = run(chunks).program.body
    for name in (FORWARD, BACKWARD):
        trips = [op.trips for op in body if isinstance(op, Loop) and op.name.startswith(name)]
        assert sum(trips) == MICROBATCHES * chunks + STAGES - 1


@pytest.mark.parametrize("name", [FORWARD, BACKWARD])
def test_each_trip_gathers_all_weights_of_its_chunk(name: str) -> None:
    found = over(trip(run(2), name), "fsdp", GATHER)
    expected = {f"layer/{key}": size for key, size in {**ATTENTION, **MLP}.items()}
    assert {op.scope: op.bytes / MIB for op in found} == expected
    assert len(found) == len(expected), "one gather for the recomputation and the gradient"
    assert {op.mode for op in found} == {Mode.SYNC}


@pytest.mark.parametrize("name", [FORWARD, BACKWARD])
def test_the_flags_of_maxtext_hide_the_gathers_of_the_mlp_alone(name: str) -> None:
    body = trip(run(2, "maxtext"), name)
    modes = {op.scope.removeprefix("layer/"): op.mode for op in over(body, "fsdp", GATHER)}
    assert modes == dict.fromkeys(ATTENTION, Mode.SYNC) | dict.fromkeys(MLP, Mode.ASYNC)
    order = [op.name.removeprefix("bwd/") for op in every(body)]
    prefix = "bwd/" if name == BACKWARD else ""
    starts = [order.index(f"all-gather/{prefix}layer/{weight}@fsdp") for weight in ("wo", *MLP)]
    products = [order.index(f"layer/{weight}") for weight in ("wo", "wi_0", "wi_1")]
    assert starts[1] == starts[0] + 1, "the gate's starts when the last of attention's is there"
    assert all(start < product for start, product in zip(starts[1:], products, strict=True))


@pytest.mark.parametrize("style", ["plain", "maxtext"])
def test_each_trip_reduces_its_gradients_and_adds_them_in_bf16(style: str) -> None:
    """Fused where the last dimension is scattered, as of wo and w2; else all-reduces, then slices.

    The sums of both chunks lie in bf16 through the loop.
    """
    result = run(2, style)
    found = over(trip(result, BACKWARD), "fsdp", SCATTER)
    assert {op.mode for op in found} == {Mode.SYNC}
    assert {op.dtype for op in found} == {"bf16"}
    names = {op.scope.removeprefix("d(layer/").removesuffix(")"): op for op in found}
    assert {name: op.bytes / MIB for name, op in names.items()} == ATTENTION | MLP
    fused = {name for name, op in names.items() if not op.algorithm}
    assert fused == {"wo", "wo_mlp"}
    assert {op.algorithm for op in found} == {"", "all-reduce"}
    added = [op for op in trip(result, BACKWARD) if op.name.startswith("accumulate/layer/w")]
    assert len(added) == len(names)
    assert result.memory_bytes["gradient accumulators"] == pytest.approx(2 * SHARD * MIB, rel=1e-3)
    assert not any("stack/" in op.name for op in every(trip(result, BACKWARD)))


@pytest.mark.parametrize(
    ("chunks", "forward", "backward"),
    [(1, ["inputs", "stage_out"], ["d(stage_in)", "d(inputs)"]),
     (2, ["inputs", "finished", "stage_out"], ["d(stage_in)", "d(inputs)", "d(finished)"])],
)  # fmt: skip
def test_the_permutes_of_a_trip(chunks: int, forward: list[str], backward: list[str]) -> None:
    """Two and three of 16 MiB. Backward too, as two that have no sender in common are one."""
    for name, expected in ((FORWARD, forward), (BACKWARD, backward)):
        sent = over(trip(run(chunks), name), "stage")
        assert [op.scope for op in sent] == expected
        assert {op.bytes / MIB for op in sent} == {MICROBATCH}
        assert {(op.kind, op.algorithm) for op in sent} == {(CollectiveKind.PERMUTE, "onward")}


def test_the_rotation_is_waited_for_and_the_stream_is_not() -> None:
    """At the end of a trip, and at the beginning of one backward: nothing else is."""
    result = run(1)
    waits = {wait.name.removesuffix(" (bubble)") for wait in result.timeline.waits}
    in_trips = {op.name for name in (FORWARD, BACKWARD) for op in every(trip(result, name))}
    expected = {"collective-permute/stage_out", "collective-permute/d(stage_in)"}
    assert waits == expected <= in_trips
    assert trip(result, FORWARD)[-2].name == "collective-permute/stage_out"
    assert trip(result, BACKWARD)[0].name == "collective-permute/d(stage_in)"


def test_the_head_is_no_ring() -> None:
    """The gradient of its logits is computed in the matmuls that read it (v5e 4x4, v5p 2x2x4)."""
    names = [op.name for op in run(1).program.body]
    assert "logits/dw" in names
    assert "logits/dw/ring" not in names
    held = {one.tensor for op in run(1).program.body for one in getattr(op, "allocs", ())}
    assert "logits" in held
    assert "d(logits)" not in held


def test_the_copies_of_a_chunk_hide_the_rotation_backward() -> None:
    """513k cycles of copies lie between its start and its end with two chunks, 78k with one."""
    body = trip(run(2), BACKWARD)
    names = [op.name for op in body[:3]]
    assert names == ["collective-permute/d(stage_in)", "slice_weights/backward", "d(stage_in)/add"]


def test_chunks_are_picked_before_they_are_gathered() -> None:
    """Shards, of 28 MiB for each matrix of the MLP and 104 in all; not where there is one chunk."""
    for name in (FORWARD, BACKWARD):
        (copy,) = [op for op in trip(run(2), name) if op.name.startswith("slice_weights")]
        assert isinstance(copy, Compute)
        assert copy.work == VectorWork(copy.work.read_bytes, copy.work.read_bytes, 0)
        assert copy.work.read_bytes == pytest.approx(SHARD * MIB, rel=1e-3)
        assert not any(op.name.startswith("slice_weights") for op in trip(run(1), name))


@pytest.mark.parametrize(("chunks", "waiting"), [(1, 2), (2, 2 + 8 + 1)])
def test_what_a_pipeline_holds(chunks: int, waiting: int) -> None:
    """Saved inputs of all trips, 11 and 19 x 16 MiB; two microbatches in the stream.

    With repeats also the room for all eight, 128 MiB, and the last result; what is on its way (two
    or three microbatches at most) comes on top. Weights are cast once, all chunks of them.
    """
    result = run(chunks)
    trips = MICROBATCHES * chunks + STAGES - 1
    found = {name: nbytes / MIB for name, nbytes in result.memory_bytes.items()}
    assert found["saved activations"] == trips * MICROBATCH
    held = found["pipeline state"] / MICROBATCH
    assert waiting <= held <= waiting + 3
    outside = 2 * 32000 * 4096 * 2 / MIB / 4
    assert found["cast weights"] == pytest.approx(chunks * SHARD + outside, rel=1e-3)
    casts = [op for op in result.program.body if op.name == "cast_weights"]
    assert len(casts) == 1


@lru_cache
def two_slices() -> Result:
    model = Transformer(layers=2, embed=1024, mlp=4096, heads=8, kv_heads=8, vocab=1024)
    plan = Plan(
        mesh={"dcn_stage": 2, "fsdp": 4}, seq_len=1024, global_batch=16, microbatches=4,
        schedule="circular",
    )  # fmt: skip
    return simulate(model, plan, Slice("v6e", "2x2", 2))


def test_over_dcn_all_is_sent_at_the_beginning_of_a_trip() -> None:
    """2 MiB each: the rotation, which is waited for at once, and the stream, which is not."""
    expected = {FORWARD: ["stage_out", "inputs"], BACKWARD: ["d(stage_in)", "d(inputs)"]}
    for name, scopes in expected.items():
        body = trip(two_slices(), name)
        sent = over(body, "dcn_stage")
        assert [op.scope for op in sent] == scopes
        assert {op.bytes / MIB for op in sent} == {2}
        first = next(at for at, op in enumerate(body) if isinstance(op, Compute) and op.deps)
        begun = [op for op in body[:first] if isinstance(op, Collective)]
        assert begun == sent
        assert [dep.op for dep in body[first].deps] == [sent[0].name]  # type: ignore[union-attr]
        assert sent[1].name in [dep.op for dep in body[-1].deps]  # type: ignore[union-attr]


def test_slices_that_are_stages_gather_and_reduce_inside_in_no_rings() -> None:
    """Where the same 4 chips would have rings without a pipeline; and they have no skew."""
    for name in (FORWARD, BACKWARD):
        body = trip(two_slices(), name)
        assert len(over(body, "fsdp", GATHER)) == 7
        assert {op.mode for op in over(body, "fsdp")} == {Mode.SYNC}
    assert not any(isinstance(op, Barrier) for op in two_slices().program.body)


def test_an_ideal_compiler_hides_what_it_can() -> None:
    body = trip(run(2, lowering="ideal"), FORWARD)
    assert Mode.SYNC not in {op.mode for op in over(body, "fsdp")}

"""Collective matmuls: chunks that add up to the whole, on the wire and on the core."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from lowered import flops_of, work_of
from plans import (
    ENCODER_480B,
    PLAN_480B,
    calcs,
    comms,
    loop,
    partitioned_of,
    payload,
    plan_of,
    program_of,
    sizes_of,
    small,
    v4_2048,
)

from tpusim.graph import Einsum
from tpusim.hardware import Slice
from tpusim.lowering.body_entries import CollectiveMatmul
from tpusim.lowering.collective_matmul import RingSums, done_after, ring_ops
from tpusim.models import Transformer
from tpusim.partition import Buffer, PartitionedGraph, Purpose, Sizes
from tpusim.program import Collective, CollectiveKind, Compute, Dep, Loop, MatmulWork, Mode, Op

RULES = {"act_embed": "tensor"}


def rings(partitioned: PartitionedGraph) -> Iterator[CollectiveMatmul]:
    """Every einsum with a collective that could be woven into it."""
    products = [calc for calc, _ in calcs(partitioned) if isinstance(calc.op, Einsum)]
    for comm, _ in comms(partitioned):
        for calc in products:
            gathered = comm.kind is CollectiveKind.ALL_GATHER and comm.writes[0] in calc.reads
            scattered = comm.kind is CollectiveKind.REDUCE_SCATTER and comm.maker == calc.op.name
            if gathered or (scattered and comm.reads[0] in calc.writes):
                yield CollectiveMatmul(calc, comm)


def ops_of(
    one: CollectiveMatmul, sizes: Sizes, buffers: Mapping[str, Buffer], deps: tuple[Dep, ...] = ()
) -> tuple[Op, ...]:
    """The operations of a ring whose sums are free and in HBM."""
    whole = work_of(one.compute, sizes, buffers)
    return ring_ops(one, sizes, whole, deps, RingSums(flops=0.0))


def ring_loop(*given: Any) -> Loop:
    """The loop alone, without the permute in one direction before or after it."""
    (made,) = [op for op in ops_of(*given) if isinstance(op, Loop)]
    return made


def moves_weight(ring: CollectiveMatmul) -> bool:
    return ring.collective.purpose in (Purpose.WEIGHT, Purpose.GRADIENT)


def parts(made: Loop) -> tuple[list[Compute], list[Collective]]:
    """The matmuls and the permutes of one trip: those of one step, or of two."""
    chunks = [op for op in made.body if isinstance(op, Compute) and "/chunk" in op.name]
    permutes = [op for op in made.body if isinstance(op, Collective)]
    products = [op for op in chunks if isinstance(op.work, MatmulWork)]
    assert len(products) == len(permutes)
    return products, permutes


def exact(*numbers: float) -> Fraction:
    result = Fraction(1)
    for number in numbers:
        result *= Fraction(number)
    return result


@pytest.mark.parametrize("tensor", [2, 4, 8, 16])
def test_a_ring_moves_its_chunks_and_computes_the_whole(tensor: int) -> None:
    """Of an activation n - 1 of n chunks; of a weight n, and one more in one direction."""
    model = small(heads=16, embed=256)
    plan = plan_of({"fsdp": 4, "tensor": tensor}, rules=RULES)
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    found = list(rings(partitioned))
    kinds = {(ring.gathers, moves_weight(ring)) for ring in found}
    assert kinds == set(product((True, False), repeat=2))
    for ring in found:
        made = ring_loop(ring, sizes, partitioned.buffers, ())
        chunks, permutes = parts(made)
        n = int(sizes.group(ring.collective.axes))
        moved = sum(permute.bytes for permute in permutes)
        nbytes = payload(ring.collective, sizes)
        assert made.trips * moved == nbytes * (1 if moves_weight(ring) else (n - 1) / n)
        assert {p.algorithm for p in permutes} == {"mesh order"}
        alone = [op for op in ops_of(ring, sizes, partitioned.buffers) if op.name != made.name]
        extra = [("onward", Mode.RING, nbytes / n)] if moves_weight(ring) else []
        assert [(op.algorithm, op.mode, op.bytes) for op in alone] == extra
        assert {permute.mode for permute in permutes} == {Mode.RING}
        whole = work_of(ring.compute, sizes, partitioned.buffers)
        assert isinstance(whole, MatmulWork)
        shapes = sum(exact(c.work.batch, c.work.m, c.work.k, c.work.n) for c in chunks)
        assert made.trips * shapes == exact(whole.batch, whole.m, whole.k, whole.n)
        assert made.trips * sum(c.work.epilogue_flops for c in chunks) == whole.epilogue_flops
        assert (
            made.trips * sum(c.flops.total for c in chunks) == flops_of(ring.compute, sizes).total
        )


def test_three_devices_take_one_trip() -> None:
    model, plan = small(heads=9, kv_heads=9), plan_of({"tensor": 3}, rules=RULES)
    partitioned = partitioned_of(model, plan)
    sizes = Sizes(sizes_of(model, plan).dims, {"tensor": 3})
    ring = next(rings(partitioned))
    made = ring_loop(ring, sizes, partitioned.buffers, ())
    assert made.trips == 1
    assert parts(made)[1][0].bytes == pytest.approx(payload(ring.collective, sizes) * 2 / 3)


def test_a_chunk_never_reads_more_than_the_whole_but_rereads_what_it_needs() -> None:
    """Chunks of a free dimension read the other operand each trip: more in all, less in each."""
    model, plan = small(), plan_of({"fsdp": 4, "tensor": 8}, rules=RULES)
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    for ring in rings(partitioned):
        made = ring_loop(ring, sizes, partitioned.buffers, ())
        chunks, _ = parts(made)
        whole = work_of(ring.compute, sizes, partitioned.buffers)
        assert made.trips * sum(c.work.read_bytes for c in chunks) >= whole.read_bytes
        assert made.trips * sum(c.work.write_bytes for c in chunks) >= whole.write_bytes


def test_chunks_of_a_contraction_are_summed_two_by_two() -> None:
    """Of two steps, the first writes a product and the second adds it and its own to the sum: four
    passes over the result, so n passes for a ring of n, where one product would take one.
    """
    plan = plan_of({"fsdp": 16}, seq_len=1024, global_batch=64)
    partitioned, sizes = partitioned_of(LM, plan), sizes_of(LM, plan)
    (ring,) = (r for r in rings(partitioned) if r.name == "layer/wi" and r.gathers)
    chunks, _ = parts(ring_loop(ring, sizes, partitioned.buffers, ()))
    first, second = (chunk.work for chunk in chunks)
    whole = work_of(ring.compute, sizes, partitioned.buffers)
    made = 4 * 1024 * 8192 * 2
    assert (first.write_bytes, second.write_bytes) == (made, made)
    assert second.read_bytes - first.read_bytes == 2 * made
    assert first.read_bytes == pytest.approx(whole.read_bytes / 8)


def test_columns_of_a_result_are_copied_into_it() -> None:
    """A weight gathered by columns leaves chunks that are copied to a result cleared before: one
    read and two writes of it in all (plain language models on v5p 2x2x4).
    """
    plan = plan_of({"fsdp": 16}, seq_len=1024, global_batch=64)
    partitioned, sizes = partitioned_of(LM, plan), sizes_of(LM, plan)
    (ring,) = (r for r in rings(partitioned) if r.name == "layer/wo_mlp" and r.gathers)
    made = ring_loop(ring, sizes, partitioned.buffers, ())
    place = made.body[-1]
    assert (place.name, made.trips) == ("layer/wo_mlp/place", 8)
    result = 4 * 1024 * 2048 * 2
    assert (8 * place.work.read_bytes, 8 * place.work.write_bytes) == (result, 2 * result)


def test_a_gathering_ring_multiplies_what_the_trip_before_received() -> None:
    program = program_of(ENCODER_480B, PLAN_480B, v4_2048())
    made = loop(program.body, "bwd/layer/wo/dx/ring")
    chunks, permutes = parts(made)
    assert (made.trips, len(chunks)) == (2, 2)
    received = (Dep(permutes[-1].name, 1), Dep(permutes[0].name))
    for step, (permute, chunk) in enumerate(zip(permutes, chunks, strict=True)):
        assert received[step] in permute.deps
        assert received[step] in chunk.deps
        assert Dep(permute.name) not in chunk.deps


def test_a_scattering_ring_adds_what_the_trip_before_received() -> None:
    program = program_of(ENCODER_480B, PLAN_480B, v4_2048())
    made = loop(program.body, "layer/wo/ring")
    chunk, add, permute = made.body
    assert add.deps == (Dep(permute.name, 1),)
    assert permute.deps == (Dep(add.name),)
    assert not [dep for dep in chunk.deps if dep.op == permute.name]


def test_the_flagships_rings_have_four_trips_of_two_chunks() -> None:
    program = program_of(ENCODER_480B, PLAN_480B, v4_2048())
    made = loop(program.body, "layer/wo/ring")
    assert made.trips == 4
    assert parts(made)[1][0].bytes == 256 * 2**20 / 8 * 7 / 4


def test_what_follows_waits_for_the_last_operation_of_a_ring() -> None:
    model, plan = small(), plan_of({"tensor": 8}, rules=RULES, lowering="ideal")
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    for ring in rings(partitioned):
        ops = ops_of(ring, sizes, partitioned.buffers, ())
        names = [op.name for op in ops[-1].body] if isinstance(ops[-1], Loop) else [ops[-1].name]
        assert done_after(ring) == names[-1]


def test_the_permute_in_one_direction_comes_before_a_gather_and_after_a_scatter() -> None:
    """The loop of a gather waits for it; it waits for the last permute of a scatter's."""
    plan = plan_of({"fsdp": 16})
    partitioned, sizes = partitioned_of(small(), plan), sizes_of(small(), plan)
    found = list(rings(partitioned))
    assert {ring.gathers for ring in found} == {True, False}
    operand = Dep("operand")
    for ring in found:
        ops = ops_of(ring, sizes, partitioned.buffers, (operand,))
        if ring.gathers:
            first, made = ops
            assert (first.name, first.deps) == (f"{ring.name}/first permute", (operand,))
            assert all(Dep(first.name) in op.deps for op in (*parts(made)[0], *parts(made)[1]))
        else:
            made, last = ops
            assert last.name == f"{ring.name}/last permute"
            assert last.deps == (Dep(parts(made)[1][-1].name),)


LM = Transformer(layers=4, embed=2048, mlp=8192, heads=16, vocab=32000, gated=False)


def test_a_small_language_model_is_all_rings_but_for_what_is_used_twice() -> None:
    """Plain language model on v6e 4x4, 16-way, libtpu 0.0.42.1: forward every weight gather is a
    ring and so is every weight gradient's reduction; the matrices used twice in the backward pass
    (again and for dX) are gathered synchronously, the last projection is not one of them.
    """
    plan = plan_of({"fsdp": 16}, seq_len=1024, global_batch=64)
    program = program_of(LM, plan, Slice("v6e", "4x4"))
    matrices = ("wq", "wk", "wv", "wo", "wi", "wo_mlp")
    forward = loop(program.body, "layers").body
    assert [op.name for op in forward if isinstance(op, Loop)] == [
        f"layer/{name}/ring" for name in matrices
    ]
    assert [op.name for op in forward if isinstance(op, Collective)] == [
        f"layer/{name}/first permute" for name in matrices
    ]
    backward = loop(program.body, "layers/d").body
    names = {op.name for op in backward if isinstance(op, Loop)}
    assert names == {f"bwd/layer/{m}/dw/ring" for m in matrices} | {"bwd/layer/wo_mlp/dx/ring"}
    gathers = [op for op in backward if isinstance(op, Collective) and "gather" in op.kind]
    assert {op.scope for op in gathers} == {f"layer/{m}" for m in matrices[:-1]}
    assert {op.mode for op in gathers} == {Mode.SYNC}


def test_maxtexts_flags_change_only_how_what_is_used_twice_is_gathered() -> None:
    """As compiled with them for 16 ways on v5p 2x2x4 and 8 ways on v6e 2x4: the same rings."""
    programs = {
        style: program_of(
            LM, plan_of({"fsdp": 16}, seq_len=1024, global_batch=64, style=style),
            Slice("v5p", "2x2x4"),
        )
        for style in ("plain", "maxtext")
    }  # fmt: skip
    for name in ("layers", "layers/d"):
        plain, maxtext = (loop(made.body, name).body for made in programs.values())
        assert [op.name for op in plain if isinstance(op, Loop)] == [
            op.name for op in maxtext if isinstance(op, Loop)
        ]
    gathers = [op for op in loop(programs["maxtext"].body, "layers/d").body
               if isinstance(op, Collective) and "gather" in op.kind]  # fmt: skip
    assert [op.mode for op in gathers] == [Mode.SYNC] + 4 * [Mode.ASYNC]


@pytest.mark.parametrize(
    ("chip", "topology", "devices"),
    [("v4", "2x4x4", 32), ("v5p", "2x4x4", 32), ("v6e", "4x8", 32), ("v5p", "4x4x4", 64)],
)
def test_maxtexts_heads_are_rings_over_up_to_32_devices(
    chip: str, topology: str, devices: int
) -> None:
    """They run before the layers."""
    plan = plan_of({"fsdp": devices}, seq_len=2048, global_batch=8 * devices, style="maxtext")
    names = [op.name for op in program_of(LM, plan, Slice(chip, topology)).body]
    assert ("logits/dw/ring" in names) == (devices == 32)
    if devices == 32:
        assert names.index("logits/dw/ring") < names.index("layers/d")


def test_what_was_fused_to_a_product_follows_its_ring_on_its_own() -> None:
    """Activations and residual sums; a perfect compiler keeps them in the epilogue."""
    plan = plan_of({"fsdp": 16}, seq_len=1024, global_batch=64)
    body = loop(program_of(LM, plan, Slice("v5p", "2x2x4")).body, "layers").body
    names = [op.name for op in body]
    for ring, group in (("wo", "mid"), ("wi", "silu"), ("wo_mlp", "layer_out")):
        assert names.index(f"layer/{group}") == names.index(f"layer/{ring}/ring") + 1
    assert all(
        op.work.epilogue_flops in (0, 7 * op.work.m * op.work.n)  # of the sum of two chunks
        for inner in body if isinstance(inner, Loop)
        for op in inner.body if isinstance(op, Compute) and isinstance(op.work, MatmulWork)
    )  # fmt: skip


@pytest.mark.parametrize(("room", "in_hbm"), [(4.0, 0.0), (3.5, 0.0), (2.0, 0.5), (1.9, 1.0)])
def test_small_accumulators_stay_on_the_chip(room: float, in_hbm: float) -> None:
    """room: over the bytes of the result."""
    assert RingSums(room=room * 2**24).in_hbm(2.0**24) == in_hbm


def test_an_operand_that_all_steps_read_stays_on_the_chip() -> None:
    assert RingSums(room=3.0 * 2**24).reads(2.0**24, 8) == 2.0**21
    assert RingSums(room=2.9 * 2**24).reads(2.0**24, 8) == 2.0**24


def test_chunks_are_added_in_an_epilogue_but_on_7x_in_bf16() -> None:
    plan = plan_of({"fsdp": 16}, seq_len=1024, global_batch=64)
    for pod, flops in ((Slice("v5p", "2x2x4"), 7), (Slice("7x", "2x2x2"), 3)):
        ring = loop(program_of(LM, plan, pod).body, "layer/wi/ring")
        first, second = parts(ring)[0]
        assert isinstance(first.work, MatmulWork)
        assert isinstance(second.work, MatmulWork)
        assert first.work.epilogue_flops == 0
        assert second.work.epilogue_flops == flops * second.work.m * second.work.n


@pytest.mark.parametrize(("batch", "apart"), [(16, False), (32, True)])
def test_chunks_of_experts_with_several_sequences_are_added_in_a_pass(
    batch: int, apart: bool
) -> None:
    model = small(embed=1024, mlp=2048, heads=8, head_dim=128, experts=8, experts_per_token=2)
    plan = plan_of({"fsdp": 16}, seq_len=2048, global_batch=batch, capacity_factor=1.25)
    ring = loop(program_of(model, plan, Slice("v4", "2x2x4")).body, "layer/expert_wi_0/ring")
    added = [op.work for op in ring.body if isinstance(op, Compute) and op.name.endswith("/add")]
    assert bool(added) == apart
    for work in parts(ring)[0]:
        assert isinstance(work.work, MatmulWork)
        assert not (apart and work.work.epilogue_flops)

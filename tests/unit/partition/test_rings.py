"""Collective matmuls: chunks that add up to the whole, on the wire and on the core."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
from plans import (
    ENCODER_480B,
    PLAN_480B,
    calcs,
    comms,
    loop,
    payload,
    plan_of,
    program_of,
    sizes_of,
    small,
    template_of,
    v4_2048,
)

from tpusim.graph import Einsum
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition.passes import Ring
from tpusim.partition.rings import done_after, ring_loop
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Template
from tpusim.partition.work import flops_of, work_of
from tpusim.program import Collective, CollectiveKind, Compute, Dep, Loop, Matmul, Mode

RULES = {"act_embed": "tensor"}


def rings(template: Template) -> Iterator[Ring]:
    """Every einsum with a collective that could be woven into it."""
    products = [calc for calc, _ in calcs(template) if isinstance(calc.op, Einsum)]
    for comm, _ in comms(template):
        for calc in products:
            gathered = comm.kind is CollectiveKind.ALL_GATHER and comm.writes[0] in calc.reads
            scattered = comm.kind is CollectiveKind.REDUCE_SCATTER and comm.maker == calc.op.name
            if gathered or (scattered and comm.reads[0] in calc.writes):
                yield Ring(calc, comm)


def parts(made: Loop) -> tuple[Compute, Collective]:
    (chunk,) = (op for op in made.body if isinstance(op, Compute) and op.name.endswith("chunk"))
    (permute,) = (op for op in made.body if isinstance(op, Collective))
    return chunk, permute


def exact(*numbers: float) -> Fraction:
    product = Fraction(1)
    for number in numbers:
        product *= Fraction(number)
    return product


@pytest.mark.parametrize("tensor", [2, 4, 8, 16])
def test_a_ring_moves_all_but_its_own_shard_and_computes_the_whole(tensor: int) -> None:
    model = small(heads=16, embed=256)
    plan = plan_of({"fsdp": 4, "tensor": tensor}, rules=RULES)
    template, sizes = template_of(model, plan), sizes_of(model, plan)
    found = list(rings(template))
    assert {ring.gathers for ring in found} == {True, False}
    for ring in found:
        made = ring_loop(ring, sizes, template.buffers, ())
        chunk, permute = parts(made)
        n = int(sizes.group(ring.comm.axes))
        assert made.trips * permute.bytes == payload(ring.comm, sizes) * (n - 1) / n
        assert permute.mode is Mode.RING
        whole = work_of(ring.calc, sizes, template.buffers)
        assert isinstance(whole, Matmul)
        assert isinstance(chunk.work, Matmul)
        shape = exact(chunk.work.batch, chunk.work.m, chunk.work.k, chunk.work.n)
        assert made.trips * shape == exact(whole.batch, whole.m, whole.k, whole.n)
        assert made.trips * chunk.work.epilogue_flops == whole.epilogue_flops
        assert made.trips * chunk.flops.total == flops_of(ring.calc, sizes).total


def test_three_devices_take_one_trip() -> None:
    model, plan = small(heads=9, kv_heads=9), plan_of({"tensor": 3}, rules=RULES)
    template = template_of(model, plan)
    sizes = Sizes(sizes_of(model, plan).dims, {"tensor": 3})
    ring = next(rings(template))
    made = ring_loop(ring, sizes, template.buffers, ())
    assert made.trips == 1
    assert parts(made)[1].bytes == pytest.approx(payload(ring.comm, sizes) * 2 / 3)


def test_a_chunk_never_reads_more_than_the_whole_but_rereads_what_it_needs() -> None:
    """Chunks of a free dimension read the other operand each trip: more in all, less in each."""
    model, plan = small(), plan_of({"fsdp": 4, "tensor": 8}, rules=RULES)
    template, sizes = template_of(model, plan), sizes_of(model, plan)
    for ring in rings(template):
        made = ring_loop(ring, sizes, template.buffers, ())
        chunk, _ = parts(made)
        whole = work_of(ring.calc, sizes, template.buffers)
        assert made.trips * chunk.work.read_bytes >= whole.read_bytes
        assert made.trips * chunk.work.write_bytes >= whole.write_bytes


def test_a_gathering_ring_multiplies_what_the_trip_before_received() -> None:
    program = program_of(ENCODER_480B, PLAN_480B, v4_2048())
    made = loop(program.body, "bwd/layer/wo/dx/ring")
    permute, chunk = made.body
    received = Dep(permute.name, 1)
    assert received in permute.deps
    assert received in chunk.deps
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
    assert parts(made)[1].bytes == 256 * 2**20 / 8 * 7 / 4


def test_what_follows_waits_for_the_last_operation_of_a_ring() -> None:
    model, plan = small(), plan_of({"tensor": 8}, rules=RULES, lowering="ideal")
    template, sizes = template_of(model, plan), sizes_of(model, plan)
    for ring in rings(template):
        names = [op.name for op in ring_loop(ring, sizes, template.buffers, ()).body]
        assert done_after(ring) == names[-1]


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
    assert not [op for op in forward if isinstance(op, Collective)]
    backward = loop(program.body, "layers/d").body
    names = {op.name for op in backward if isinstance(op, Loop)}
    assert names == {f"bwd/layer/{m}/dw/ring" for m in matrices} | {"bwd/layer/wo_mlp/dx/ring"}
    gathers = [op for op in backward if isinstance(op, Collective) and "gather" in op.kind]
    assert {op.scope for op in gathers} == {f"layer/{m}" for m in matrices[:-1]}
    assert {op.mode for op in gathers} == {Mode.SYNC}

"""Collective matmuls: a loop of chunks, each computed while the next one is on the wire.

As XLA unrolls them on a bidirectional ring of n: two chunks a trip, one from each side, so n / 2
trips with a permute both ways under way in each (Wang et al., ASPLOS 2023, section 4).
"""

from dataclasses import replace

from tpusim.graph import Einsum
from tpusim.partition.passes import Ring
from tpusim.partition.quantise import is_quantised, quantisation
from tpusim.partition.sizes import Sizes
from tpusim.partition.travel import conversion
from tpusim.partition.work import Buffers, flops_of, operand_bytes, vector_of, work_of
from tpusim.program import (
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Flops,
    Loop,
    Matmul,
    Mode,
    Number,
    Op,
    Vector,
)


def done_after(ring: Ring) -> str:
    """The operation of the loop after which the ring's result is complete."""
    return f"{ring.name}/{'chunk' if ring.gathers else 'permute'}"


def ring_loop(ring: Ring, sizes: Sizes, buffers: Buffers, deps: tuple[Dep, ...]) -> Loop:
    """The loop that computes `ring`; `deps` are what its operands wait for."""
    calc, comm = ring.calc, ring.comm
    n = int(sizes.group(comm.axes))
    trips = max(n // 2, 1)
    whole = work_of(calc, sizes, buffers)
    assert isinstance(whole, Matmul)
    nbytes = sizes.nbytes(comm.payload, comm.dtype)
    permute = Collective(
        name=f"{calc.name}/permute", phase=calc.phase, kind=CollectiveKind.PERMUTE, axes=comm.axes,
        bytes=nbytes * (n - 1) / n / trips, mode=Mode.RING, scope=comm.tensor,
        dtype=sizes.dtype(comm.dtype),
    )  # fmt: skip
    matmul = Compute(
        name=f"{calc.name}/chunk", phase=calc.phase, scope=calc.op.name,
        work=_chunk(ring, whole, sizes, trips), flops=_share(flops_of(calc, sizes), trips),
    )  # fmt: skip
    if ring.gathers:
        body = _gathering(permute, matmul, deps, _casts(ring, sizes, trips))
    else:
        body = _scattering(permute, matmul, nbytes / trips, sizes.itemsize(comm.dtype), deps)
    return Loop(name=f"{calc.name}/ring", trips=trips, body=body)


def _gathering(
    permute: Collective, matmul: Compute, deps: tuple[Dep, ...], casts: tuple[Compute, ...]
) -> tuple[Op, ...]:
    """Each trip multiplies the chunks that the trip before it received, cast first if need be."""
    received = (*deps, Dep(permute.name, 1))
    return (
        replace(permute, deps=received),
        *(replace(cast, deps=received) for cast in casts),
        replace(matmul, deps=(*received, *(Dep(cast.name) for cast in casts))),
    )


def _casts(ring: Ring, sizes: Sizes, trips: int) -> tuple[Compute, ...]:
    """The pass that casts one trip's chunk of what the ring gathers in another dtype."""
    calc, source = ring.calc, ring.comm.dtype
    gathered = next((t for t in calc.op.inputs if t.name == ring.comm.tensor), None)
    if gathered is None or gathered.dtype == source:
        return ()
    if isinstance(calc.op, Einsum) and is_quantised(calc.op):
        what, group = "quantise", quantisation(gathered, calc.phase, source=source)
    else:
        what, group = "cast", conversion(gathered, source, calc.phase)
    whole = vector_of(group, dict(calc.split), sizes)
    chunk = Vector(whole.read_bytes / trips, whole.write_bytes / trips, whole.flops / trips)
    name = f"{calc.name}/{what}"
    return (Compute(name=name, phase=calc.phase, scope=calc.op.name, work=chunk),)


def _scattering(
    permute: Collective, matmul: Compute, nbytes: Number, itemsize: float, deps: tuple[Dep, ...]
) -> tuple[Op, ...]:
    """Each trip adds its products to the sums that arrive, and sends them on.

    The addition unpacks two elements, adds, and packs one.
    """
    add = Compute(
        name=f"{matmul.name}/add", phase=matmul.phase, scope=matmul.scope,
        work=Vector(2 * nbytes, nbytes, 4 * nbytes / itemsize), deps=(Dep(permute.name, 1),),
    )  # fmt: skip
    return (replace(matmul, deps=deps), add, replace(permute, deps=(Dep(add.name),)))


def _chunk(ring: Ring, whole: Matmul, sizes: Sizes, trips: int) -> Matmul:
    """The matmul of one trip.

    A chunk of the contraction reads and writes its accumulator each trip; a chunk of a free
    dimension reads the operand that lacks it each trip.
    """
    calc, dim = ring.calc, ring.comm.dim
    op, split = calc.op, dict(calc.split)
    operands = {t: operand_bytes(t, split, sizes) for t in op.inputs}
    fused = (whole.read_bytes - sum(operands.values())) / trips
    reads = fused + sum(n / trips if dim in t.dims else n for t, n in operands.items())
    if dim not in op.outputs[0].dims:
        side, extra, writes = "k", whole.write_bytes, whole.write_bytes
    else:
        side = "m" if dim in op.inputs[0].dims else "n"
        extra, writes = 0, whole.write_bytes / trips
    return replace(
        whole, **{side: getattr(whole, side) / trips}, read_bytes=reads + extra,
        write_bytes=writes, epilogue_flops=whole.epilogue_flops / trips,
    )  # fmt: skip


def _share(flops: Flops, trips: int) -> Flops:
    """One trip's part of an operation's FLOPs; exact when the trips divide them."""

    def part(value: Number) -> Number:
        return value // trips if value % trips == 0 else value / trips

    return Flops(*(part(v) for v in (flops.model, flops.recompute, flops.redundant, flops.padding)))

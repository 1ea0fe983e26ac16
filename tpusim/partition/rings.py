"""Collective matmuls: a loop of chunks, each computed while the next one is on the wire.

As XLA unrolls them on a bidirectional ring of n: two chunks a step, one from each side, so n / 2
steps with a permute both ways under way in each (Wang et al., ASPLOS 2023, section 4).
"""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.graph import Einsum
from tpusim.partition.passes import Ring
from tpusim.partition.quantise import is_quantised, quantisation
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Purpose
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
    last = ("place" if _is_placed(ring) else "chunk") if ring.gathers else "permute"
    return f"{ring.name}/{last}"


def _is_placed(ring: Ring) -> bool:
    """Whether the result comes by columns, one chunk of the weight's each."""
    return ring.comm.purpose is Purpose.WEIGHT and ring.comm.dim in ring.calc.op.outputs[0].dims


def ring_loop(ring: Ring, sizes: Sizes, buffers: Buffers, deps: tuple[Dep, ...]) -> Loop:
    """The loop that computes `ring`; `deps` are what its operands wait for."""
    calc, comm = ring.calc, ring.comm
    n = int(sizes.group(comm.axes))
    steps = max(n // 2, 1)
    whole = work_of(calc, sizes, buffers)
    assert isinstance(whole, Matmul)
    nbytes = sizes.nbytes(comm.payload, comm.dtype)
    permute = Collective(
        name=f"{calc.name}/permute", phase=calc.phase, kind=CollectiveKind.PERMUTE, axes=comm.axes,
        bytes=nbytes * (n - 1) / n / steps, mode=Mode.RING, scope=comm.tensor,
        dtype=sizes.dtype(comm.dtype),
    )  # fmt: skip
    flops = _share(flops_of(calc, sizes), steps)
    matmuls = [
        Compute(
            name=f"{calc.name}/chunk", phase=calc.phase, scope=calc.op.name, work=work, flops=flops
        )
        for work in _chunks(ring, whole, sizes, steps)
    ]
    if ring.gathers:
        casts, placed = _casts(ring, sizes, steps), _placed(ring, whole, steps)
        body = (*_gathering(permute, matmuls, deps, casts), *placed)
    else:
        body = _scattering(permute, matmuls[0], nbytes / steps, sizes.itemsize(comm.dtype), deps)
    return Loop(name=f"{calc.name}/ring", trips=steps // len(matmuls), body=body)


def _gathering(
    permute: Collective, matmuls: Sequence[Compute], deps: tuple[Dep, ...],
    casts: tuple[Compute, ...],
) -> tuple[Op, ...]:  # fmt: skip
    """Each step multiplies the chunks that the step before it received, cast first if need be.

    A trip has a step for each of `matmuls`; the last one keeps the names.
    """
    ops: list[Op] = []
    received = (*deps, Dep(permute.name, 1))
    for left, matmul in zip(reversed(range(len(matmuls))), matmuls, strict=True):
        mark = f" ({left} before)" if left else ""
        made = [replace(cast, name=cast.name + mark, deps=received) for cast in casts]
        moved = replace(permute, name=permute.name + mark, deps=received)
        waits = (*received, *(Dep(cast.name) for cast in made))
        ops += [moved, *made, replace(matmul, name=matmul.name + mark, deps=waits)]
        received = (*deps, Dep(moved.name))
    return tuple(ops)


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


def _placed(ring: Ring, whole: Matmul, trips: int) -> tuple[Compute, ...]:
    """The copy of one trip's columns into the result, which is cleared first: a read, two writes.

    So it is where a weight is gathered by columns: the layer's output projections of plain language
    models, 16-way on v5p 2x2x4. Chunks of the contraction are summed in place.
    """
    if not _is_placed(ring):
        return ()
    calc = ring.calc
    nbytes = whole.write_bytes / trips
    work = Vector(nbytes, 2 * nbytes, 0.0)
    return (Compute(name=f"{calc.name}/place", phase=calc.phase, scope=calc.op.name, work=work),)


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


def _chunks(ring: Ring, whole: Matmul, sizes: Sizes, steps: int) -> tuple[Matmul, ...]:
    """The matmuls of one trip: one step's, or two steps' where chunks of a contraction are summed.

    There the first writes a product of its own, and the second reads it and the accumulator, and
    writes their sum with its own product; an odd number of steps sums each at once. A chunk of a
    free dimension reads the operand that lacks it each step.
    """
    calc, dim = ring.calc, ring.comm.dim
    op, split = calc.op, dict(calc.split)
    operands = {t: operand_bytes(t, split, sizes) for t in op.inputs}
    fused = (whole.read_bytes - sum(operands.values())) / steps
    reads = fused + sum(n / steps if dim in t.dims else n for t, n in operands.items())
    made, epilogue = whole.write_bytes, whole.epilogue_flops / steps
    if dim in op.outputs[0].dims:
        side = "m" if dim in op.inputs[0].dims else "n"
        part = {side: getattr(whole, side) / steps}
        return (replace(whole, **part, read_bytes=reads, write_bytes=made / steps,
                        epilogue_flops=epilogue),)  # fmt: skip
    sums = (0, 2) if steps % 2 == 0 else (1,)
    return tuple(
        replace(whole, k=whole.k / steps, read_bytes=reads + n * made, epilogue_flops=epilogue)
        for n in sums
    )


def _share(flops: Flops, trips: int) -> Flops:
    """One trip's part of an operation's FLOPs; exact when the trips divide them."""

    def part(value: Number) -> Number:
        return value // trips if value % trips == 0 else value / trips

    return Flops(*(part(v) for v in (flops.model, flops.recompute, flops.redundant, flops.padding)))

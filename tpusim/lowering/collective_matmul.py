"""Collective matmuls: a loop of chunks, each computed while the next one is on the wire.

As XLA unrolls them on a bidirectional ring of n: two chunks per step, one from each side, so n / 2
steps, in each of which permutes in both directions are in flight (Wang et al., ASPLOS 2023,
section 4).

Of a weight, each permute moves a whole chunk, the last ones too, and the two directions are half a
step apart: one more permute, in one direction, comes before the steps of a gather and after those
of a scatter. So a device receives n + 1 chunks, and not n - 1 (526 of 559 weights that move in
rings, in 48 compiled plans for v4 to 7x, libtpu 0.0.42.1). They go in the order of the mesh,
and so do those of activations (of 22 compiled plans that this moves, 20 are nearer). Rings of
activations move n + 1 chunks as well, but what that adds is hidden behind the work around them
(480-billion-parameter encoder; published runs of MaxText on v5p and v5e), so they are taken as
n - 1 chunks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tpusim.graph import Einsum, plain_dim
from tpusim.hardware import Chip
from tpusim.lowering.body_entries import UNROLLED_RING, CollectiveMatmul
from tpusim.lowering.op_work import flops_of, operand_bytes, vector_of
from tpusim.lowering.operand_dtypes import conversion, is_quantised, quantisation
from tpusim.network import Algorithm
from tpusim.partition import Purpose, Sizes
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Flops,
    Loop,
    MatmulWork,
    Mode,
    Number,
    Op,
    VectorWork,
    Work,
    at_least,
)

_SUM_FLOPS, _NARROW_SUM_FLOPS = 7.0, 3.0
"""Vector operations per element of the sum of a ring's accumulator and the results of two chunks:
two additions, and conversions but on 7x, in the epilogue of the second chunk's matmul (227 of
248 rings of 80 compiled plans on v4 to 7x, within an operation; libtpu 0.0.42.1)."""

_NARROW_SUMS = ("7x",)
"""The generations that add in bf16."""

_FIRST, _LAST = "first permute", "last permute"
"""Names of the permutes in one direction, before the loop and after it."""


def done_after(ring: CollectiveMatmul) -> str:
    """Return the operation after which the result is complete."""
    if ring.gathers:
        return f"{ring.name}/{'place' if _is_placed(ring) else 'chunk'}"
    return f"{ring.name}/{_LAST if _moves_weight(ring) else 'permute'}"


def _moves_weight(ring: CollectiveMatmul) -> bool:
    """Return True if it moves a weight or the gradient of one, and no activation."""
    return ring.collective.purpose in (Purpose.WEIGHT, Purpose.GRADIENT)


def _is_placed(ring: CollectiveMatmul) -> bool:
    """Return True if the result arrives by columns, one for each chunk of the weight."""
    return (
        ring.collective.purpose is Purpose.WEIGHT
        and ring.collective.dim in ring.compute.op.outputs[0].dims
    )


class RingSums(NamedTuple):
    """How the chunks of a contraction are added up.

    flops: vector operations of each element, when the results of two chunks are added.
    room: bytes on the chip for the results and the accumulator.
    apart: they are added in a pass of their own.
    """

    flops: float = _SUM_FLOPS
    room: float = 0.0
    apart: bool = False

    @classmethod
    def of(cls, chip: Chip, room: float) -> "RingSums":
        """Return what programs for a chip do. room: see `on_chip_room`."""
        narrow = chip.generation in _NARROW_SUMS
        return cls(_NARROW_SUM_FLOPS if narrow else _SUM_FLOPS, room)

    def in_hbm(self, made: Number) -> Number:
        """Return the part of an accumulator's traffic that crosses HBM. made: its bytes.

        The accumulator and the two results of a step that are there at once are on the chip where
        there is room for three and a half of them (31 of 35 rings on v4, v5e and v6e), in part
        where there is room for two (15 of 20, five are there whole), and else in HBM (42 of 43).
        On v5p all are in HBM (81 of 81), and most on 7x (54 of 63; libtpu 0.0.42.1).
        """
        halves = 2 * self.room / float(made)
        return 1 - (at_least(halves, 7) + at_least(halves, 4)) / 2

    def reads(self, operand: Number, steps: int) -> Number:
        """Return the bytes that a step reads of an operand that all steps read whole.

        It stays on the chip where there is room for three of it: on v4, v5e and v6e in 116 of 148
        matmuls of rings, and with less room in 33 of 182; on v5p in 63 of 272 and on 7x in 35 of
        260, by rules that sizes do not tell (100 compiled plans, libtpu 0.0.42.1).
        """
        return operand / steps if self.room >= 3 * operand else operand


def ring_ops(
    ring: CollectiveMatmul,
    sizes: Sizes,
    whole: Work,
    deps: tuple[Dep, ...],
    sums: RingSums,
) -> tuple[Op, ...]:
    """Return the loop that computes `ring`, and the permute in one direction before or after it.

    whole: the work of its matmul at once.
    deps: dependencies of its operands.
    sums: how its chunks are added up, if they are.
    """
    compute, collective = ring.compute, ring.collective
    n = int(sizes.group(collective.axes))
    steps = max(n // 2, 1)
    assert isinstance(whole, MatmulWork)
    nbytes = sizes.nbytes(collective.payload, collective.dtype)
    weights = _moves_weight(ring)
    sums = sums._replace(apart=_adds_apart(ring, sizes))
    permute = Collective(
        name=f"{compute.name}/permute",
        phase=compute.phase,
        kind=CollectiveKind.PERMUTE,
        axes=collective.axes,
        algorithm=Algorithm.MESH_ORDER,
        bytes=2 * nbytes / n if weights else nbytes * (n - 1) / n / steps,
        mode=ring.mode,
        scope=collective.tensor,
        dtype=sizes.dtype(collective.dtype),
    )
    flops = _share(flops_of(compute, sizes), steps)
    matmuls = [
        Compute(
            name=f"{compute.name}/chunk",
            phase=compute.phase,
            scope=compute.op.name,
            work=work,
            flops=flops,
        )
        for work in _chunks(ring, whole, sizes, steps, sums)
    ]
    name, trips = f"{compute.name}/ring", steps // len(matmuls)
    alone = replace(permute, bytes=nbytes / n, algorithm=Algorithm.ONWARD)
    if ring.gathers:
        first = replace(alone, name=f"{compute.name}/{_FIRST}", deps=deps)
        before = (first,) if weights else ()
        waits = (*deps, *(Dep(op.name) for op in before))
        casts, placed = _casts(ring, sizes, steps), _placed(ring, whole, steps)
        added = _added_apart(ring, whole, sums) if len(matmuls) > 1 else ()
        body = (*_gathering(permute, matmuls, waits, casts), *placed, *added)
        return (*before, Loop(name=name, trips=trips, body=body))
    body = _scattering(permute, matmuls[0], nbytes / steps, sizes.itemsize(collective.dtype), deps)
    last = replace(alone, name=f"{compute.name}/{_LAST}", deps=(Dep(permute.name),))
    loop = Loop(name=name, trips=trips, body=body)
    if not weights:
        return (loop,)
    return (_with_sums(loop, nbytes / steps) if n > UNROLLED_RING else loop, last)


def _gathering(
    permute: Collective,
    matmuls: Sequence[Compute],
    deps: tuple[Dep, ...],
    casts: tuple[Compute, ...],
) -> tuple[Op, ...]:
    """Return a body in which each step multiplies the chunks received before, cast if need be.

    An iteration has a step for each of `matmuls`; the last one keeps the names.
    """
    ops: list[Op] = []
    received = (*deps, Dep(permute.name, 1))
    for left, matmul in zip(reversed(range(len(matmuls))), matmuls, strict=True):
        mark = f" ({left} before)" if left else ""
        made = [replace(cast, name=cast.name + mark, deps=received) for cast in casts]
        moved = _both_ways(replace(permute, name=permute.name + mark, deps=received))
        waits = (*received, *(Dep(cast.name) for cast in made))
        ops += [*moved, *made, replace(matmul, name=matmul.name + mark, deps=waits)]
        received = (*deps, Dep(moved[-1].name))
    return tuple(ops)


def _both_ways(permute: Collective) -> tuple[Collective, ...]:
    """Return the permutes of a step: at once, or one way after the other if the core waits."""
    if permute.mode is not Mode.SYNC:
        return (permute,)
    one = replace(permute, bytes=permute.bytes / 2, algorithm=Algorithm.ONWARD)
    return (replace(one, name=f"{permute.name} (back)"), one)


def _casts(ring: CollectiveMatmul, sizes: Sizes, trips: int) -> tuple[Compute, ...]:
    """Return the cast of one iteration's chunk, if the ring gathers in another dtype."""
    compute, source = ring.compute, ring.collective.dtype
    gathered = next((t for t in compute.op.inputs if t.name == ring.collective.tensor), None)
    if gathered is None or gathered.dtype == source:
        return ()
    if isinstance(compute.op, Einsum) and is_quantised(compute.op):
        what, group = "quantise", quantisation(gathered, compute.phase, source=source)
    else:
        what, group = "cast", conversion(gathered, source, compute.phase)
    whole = vector_of(group, dict(compute.split), sizes)
    chunk = VectorWork(whole.read_bytes / trips, whole.write_bytes / trips, whole.flops / trips)
    name = f"{compute.name}/{what}"
    return (Compute(name=name, phase=compute.phase, scope=compute.op.name, work=chunk),)


def _placed(ring: CollectiveMatmul, whole: MatmulWork, trips: int) -> tuple[Compute, ...]:
    """Return the copy of an iteration's columns into the cleared result: a read, two writes.

    So it is where a weight is gathered by columns: the layer's output projections of plain language
    models, 16-way on v5p 2x2x4. Chunks of the contraction are summed in place.
    """
    if not _is_placed(ring):
        return ()
    compute = ring.compute
    nbytes = whole.write_bytes / trips
    work = VectorWork(nbytes, 2 * nbytes, 0.0)
    return (
        Compute(
            name=f"{compute.name}/place", phase=compute.phase, scope=compute.op.name, work=work
        ),
    )


def _adds_apart(ring: CollectiveMatmul, sizes: Sizes) -> bool:
    """Return True if a matmul in batches leaves its results in another order than their sum.

    So the matmuls of experts do whose device has several sequences (five of five plans on v4, v5e
    and 7x), and not those that have one (three of three on v4 and v5p; libtpu 0.0.42.1).
    """
    op, split = ring.compute.op, dict(ring.compute.split)
    assert isinstance(op, Einsum)
    batched = {*op.lhs.dims} & {*op.rhs.dims} & {*op.output.dims}
    return bool(batched) and any(
        plain_dim(dim) == "batch" and sizes.extent(dim, split.get(dim, ())) > 1
        for dim in op.output.dims
    )


def _added_apart(ring: CollectiveMatmul, whole: MatmulWork, sums: RingSums) -> tuple[Compute, ...]:
    """Return the pass that adds the results of two chunks to the accumulator, if there is one."""
    if not sums.apart:
        return ()
    compute, made = ring.compute, whole.write_bytes * sums.in_hbm(whole.write_bytes)
    flops = sums.flops * whole.batch * whole.m * whole.n
    work = VectorWork(3 * made, made, flops)
    name = f"{compute.name}/add"
    return (Compute(name=name, phase=compute.phase, scope=compute.op.name, work=work),)


def _scattering(
    permute: Collective, matmul: Compute, nbytes: Number, itemsize: float, deps: tuple[Dep, ...]
) -> tuple[Op, ...]:
    """Return a body that adds its matmuls to the sums that arrive, and sends them on.

    The addition unpacks two elements, adds, and packs one.
    """
    add = Compute(
        name=f"{matmul.name}/add",
        phase=matmul.phase,
        scope=matmul.scope,
        work=VectorWork(2 * nbytes, nbytes, 4 * nbytes / itemsize),
        deps=(Dep(permute.name, 1),),
    )
    moved = _both_ways(replace(permute, deps=(Dep(add.name),)))
    return (replace(matmul, deps=deps), add, *moved)


def _with_sums(loop: Loop, nbytes: Number) -> Loop:
    """Return a loop that scatters the gradient of a weight, with the buffers of its sums.

    nbytes: of a step's chunks, one for each direction.

    They are carried, and beside them are the products of a step, what they are added up to, and
    what the permutes receive: six shards and more beside a tile of the logits (tied tables in 2 to
    16 tiles on v4, v5e and v5p, six of six; libtpu 0.0.42.1).
    """
    carried, products, sums, received = (
        Alloc(f"{loop.name}/{what}", nbytes, "unreduced gradients")
        for what in ("carried", "products", "sums", "received")
    )
    matmul, add, *moved = loop.body
    last = moved[-1]
    body = (
        _held(matmul, (products,)),
        _held(add, (sums,), (products.tensor,)),
        *moved[:-1],
        _held(last, (received,), (sums.tensor, received.tensor)),
    )
    return replace(loop, body=body, allocs=(carried,), frees=(carried.tensor,))


def _held(op: Op, allocs: tuple[Alloc, ...], frees: tuple[str, ...] = ()) -> Op:
    assert isinstance(op, Compute | Collective)
    return replace(op, allocs=allocs, frees=frees)


def _chunks(
    ring: CollectiveMatmul, whole: MatmulWork, sizes: Sizes, steps: int, sums: RingSums
) -> tuple[MatmulWork, ...]:
    """Return the matmuls of an iteration: one step, or two if chunks of a contraction are summed.

    There the first writes its own result, and the second reads it and the accumulator, and
    writes their sum with its own result; an odd number of steps sums each at once. A chunk of a
    free dimension reads the operand that lacks it each step.
    """
    compute, dim = ring.compute, ring.collective.dim
    op, split = compute.op, dict(compute.split)
    operands = {t: operand_bytes(t, split, sizes) for t in op.inputs}
    fused = (whole.read_bytes - sum(operands.values())) / steps
    reads = fused + sum(
        n / steps if dim in t.dims else sums.reads(n, steps) for t, n in operands.items()
    )
    made, epilogue = whole.write_bytes, whole.epilogue_flops / steps
    if dim in op.outputs[0].dims:
        side = "m" if dim in op.inputs[0].dims else "n"
        part = {side: getattr(whole, side) / steps}
        return (
            replace(
                whole, **part, read_bytes=reads, write_bytes=made / steps, epilogue_flops=epilogue
            ),
        )
    added = (0, 0 if sums.apart else 2) if steps % 2 == 0 else (1,)
    elements, moved = whole.batch * whole.m * whole.n, made * sums.in_hbm(made)
    return tuple(
        replace(
            whole,
            k=whole.k / steps,
            read_bytes=reads + n * moved,
            write_bytes=moved,
            epilogue_flops=epilogue + n / 2 * sums.flops * elements,
        )
        for n in added
    )


def _part(value: Number, trips: int) -> Number:
    return value // trips if value % trips == 0 else value / trips


def _share(flops: Flops, trips: int) -> Flops:
    """Return one iteration's part of an operation's FLOPs; exact if the iterations divide them."""

    return Flops(
        *(_part(v, trips) for v in (flops.model, flops.recompute, flops.redundant, flops.padding))
    )

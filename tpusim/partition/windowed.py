"""Convolutions and pools over sharded positions: their division, halos and mirrored shards."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpusim.graph import Convolution, Pool, Tensor, WindowsRead
from tpusim.partition import split as divide
from tpusim.partition.body_builder import BodyBuilder, ShardedValue
from tpusim.partition.halo import Edge, Halo
from tpusim.partition.layout import LocalShape
from tpusim.partition.partitioned_graph import CollectiveNode, Purpose
from tpusim.plan import Axes
from tpusim.program import CollectiveKind


def windowed(builder: BodyBuilder, op: Convolution | Pool) -> None:
    """Emit a convolution or a pool: positions are divided alike before and after, with halos.

    For the division, dimensions of the activation that follow one of the output have its name. The
    gradient of a kernel is then contracted over sharded positions, as over a sharded batch.
    """
    named = dict(op.alike)
    (output,) = op.outputs
    operands = [(_renamed(tensor, named), builder.reduced(tensor).layout) for tensor in op.inputs]
    result, wanted = _renamed(output, named), builder.layout_of(output)
    if isinstance(op, Convolution):
        split = divide.contraction(operands, result, wanted)
    else:
        split = divide.pointwise(operands, [(result, wanted)])
    split |= {dim: split[like] for dim, like in named.items() if like in split}
    values = {t.name: replace(builder.value_for(t, split), tensor=t) for t in op.inputs}
    if isinstance(op, Convolution) and op.transposed and op.makes_kernel:
        values = {name: _mirrored(builder, value, op) for name, value in values.items()}
    reads = [value.key for value in values.values()]
    for read in op.windows_read(builder.sizes):
        value = values[read.tensor.name]
        reads += _exchange(builder, value, _halos(builder, value, read))
    made = builder.compute(op, split, reads)
    if isinstance(op, Convolution) and op.makes_kernel and not op.is_matmul(builder.sizes):
        made = tuple(_summed_over_positions(builder, value, op, split) for value in made)
    builder.settle_results(made)


def _summed_over_positions(
    builder: BodyBuilder, value: ShardedValue, op: Convolution, split: Mapping[str, Axes]
) -> ShardedValue:
    """Return a kernel's gradient that is partial over the axes of the batch alone.

    XLA partitions the windows by themselves: a gradient is all-reduced over the axes of positions
    first, and over those of the batch in a second all-reduce; that of a kernel of one tap without
    a stride is a matmul, and reduced once. Nine programs of 3-D U-Nets, a diffusion U-Net, residual
    networks, Mask R-CNN and MetNet-2 on v3, v4, v5e, v5p and v6e (libtpu 0.0.42.1).
    """
    spatial = {axis for dim in op.positions for axis in split.get(dim, ())}
    others = tuple(axis for axis in value.partial if axis not in spatial)
    if not others or others == value.partial:
        return value
    summed = builder.reduced_term(value, value.layout, kept=others)
    builder.held[value.tensor.name] = summed
    return summed


def _mirrored(builder: BodyBuilder, value: ShardedValue, op: Convolution) -> ShardedValue:
    """Return an operand of the gradient of a transposed convolution's kernel.

    XLA reverses both of them along the positions, so each device sends its shards to the one that
    is as far from the other end (transposed convolutions of 2 and 3 taps, 4 and 8 shards, on v4,
    v5e, v5p and v6e, 7 programs, libtpu 0.0.42.1).
    """
    for window in op.windows:
        for dim in value.tensor.dims:
            if dim in (window.in_dim, window.out_dim):
                value = _reversed(builder, value, dim)
    return value


def _renamed(tensor: Tensor, named: Mapping[str, str]) -> Tensor:
    return tensor.view(tuple(named.get(dim, dim) for dim in tensor.dims))


def _halos(builder: BodyBuilder, value: ShardedValue, read: WindowsRead) -> list[Halo]:
    """Return the halos that an operand needs over its sharded dimensions."""
    sizes = builder.sizes
    sharded = {dim for dim, axes in zip(read.tensor.dims, value.layout, strict=True) if axes}
    further = {window.out_dim: window for window in read.beyond}
    halos = []
    for window in read.windows:
        if window.in_dim not in sharded:
            continue
        taps, back = sizes[window.tap_dim], further.get(window.in_dim)
        beyond = Halo.of(back, sizes[back.in_dim], taps) if back else None
        halos.append(Halo.of(window, sizes[window.in_dim], taps, beyond))
    return [halo for halo in halos if not halo.empty]


def _exchange(builder: BodyBuilder, value: ShardedValue, halos: Sequence[Halo]) -> list[str]:
    """Emit the exchange of halos of a value, one per sharded dimension; return their buffers.

    Each dimension is exchanged with the rows that the ones before it brought (a convolution over
    two sharded dimensions, v5e 4x4, libtpu 0.0.42.1). Both sides are emitted, as the sizes of axes
    decide which are empty and which another reader has received already; see
    `lowering/passes/halos.py`.
    """
    keys: list[str] = []
    for place, halo in enumerate(halos):
        reads, before = (value.key, *keys), tuple(halos[:place])
        for after in (False, True):
            edge = Edge(halo, after)
            local = LocalShape(value.tensor.dims, value.layout, before, edge)
            side = "after" if after else "before"
            keys.append(_permute(builder, value, local, halo.dim, side, reads))
    return keys


def _reversed(builder: BodyBuilder, value: ShardedValue, dim: str) -> ShardedValue:
    """Emit the exchange of shards of a dimension in their reverse order, if it is sharded."""
    local = LocalShape(value.tensor.dims, value.layout)
    if not local.split()[dim]:
        return value
    key = _permute(builder, value, local, dim, "mirrored", (value.key,))
    return replace(value, key=key)


def _permute(
    builder: BodyBuilder,
    value: ShardedValue,
    local: LocalShape,
    dim: str,
    what: str,
    reads: tuple[str, ...],
) -> str:
    """Emit a permute along the axes of a dimension; return the buffer that it writes."""
    key = builder.unused(f"{value.key}@{dim} {what}")
    builder.nodes.append(
        CollectiveNode(
            name=f"{CollectiveKind.PERMUTE}/{key}",
            phase=builder.phase,
            kind=CollectiveKind.PERMUTE,
            axes=local.split()[dim],
            payload=local,
            dtype=value.tensor.dtype,
            purpose=Purpose.ACTIVATION,
            reads=reads,
            writes=(key,),
            tensor=value.tensor.name,
            dim=dim,
        )
    )
    builder.buffer(key, local, value.tensor.dtype, "activations")
    return key

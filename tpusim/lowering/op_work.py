"""Work and FLOPs of partitioned operations, from local extents."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpusim import graph, program
from tpusim.base.phase import Phase
from tpusim.graph import Op, Tensor, plain_dim, union_dims
from tpusim.lowering.active_experts import active_groups
from tpusim.lowering.cached_attention_work import cached_attention_work, cached_linear_work
from tpusim.lowering.operand_dtypes import SCALE_FLOPS, is_quantised
from tpusim.lowering.routing_work import routing_work, with_picked_bias
from tpusim.partition import Buffer, CollectiveNode, ComputeNode, Sizes
from tpusim.plan import Axes
from tpusim.program import (
    Flops,
    Number,
    Pass,
    Work,
    grouped_bytes_read,
    tokamax_tiles,
)

Buffers = Mapping[str, Buffer]

FILL_SUMMED, FILL_KEPT = 3.1e-3, 1.8e-3
"""Vector operations per multiplication by a weight in half-empty tiles, by whether its rows are
summed.

From the compiler's cycles on 7x, over those of weights in whole tiles: [tokens, 3840] by [3840,
15360] 1.36 and 1.32 times for 32,768 and 8,192 tokens, [32768, 2048] by [2048, 8192] 1.44 times;
the input's gradient of the first 1.19 times (libtpu 0.0.42.1).
"""


def work_of(compute: ComputeNode, sizes: Sizes, buffers: Buffers) -> Work:
    """Return the local work of an operation, with its fused groups."""
    op = compute.op
    split = _split_of_all(compute)
    sizes = sizes.arranged(compute.arrangement)
    read, written = _bytes(compute, split, sizes, buffers)
    epilogue = _fused_flops(compute, split, sizes)
    match op:
        case graph.Einsum():
            dims = _matrix_dims(op)
            batch, m, k, n = (sizes.product(tuple(group), split) for group in dims)
            dtype = sizes.compute_dtype
            epilogue += _narrowing(op, split, sizes) + _inlined_flops(compute, split, sizes)
            if is_quantised(op):
                epilogue += SCALE_FLOPS * batch * m * n
                dtype = op.lhs.dtype
            if compute.half_tiles:
                kept = compute.half_tiles in op.output.dims
                epilogue += (FILL_KEPT if kept else FILL_SUMMED) * batch * m * k * n
            if not op.ragged:
                return program.MatmulWork(batch, m, k, n, dtype, read, written, epilogue)
            ragged = "k" if "slot" not in op.output.dims else "m"
            batch, m = active_groups(batch, m, sizes)
            tiles = _tiles(op, dims[1:], (batch, m, k, n), sizes)
            item = sizes.itemsize(op.lhs.dtype)
            other = sizes.itemsize(op.rhs.dtype)
            read = grouped_bytes_read(batch, m, k, n, ragged, item, tiles, other)
            return program.MatmulWork(batch, m, k, n, dtype, read, written, epilogue, ragged, tiles)
        case graph.Convolution():
            return _convolution(op, split, sizes, read, written, epilogue)
        case graph.Pool():
            return _pool(op, split, sizes, read, written)
        case graph.Attention():
            return _attention(op, split, sizes, read, written)
        case graph.CachedAttention():
            return cached_attention_work(op, split, sizes)
        case graph.LinearAttention():
            if graph.DECODES in sizes.dims and op.state is not None:
                given = replace(op, state=None)
                tensors = (given.inputs, given.outputs)
                each = [sum(operand_bytes(t, split, sizes) for t in ts) for ts in tensors]
                tokens = _linear_attention(given, split, sizes, *each)
                return cached_linear_work(op, split, sizes, _of_one_token(tokens))
            return _linear_attention(op, split, sizes, read, written)
        case graph.Gather() | graph.Scatter():
            rows = operand_bytes(
                op.outputs[0] if isinstance(op, graph.Gather) else op.rows, split, sizes
            )
            return program.VectorWork(read, written, rows / sizes.itemsize("compute"))
        case graph.TokenRouting():
            return routing_work(op, split, sizes)
        case graph.StateUpdate():
            moved = sizes.product(op.value.dims, split) * sizes.itemsize(op.state.dtype)
            return program.VectorWork(moved, moved, 0)
        case graph.Pointwise():
            flops = epilogue if op.after_sums else _vector_flops(op, split, sizes) + epilogue
            if op.scatters:
                return _scatter_of_elements(op, split, sizes, read, written, flops)
            spare = sizes.spare(_dims(op), split)
            whole = program.VectorWork(spare * read, spare * written, spare * flops)
            return with_picked_bias(op, whole, split, sizes)
    raise TypeError(f"{compute.name}: no work is known for {type(op).__name__}")


def _split_of_all(compute: ComputeNode) -> dict[str, Axes]:
    """Return the axes of the dimensions of an operation and of what is fused to it.

    A group that follows a change of dimensions has others than the operation.
    """
    return {dim: axes for part in (*compute.parts, compute) for dim, axes in part.split}


def flops_of(compute: ComputeNode, sizes: Sizes) -> Flops:
    """Return the matrix FLOPs of all devices: model, recompute, redundant and padding.

    Local FLOPs x devices = model + masked + padding + redundant, exactly: what every device
    computes is the padded operation divided by the axes of its split, and the axes that it does
    not use repeat it.
    """
    op, split = compute.op, dict(compute.split)
    whole = graph.executed_flops(op, sizes.dims)
    if not whole:
        return Flops()
    arranged = sizes.arranged(compute.arrangement)
    padded_sizes = {**sizes.dims, **{d: arranged.padded((d,), split) for d in _dims(op)}}
    padded = graph.executed_flops(op, padded_sizes)  # type: ignore[arg-type]
    copies = sizes.group(idle_axes(compute, sizes))
    model = graph.model_flops(op, sizes.dims)
    redundant = (copies - 1) * padded + (whole - model)
    recompute = op.phase is Phase.RECOMPUTE
    return Flops(
        model=0 if recompute else model,
        recompute=model if recompute else 0,
        redundant=redundant,
        padding=padded - whole,
    )


def idle_axes(compute: ComputeNode, sizes: Sizes) -> Axes:
    """Return the axes that divide no dimension of an operation, whose devices all repeat it."""
    used = {axis for _, axes in compute.split for axis in axes}
    return tuple(axis for axis in sizes.axes if axis not in used)


def _dims(op: Op) -> tuple[str, ...]:
    return union_dims(*op.inputs, *op.outputs)


def _matrix_dims(op: graph.Einsum) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return batch, m, k, n: dimensions of operands and result, of one operand, summed.

    The columns of a grouped kernel are the last dimension of its result.
    """
    left, right, out = set(op.lhs.dims), set(op.rhs.dims), set(op.output.dims)
    dims = union_dims(op.lhs, op.rhs)
    batch = [d for d in dims if d in left and d in right and d in out]
    m = [d for d in dims if d in left and d not in right and d in out]
    k = [d for d in dims if d not in out]
    n = [d for d in dims if d in right and d not in left and d in out]
    return (batch, n, k, m) if op.ragged and op.output.dims[-1] in m else (batch, m, k, n)


def _tiles(
    op: graph.Einsum,
    groups: Sequence[Sequence[str]],
    extents: tuple[Number, Number, Number, Number],
    sizes: Sizes,
) -> tuple[Number, ...]:
    """Return the tiles of m, k and n of a grouped kernel: those of the plan, or Tokamax's own.

    groups: dimensions of m, k and n.
    extents: of the batch and of m, k and n.
    """
    if sizes.tiles:
        return tuple(_tile(group, sizes) for group in groups)
    batch, m, k, n = extents
    small = is_quantised(op)
    if "slot" not in op.output.dims:
        rows, height, width = tokamax_tiles(batch * k, m, n, "weights", batch, small)
        return height, rows, width
    direction: Pass = "rows" if op.phase is Phase.BACKWARD else "forward"
    return tokamax_tiles(batch * m, k, n, direction, batch, small)


def _tile(dims: Sequence[str], sizes: Sizes) -> int:
    """Return the tile of a side of a grouped kernel: of its rows, of `embed` or of its width."""
    rows, embed, width = sizes.tiles
    if "slot" in dims:
        return rows
    return embed if any(plain_dim(dim) == "embed" for dim in dims) else width


def _narrowing(op: graph.Einsum, split: Mapping[str, Axes], sizes: Sizes) -> Number:
    """Return the conversions of operands wider than their matmul: one per element."""
    wide = sizes.itemsize("compute")
    return sum(sizes.product(t.dims, split) for t in op.inputs if sizes.itemsize(t.dtype) > wide)


def _convolution(
    op: graph.Convolution,
    split: Mapping[str, Axes],
    sizes: Sizes,
    read: Number,
    written: Number,
    epilogue: Number,
) -> program.ConvolutionWork | program.MatmulWork:
    """Return the work of a convolution or of one of its transposes.

    A transposed convolution is the input gradient of the one that it transposes. One of a sequence
    with a single tap and no stride is a matmul of tokens, as compiled programs are read too.
    """
    batch, positions, taps, one_group, out_channels = (
        sizes.product(dims, split)
        for dims in (op.examples, op.positions, op.taps, op.in_channels, op.out_channels)
    )
    groups = out_channels if op.depthwise else op.groups
    channels = groups * one_group, out_channels
    in_channels, out_channels = reversed(channels) if op.transposed else channels
    if len(op.windows) == 1 and op.is_matmul(sizes.dims):
        m, k, n = batch * positions, in_channels, out_channels
        if op.given:
            m, k, n = (in_channels, m, out_channels) if op.makes_kernel else (m, out_channels, k)
        return program.MatmulWork(1, m, k, n, sizes.compute_dtype, read, written, epilogue)
    parts = sizes.parts(op.positions)
    return program.ConvolutionWork(
        parts * batch,
        positions / parts,
        taps,
        in_channels,
        out_channels,
        sizes.compute_dtype,
        read,
        written,
        epilogue,
        gradient=_gradient(op),
        window=tuple(int(sizes.extent(dim, ())) for dim in op.taps),
        strides=tuple(max(window.stride, window.input_dilation) for window in op.windows),
        tiled=True,
        groups=groups,
        dilation=max((window.dilation for window in op.windows), default=1),
    )


def _gradient(op: graph.Convolution) -> str:
    """Return the gradient that a convolution computes of one that is not transposed."""
    if op.given and op.makes_kernel:
        return "weight"
    return "input" if bool(op.given) is not op.transposed else ""


def _pool(
    op: graph.Pool, split: Mapping[str, Axes], sizes: Sizes, read: Number, written: Number
) -> program.VectorWork:
    """Return the work of a pool: a maximum or addition for each tap of each output.

    The gradient of a maximum finds it again, and then adds to the place where it was.
    """
    taps = sizes.product((*op.output.dims, *op.taps), split)
    again = 2 if op.maximum and op.given else 1
    narrow = (t for t in (*op.inputs, *op.outputs) if sizes.itemsize(t.dtype) < 4)
    converted = sum(sizes.product(tensor.dims, split) for tensor in narrow)
    return program.VectorWork(read, written, again * taps + converted)


def _attention(
    op: graph.Attention, split: Mapping[str, Axes], sizes: Sizes, read: Number, written: Number
) -> program.AttentionWork:
    batch, q_len, heads, head_dim = (sizes.extent(d, split.get(d, ())) for d in op.query.dims)
    kv_len = sizes.extent(op.key.dims[1], split.get(op.key.dims[1], ()))
    value = op.value.dims[-1]
    value_dim = sizes.extent(value, ()) if value != op.query.dims[-1] else 0
    return program.AttentionWork(
        batch=batch,
        heads=heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=sizes.compute_dtype,
        causal=op.causal,
        window=op.window,
        backward=op.backward,
        read_bytes=read,
        write_bytes=written,
        value_dim=value_dim,
        block=sizes.kernel.block_of(backward=op.backward),
        fused=sizes.kernel.fused,
        library=sizes.kernel.library,
    )


def _linear_attention(
    op: graph.LinearAttention,
    split: Mapping[str, Axes],
    sizes: Sizes,
    read: Number,
    written: Number,
) -> program.LinearAttentionWork:
    """Return the work of a kernel of linear attention, which writes its state where it reads it."""
    batch, q_len, heads, value_dim = (sizes.extent(d, split.get(d, ())) for d in op.value.dims)
    decays = op.decay.dims if op.decay else ()
    return program.LinearAttentionWork(
        batch=batch,
        heads=heads,
        q_len=q_len,
        key_dim=sizes.extent(op.key.dims[-1], ()),
        value_dim=value_dim,
        dtype=sizes.compute_dtype,
        decay="channel" if op.key.dims[-1] in decays else "head" if decays else "",
        delta=op.strength is not None,
        backward=op.backward,
        read_bytes=read,
        write_bytes=written + (operand_bytes(op.state, split, sizes) if op.state else 0),
    )


def _of_one_token(work: program.LinearAttentionWork) -> program.LinearAttentionWork:
    """Return the work of a kernel on one of its tokens."""
    tokens = work.batch * work.q_len
    read, written = work.read_bytes / tokens, work.write_bytes / tokens
    return replace(work, batch=1, q_len=1, read_bytes=read, write_bytes=written)


def _scatter_of_elements(
    op: graph.Pointwise,
    split: Mapping[str, Axes],
    sizes: Sizes,
    read: Number,
    written: Number,
    flops: Number,
) -> program.VectorWork:
    """Return the work of a group that adds one element to each row of its result, by its index.

    One without statistics touches these elements only, in place.
    """
    rows = tuple(dim for dim in op.outputs[0].dims if dim != op.picks)
    elements = sizes.product(rows, split)
    return program.VectorWork(read if op.over else 0, written if op.over else 0, flops, elements)


def _vector_flops(group: graph.Pointwise, split: Mapping[str, Axes], sizes: Sizes) -> Number:
    """Return the vector operations of a group: arithmetic, and a conversion per narrow element.

    The vector unit computes in f32; bf16 operands are unpacked and results packed again, one
    operation per element each (JAX documentation, Pallas TPU details: "mostly f32").
    """
    tensors = (*group.inputs, *group.outputs)
    largest = max(tensors, key=lambda tensor: len(tensor.dims))
    converted = sum(
        elements(tensor, split, sizes) for tensor in tensors if sizes.itemsize(tensor.dtype) < 4
    )
    return group.flops * elements(largest, split, sizes) + converted


def _inlined_flops(compute: ComputeNode, split: Mapping[str, Axes], sizes: Sizes) -> Number:
    """Return the vector operations of the operands that a matmul computes as it reads them.

    Activation functions, norms and softmaxes of layers without a checkpoint and a scan, in the
    matmuls of the backward pass, whose fusions count them as an epilogue's (language models and T5
    on v3, v4 and v5e, libtpu 0.0.42.1). A mask costs what reading it does, and a copy nothing.
    """
    groups = (op for op in compute.generated if op.inlined and op.flops)
    return sum(_vector_flops(op, split, sizes) for op in groups)


def _fused_flops(compute: ComputeNode, split: Mapping[str, Axes], sizes: Sizes) -> Number:
    """Return the vector operations of the groups that are fused to an operation.

    In a convolution, and in what uses statistics of channels, elements are converted as they enter
    or leave: ResNet-50 on v4 has 14 operations for each element of the mask and the three sums in
    a convolution's epilogue, and 8 for each operand that is normalised or a norm's gradient. In a
    matmul's epilogue each group counts its own conversions, with which the chips were calibrated.
    """
    op = compute.op
    scales = isinstance(op, graph.Pointwise) and op.after_sums
    if not (scales or isinstance(op, graph.Convolution)):
        return sum(_vector_flops(group, split, sizes) for group in compute.epilogue)
    groups = (*compute.generated, *((op,) if scales else ()), *compute.epilogue)
    made = {tensor.name: tensor for group in groups for tensor in group.outputs}
    read = {t.name: t for group in groups for t in group.inputs if t.name not in made}
    used = {t.name for group in groups for t in group.inputs}
    left = {name: t for name, t in made.items() if name not in used or name in compute.writes}
    inside = {tensor.name for tensor in op.outputs} - {*compute.writes}
    entering = {tensor.name for tensor in op.inputs}
    crossing = ({*left, *read} - inside) | (entering & made.keys())
    converted: Number = sum(
        elements(tensor, split, sizes)
        for name, tensor in (read | made).items()
        if name in crossing and sizes.itemsize(tensor.dtype) < 4
    )
    done: Number = sum(group.flops * elements(group.main, split, sizes) for group in groups)
    return converted + done


def vector_of(
    group: graph.Pointwise, split: Mapping[str, Axes], sizes: Sizes
) -> program.VectorWork:
    """Return the work of a group on its own: its operands read, its results written."""
    read, written = (
        sum(operand_bytes(tensor, split, sizes) for tensor in tensors)
        for tensors in (group.inputs, group.outputs)
    )
    return program.VectorWork(read, written, _vector_flops(group, split, sizes))


def operand_bytes(tensor: Tensor, split: Mapping[str, Axes], sizes: Sizes) -> Number:
    """Return the bytes of the part of a tensor that the operation touches, with its padding."""
    return elements(tensor, split, sizes) * sizes.itemsize(tensor.dtype)


def elements(tensor: Tensor, split: Mapping[str, Axes], sizes: Sizes) -> Number:
    """Return the elements of a tensor with those that only fill its tiles, which pass alike."""
    return sizes.product(tensor.dims, split) * sizes.lanes(tensor.dims, split)


def _bytes(
    compute: ComputeNode, split: Mapping[str, Axes], sizes: Sizes, buffers: Buffers
) -> tuple[Number, Number]:
    """Return the bytes read and written: operands as divided, and those of fused groups."""
    ops = (compute.op, *compute.epilogue, *compute.generated)
    own = {tensor.name for op in ops for tensor in op.outputs}
    operands = [t for op in ops for t in op.inputs if t.name not in own]
    if isinstance(compute.op, graph.Gather):
        operands = [compute.op.output, compute.op.ids]
    read = sum(operand_bytes(tensor, split, sizes) for tensor in operands)
    rows = (buffers[key] for key in compute.reads if key in buffers and buffers[key].local.edge)
    read += sum(sizes.nbytes(buffer.local, buffer.dtype) for buffer in rows)
    images = (buffers[key] for key in compute.reads if key in buffers and compute.arrangement)
    read += sum(_stored_bytes(each, sizes) * (1 - 1 / each.local.count) for each in images)
    written = sum(_stored_bytes(buffers[key], sizes) for key in compute.writes)
    return read, written


def buffer_bytes(buffer: Buffer, sizes: Sizes) -> Number:
    """Return the bytes of a buffer on one device, with padding and spare capacity."""
    local = buffer.local
    return _stored_bytes(buffer, sizes) * sizes.spare(local.dims, local.split())


def _stored_bytes(buffer: Buffer, sizes: Sizes) -> Number:
    sizes = sizes.arranged(buffer.local.arrangement)
    return sizes.tiled_elements(buffer.local) * sizes.itemsize(buffer.dtype)


def collective_bytes(collective: CollectiveNode, sizes: Sizes) -> Number:
    """Return the bytes of the full tensor that a collective moves, on one device.

    An exchange of slots moves those that are filled. Any other collective moves the whole buffer:
    with experts over 2 and 8 experts of which a token takes 2, each of the three all-reduces of
    rows over `tensor` has twice the rows (v5e 4x4 and v5p 2x2x4, libtpu 0.0.42.1).
    """
    nbytes = sizes.nbytes(collective.payload, collective.dtype)
    if collective.kind is program.CollectiveKind.ALL_TO_ALL:
        return nbytes
    return nbytes * sizes.spare(collective.payload.dims, collective.payload.split())


def padding_bytes(buffer: Buffer, sizes: Sizes) -> Number:
    """Return the bytes of a buffer that hold no data."""
    return buffer_bytes(buffer, sizes) * sizes.padding(buffer.local)

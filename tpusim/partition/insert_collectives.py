"""Insertion of collectives: from a graph and its layouts to a partitioned graph.

Each operation is divided as `split.py` says. An operand in another layout is resharded before it;
a result that is a partial sum, or not in the layout that the plan gives it, is resharded after it.
Nothing here knows a model: data, FSDP, tensor and sequence parallelism all come from mismatches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from tpusim.base.phase import Phase
from tpusim.graph import (
    COMPUTE,
    Attention,
    CachedAttention,
    Convolution,
    Einsum,
    Gather,
    Graph,
    LinearAttention,
    Op,
    Pointwise,
    Pool,
    Reshape,
    Scan,
    Scatter,
    StateUpdate,
    Tensor,
    TokenRouting,
    layer_matrices,
)
from tpusim.partition import split as divide
from tpusim.partition.asked_sizes import AskedSizes
from tpusim.partition.body_builder import BodyBuilder, ShardedValue
from tpusim.partition.epilogues import fuse_epilogues
from tpusim.partition.layout import Layout, LocalShape
from tpusim.partition.lookups import NO_MOVES, RowMoves
from tpusim.partition.norm_groups import NormGroups
from tpusim.partition.partitioned_graph import (
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Purpose,
    StoredState,
    StoredWeight,
)
from tpusim.partition.reshard import reshard
from tpusim.partition.split import Split
from tpusim.partition.windowed import windowed
from tpusim.plan import Axes
from tpusim.program import CollectiveKind


def emit(
    graph: Graph,
    sizes: AskedSizes,
    wanted: Mapping[str, Layout],
    passes: Sequence[int] = (),
    moves: RowMoves = NO_MOVES,
    late: bool = False,
    updates: Mapping[str, Layout] | None = None,
    norms: NormGroups = (),
    kept: Mapping[str, Layout] | None = None,
) -> PartitionedGraph:
    """Return the partitioned graph of a training step whose tensors have the layouts `wanted`.

    graph: the step; its structure counts alone.
    sizes: of its dimensions.
    passes: indices of operations before which a new pass begins, which keeps no gathered copies.
    moves: tables whose rows move, see `lookups.row_moves`.
    late: True if gradients of weights are left as terms, see `late_reductions.py`.
    updates: layouts of weights that are updated in smaller parts, see `update_layouts`.
    norms: axes of the sums of batch norms over groups of examples, see `norm_groups`.
    kept: layouts of what loops save otherwise than it is made, see `kernel_residuals`.
    """
    updates = updates or {}
    weights = frozenset(parameter.tensor.name for parameter in graph.parameters)
    builder = BodyBuilder(
        wanted,
        weights,
        {},
        sizes,
        moves=moves,
        late=late,
        updates=updates,
        groups=norms,
        kept=kept,
    )
    builder.note_readers(graph.ops)
    groups: list[list[Node]] = []
    for begin, end in pairwise((0, *passes, len(graph.ops))):
        builder.begin_pass()
        for op in graph.ops[begin:end]:
            _operation(builder, op)
        groups.append(builder.nodes)
    gradients = tuple(
        (weight, builder.leave(weight, gradient))
        for weight, gradient in graph.gradients
        if gradient.name in builder.held
    )
    left = [key for _, key in gradients]
    left += [builder.held[name].key for name in graph.results if name in builder.held]
    fused = []
    for group in groups:
        others = (key for other in groups if other is not group for n in other for key in n.reads)
        fused.append(fuse_epilogues(group, (*left, *others)))
    matrices, trained = layer_matrices(graph), {weight for weight, _ in graph.gradients}
    return PartitionedGraph(
        name=graph.name,
        nodes=tuple(node for group in fused for node in group),
        passes=tuple(accumulate(map(len, fused)))[:-1],
        buffers=builder.buffers,
        weights=tuple(
            StoredWeight(
                p.tensor.name,
                LocalShape(p.tensor.dims, wanted[p.tensor.name]),
                p.copies,
                matrices.get(p.tensor.name),
                builder.unreduced.get(p.tensor.name),
                p.tensor.name in trained,
                LocalShape(p.tensor.dims, updates[p.tensor.name])
                if p.tensor.name in updates
                else None,
                "" if p.tensor.dtype == COMPUTE else p.tensor.dtype,
            )
            for p in graph.parameters
        ),
        gradients=gradients,
        layouts=dict(wanted),
        states=tuple(
            StoredState(
                s.tensor.name,
                LocalShape(s.tensor.dims, wanted[s.tensor.name]),
                s.tensor.dtype,
                s.copies,
            )
            for s in graph.states
        ),
    )


def _body(builder: BodyBuilder, ops: tuple[Op, ...]) -> None:
    builder.note_readers(ops)
    for op in ops:
        _operation(builder, op)


def _operation(builder: BodyBuilder, op: Op) -> None:
    builder.phase = op.phase
    match op:
        case Einsum():
            _contraction(builder, op)
        case Convolution() | Pool():
            windowed(builder, op)
        case Pointwise(linear=True):
            _sum(builder, op)
        case Pointwise():
            _pointwise(builder, op)
        case Attention():
            _attention(builder, op)
        case CachedAttention():
            _cached_attention(builder, op)
        case LinearAttention():
            value = builder.reduced(op.value)
            _divided(builder, op, divide.linear_attention(op, value.layout))
        case Reshape():
            _reshape(builder, op)
        case Gather():
            _lookup(builder, op, op.table)
        case Scatter():
            _lookup(builder, op, op.output)
        case Scan():
            _scan(builder, op)
        case TokenRouting():
            _route(builder, op)
        case StateUpdate():
            _update_state(builder, op)


def _divided(builder: BodyBuilder, op: Op, split: Split) -> None:
    """Reshard the operands as the operation is divided, emit it, and settle its results."""
    reads = [builder.buffer_for(tensor, split) for tensor in op.inputs]
    if isinstance(op, Pointwise) and op.reads_twice:
        op, reads = _statistics_apart(builder, op, split, reads)
    elif isinstance(op, Pointwise) and op.over:
        _statistics(builder, op, split, reads[0])
    builder.settle_results(builder.compute(op, split, reads))


def _statistics_apart(
    builder: BodyBuilder, op: Pointwise, split: Split, reads: list[str]
) -> tuple[Pointwise, list[str]]:
    """Emit the pass that makes the statistics; return the one that uses them and what it reads."""
    first, second = op.apart()
    keys = dict(zip((tensor.name for tensor in op.inputs), reads, strict=True))
    *small, made = builder.compute(first, split, [keys[tensor.name] for tensor in first.inputs])
    builder.settle_results(small)
    return second, [*reads, _statistics(builder, op, split, made.key)]


def _contraction(builder: BodyBuilder, op: Einsum) -> None:
    (output,) = op.outputs
    operands = [(tensor, builder.reduced(tensor).layout) for tensor in op.inputs]
    _divided(builder, op, divide.contraction(operands, output, builder.layout_of(output)))


def _pointwise(builder: BodyBuilder, op: Pointwise) -> None:
    inputs = [(tensor, builder.reduced(tensor).layout) for tensor in op.inputs]
    if op.reduces:
        ((given, layout),) = inputs
        _divided(builder, op, dict(zip(given.dims, layout, strict=True)))
        return
    outputs = [(tensor, builder.layout_of(tensor)) for tensor in op.outputs]
    _divided(builder, op, divide.pointwise(inputs, outputs, op.repeats, op.copies))


def _update_state(builder: BodyBuilder, op: StateUpdate) -> None:
    """Write a value into a state, in the layout of the state and in its buffer."""
    state = builder.value_of(op.state)
    split = dict(zip(op.state.dims, state.layout, strict=True))
    builder.write_over(state, op, split, builder.buffer_for(op.value, split))


def _reshape(builder: BodyBuilder, op: Reshape) -> None:
    """Rename the dimensions of a value; those that change are gathered first, unless they agree.

    The first of them keeps its axes if it has the same before and after; the others are whole. An
    axis moves between these and a dimension that stays on the side where the latter is sharded.
    """
    (before, after), wanted = op.changed, builder.layout_of(op.output)
    have = dict(zip(op.input.dims, builder.reduced(op.input).layout, strict=True))
    want = dict(zip(op.output.dims, wanted, strict=True))
    kept = want[after[0]] if have[before[0]] == want[after[0]] else ()
    split = {dim: want[dim] for dim in want if dim in have} | {before[0]: kept, after[0]: kept}
    used = {axis for axes in split.values() for axis in axes}
    for dim in have:
        if dim in want and not split[dim]:
            split[dim] = tuple(axis for axis in have[dim] if axis not in used)
    value = builder.value_for(op.input, split)
    layout = tuple(split.get(dim, ()) for dim in op.output.dims)
    builder.held[op.output.name] = replace(value, tensor=op.output, layout=layout)
    builder.settle_results([builder.held[op.output.name]])


def _attention(builder: BodyBuilder, op: Attention) -> None:
    query, key = builder.reduced(op.query), builder.reduced(op.key)
    _divided(builder, op, divide.attention(op, query.layout, key.layout))


def _cached_attention(builder: BodyBuilder, op: CachedAttention) -> None:
    query, key = builder.reduced(op.query), builder.reduced(op.key)
    _divided(builder, op, divide.cached_attention(op, query.layout, key.layout))


def _route(builder: BodyBuilder, op: TokenRouting) -> None:
    tokens, gates = builder.reduced(op.tokens), builder.reduced(op.gates)
    if op.fused:
        slots = builder.layout_of(op.output) if op.dispatch else tokens.layout
        split = divide.send(op, slots, gates.layout)
        (made,) = builder.compute(op, split, [tokens.key, gates.key])
        target, asked = builder.layout_of(op.output), frozenset(slots[0])
        builder.held[op.output.name] = builder.reshard(made, target, asked)
        return
    _divided(builder, op, divide.route(op, tokens.layout, gates.layout))


def _lookup(builder: BodyBuilder, op: Gather | Scatter, table: Tensor) -> None:
    """Emit a lookup or its transpose: each device serves the rows of the table that it holds.

    A row on another device adds zero, so the result is a partial sum over the rows' axes. Examples
    are divided as the ids. The columns of a weight are gathered, or, of an exchanged one, looked up
    as they are divided: a device then has its part of the rows of all tokens, or of the gradients
    of all rows, which are gathered. Those of an
    activation stay divided over the axes that the ids leave.
    """
    layout = dict(zip(table.dims, builder.stored_layout_of(table), strict=True))
    ids = dict(zip(op.ids.dims, builder.reduced(op.ids).layout, strict=True))
    columns = [dim for dim in table.dims if dim != op.dim and dim not in ids]
    kept: Mapping[str, Axes] = {}
    name, backward = table.primal or table.name, isinstance(op, Scatter)
    if name in builder.moves.exchanged and not (backward and name in builder.moves.whole):
        builder.note_rows(op.output if isinstance(op, Gather) else op.rows)
        kept = layout
    elif name not in builder.weights:
        used = {axis for axes in ids.values() for axis in axes}
        kept = {dim: tuple(a for a in layout[dim] if a not in used) for dim in columns}
    elif isinstance(op, Gather):
        kept = _columns_in_place(op.output, builder.layout_of(op.output), ids, layout, columns)
    parts = {dim: kept.get(dim, ()) for dim in columns}
    taken = {axis for axes in parts.values() for axis in axes}
    split = {dim: tuple(a for a in axes if a not in taken) for dim, axes in ids.items()} | parts
    used = {axis for axes in split.values() for axis in axes}
    split[op.dim] = tuple(axis for axis in layout[op.dim] if axis not in used)
    if isinstance(op, Scatter) and name in builder.moves.gathered:
        reads = [builder.buffer_for(op.rows, {}), builder.buffer_for(op.ids, split)]
        builder.settle_results(builder.compute(op, split, reads))
    else:
        _divided(builder, op, split)


def _columns_in_place(
    rows: Tensor, wanted: Layout, ids: Split, table: Split, columns: Sequence[str]
) -> Split:
    """Return the axes of a table's columns that no example is divided over and the rows keep."""
    used = {axis for axes in ids.values() for axis in axes}
    wants = dict(zip(rows.dims, wanted, strict=True))
    return {
        dim: table[dim]
        for dim in columns
        if table[dim] and set(table[dim]) <= set(wants[dim]) and used.isdisjoint(table[dim])
    }


def _statistics(builder: BodyBuilder, op: Pointwise, split: Split, reads: str) -> str:
    """Emit the all-reduce, in f32, of the sums of a norm or softmax over a sharded dimension.

    Return the buffer of the sums, which is `reads` where no device has others.
    """
    axes = tuple(axis for dim in op.over for axis in split.get(dim, ()))
    if op.group:
        examples = split.get(op.main.dims[0], ())
        kept = dict(builder.groups)[examples, op.group]
        axes = tuple(axis for axis in axes if axis not in examples or axis in kept)
    if not axes or op.on_device:
        return reads
    dims = tuple(dim for dim in op.main.dims if dim not in op.over)
    layout = tuple(split.get(dim, ()) for dim in dims)
    local = LocalShape(dims, layout, count=op.statistics)
    key = f"{builder.prefix}{op.name}/sums"
    builder.buffer(key, local, "f32", "activations")
    builder.nodes.append(
        CollectiveNode(
            name=f"{CollectiveKind.ALL_REDUCE}/{key}",
            phase=op.phase,
            kind=CollectiveKind.ALL_REDUCE,
            axes=axes,
            payload=local,
            dtype="f32",
            purpose=Purpose.STATISTICS,
            reads=(reads,),
            writes=(key,),
            tensor=op.name,
        )
    )
    return key


def _sum(builder: BodyBuilder, op: Pointwise) -> None:
    """Add up terms that are partial over the same axes before their collective, others after."""
    (output,) = op.outputs
    given = _rows_added(builder, output, [builder.value_of(tensor) for tensor in op.inputs])
    terms = _merged_terms(builder, op, given)
    want, kept = _layout_of_sum(builder, output, terms)
    split = dict(zip(output.dims, want, strict=True))
    settled = [builder.reduced_term(term, _repeated(term.tensor, split), kept) for term in terms]
    if len(settled) == 1:
        builder.held[output.name] = replace(settled[0], tensor=output)
        return
    (made,) = builder.compute(op, split, [value.key for value in settled])
    builder.held[output.name] = replace(made, partial=kept)
    builder.settle_results([builder.held[output.name]])


def _layout_of_sum(
    builder: BodyBuilder, output: Tensor, terms: Sequence[ShardedValue]
) -> tuple[Layout, Axes]:
    """Return the layout of a sum, and the axes over which it stays partial.

    Where it may stay so, the axes are those of all terms, and the layout, that of the sum or of a
    term, is the one that takes the fewest collectives.
    """
    want = builder.layout_of(output)
    if not builder.stays_partial(output):
        return want, ()
    kept = tuple(axis for axis in terms[0].partial if all(axis in t.partial for t in terms))
    free = tuple(tuple(axis for axis in axes if axis not in kept) for axes in want)

    def collectives(layout: Layout) -> int:
        partials = (tuple(axis for axis in t.partial if axis not in kept) for t in terms)
        steps = (reshard(t.layout, p, layout) for t, p in zip(terms, partials, strict=True))
        return sum(1 for each in steps for _ in each)

    return min((free, *(term.layout for term in terms)), key=collectives), kept


def _repeated(term: Tensor, split: Split) -> Layout:
    """Return the layout of a term of a sum that is divided so; one may lack some dimensions."""
    if len(term.dims) == len(split):
        return tuple(split.values())
    return tuple(split[dim] for dim in term.dims)


def _merged_terms(
    builder: BodyBuilder, op: Pointwise, values: list[ShardedValue]
) -> list[ShardedValue]:
    groups: dict[tuple[Layout, Axes], list[ShardedValue]] = {}
    for value in values:
        groups.setdefault((value.layout, value.partial), []).append(value)
    terms: list[ShardedValue] = []
    for (layout, partial), members in groups.items():
        if not partial or len(members) == 1:
            terms.extend(members)
            continue
        split = dict(zip(op.outputs[0].dims, layout, strict=True))
        keys = [value.key for value in members]
        (made,) = builder.compute(op, split, keys, f"{op.name}/terms")
        terms.append(replace(made, partial=partial, maker=""))
    return terms


def _rows_added(
    builder: BodyBuilder, output: Tensor, terms: list[ShardedValue]
) -> list[ShardedValue]:
    """Return the terms of a gradient, those of matmuls reduced where rows are scattered into them.

    The transpose of a lookup adds its rows to the gradient that the head has left, which is then
    sharded as the table is, and gathered for it: on one device, so that all devices' are its terms
    (tables of 32k words that are gathered for their lookup, v4, v5p and v6e; libtpu 0.0.42.1). So
    it is where all devices have whole tables, which are then all-reduced twice (two of two plans
    over `data`, v4 2x2x4 in tiles and v6e 16x16; a text model on v4 and v6e). The rows of both
    lookups of an encoder-decoder are added to it, and reduced together (T5 on v3 and v4).
    Rows are not added to a gradient of another dtype, as the sum over the tiles of a loss.
    """
    scatters = {
        node.op.name
        for node in builder.nodes
        if isinstance(node, ComputeNode) and isinstance(node.op, Scatter)
    }
    rows = next((term for term in terms if term.partial and term.maker in scatters), None)
    want = builder.layout_of(output)
    if rows is None or builder.stays_partial(output):
        return terms

    def apart(term: ShardedValue) -> ShardedValue:
        alike = (term.layout, term.partial) == (rows.layout, rows.partial)
        if term.maker in scatters or not alike or term.tensor.dtype != rows.tensor.dtype:
            return term
        whole = builder.reduced_term(term, want)
        gathered = builder.reshard(whole, rows.layout, frozenset(rows.partial))
        return replace(gathered, partial=rows.partial)

    return [apart(term) for term in terms]


def _scan(builder: BodyBuilder, op: Scan) -> None:
    """Emit a loop; tensors enter and leave it in the layouts that the plan gives them."""
    again = "wgt/" if op.weights_only else "bwd/"
    inner = builder.inner(again if op.phase is Phase.BACKWARD else builder.prefix, op)
    entered = [inner.add_input(inner_in).key for _, inner_in, _, _ in op.carries]
    loads = tuple(inner.add_load(replace(t, dtype=t.saved_dtype)).key for t in op.loads)
    for _, part in op.slices:
        inner.add_input(part)
    _body(inner, op.body)
    left = [inner.reduced(inner_out).key for _, _, inner_out, _ in op.carries]
    saves = tuple(inner.saved(tensor).key for tensor in op.saves)
    parts = [inner.finished(part) for part, _ in op.stacks]
    sums = [_sum_over_trips(builder, inner, op, *pair) for pair in op.sums]
    gradients = _stacked_gradients(inner, op)
    outside = tuple(inner.outside)
    kept = (*left, *saves, *(part.key for part in parts), *outside, *(key for _, key in gradients))
    given = (*(before for before, *_ in op.carries), *(whole for whole, _ in op.slices))
    made = [builder.add_input(after) for *_, after in op.carries]
    made += [
        builder.add_input(whole, part) for (_, whole), part in zip(op.stacks, parts, strict=True)
    ]
    builder.nodes.append(
        LoopNode(
            scan=op,
            body=fuse_epilogues(inner.nodes, kept),
            reads=(*(builder.reduced(tensor).key for tensor in given), *outside),
            writes=tuple(value.key for value in made),
            carried=tuple(zip(entered, left, strict=True)),
            saves=saves,
            loads=loads,
            gradients=gradients,
            outside=outside,
        )
    )
    builder.settle_results(sums)


def _stacked_gradients(inner: BodyBuilder, op: Scan) -> tuple[tuple[str, str], ...]:
    """Return the weights of single iterations, with the buffer of each one's gradient."""
    shared = {tensor.name for tensor in op.shared}
    return tuple(
        (tensor.primal, inner.leave(tensor.primal, tensor))
        for tensor in {t.name: t for o in op.body for t in o.outputs}.values()
        if tensor.name == f"d({tensor.primal})"
        and tensor.primal not in shared
        and inner.is_weight_gradient(tensor)
    )


def _sum_over_trips(
    builder: BodyBuilder, inner: BodyBuilder, op: Scan, inside: Tensor, outside: Tensor
) -> ShardedValue:
    """Add each iteration's term to a sum that starts at zero before the loop.

    Partial terms are added up as they are, and reduced once after the loop: XLA moves the
    reduction there (compiled programs of MaxText's loss in tiles on v5p and v6e, libtpu 0.0.42.1).
    Where iterations stand `apart`, each reduce-scatters its term, and XLA moves all-reduces alone
    (`fusion.411`, `all-reduce.31` of bf16[512,262144]: 4 tiles, data 4 x fsdp 4, v6e 4x4).
    """
    term = inner.value_of(inside)
    if op.apart and not inner.stays_partial(inside):
        stored = inner.stored_layout_of(inside)
        kept = tuple(axis for axis in term.partial if not any(axis in axes for axes in stored))
        term = inner.reduced_term(term, stored, kept)
    split = dict(zip(inside.dims, term.layout, strict=True))
    zeros = Pointwise(f"{outside.name}/zeros", (), (outside,), 0.0, phase=op.phase)
    (total,) = builder.compute(zeros, split, ())
    before, after = (replace(outside, name=f"{outside.name}/{end}") for end in ("before", "after"))
    add = Pointwise(
        f"{outside.name}/sum", (before, inside), (after,), 1.0, linear=True, phase=op.phase
    )
    inner.accumulate(total, add, split, term)
    builder.held[outside.name] = replace(total, partial=term.partial, maker="")
    return builder.held[outside.name]

"""Insertion of collectives: from a graph and its layouts to the structure of the program.

Each operation is divided as `split.py` says. Where an operand lies otherwise, a resharding comes
before it; where its result is a partial sum or lies otherwise than wanted, one comes after it.
Nothing here knows a model: data, FSDP, tensor and sequence parallelism all come from mismatches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from tpusim.graph import (
    Attention,
    Convolution,
    Einsum,
    Gather,
    Graph,
    Op,
    Pointwise,
    Route,
    Scan,
    Scatter,
    Tensor,
)
from tpusim.partition import split as divide
from tpusim.partition.fuse import fuse_epilogues
from tpusim.partition.layout import Axes, Layout, Local
from tpusim.partition.scope import Piece, Scope
from tpusim.partition.split import Split
from tpusim.partition.template import Comm, Nest, Node, Purpose, Template, Weight
from tpusim.phase import Phase
from tpusim.program import CollectiveKind


def emit(graph: Graph, wanted: Mapping[str, Layout], passes: Sequence[int] = ()) -> Template:
    """The structure of a training step whose tensors lie as `wanted`.

    passes: the places of operations before which one pass ends and another begins, which holds no
    gathered copies of the one before it.
    """
    weights = frozenset(parameter.tensor.name for parameter in graph.parameters)
    scope = Scope(wanted, weights, {}, graph.sizes)
    scope.read_by(graph.ops)
    groups: list[list[Node]] = []
    for begin, end in pairwise((0, *passes, len(graph.ops))):
        scope.begin()
        for op in graph.ops[begin:end]:
            _operation(scope, op)
        groups.append(scope.nodes)
    gradients = tuple(
        (weight, scope.whole(gradient).key)
        for weight, gradient in graph.gradients
        if gradient.name in scope.held
    )
    kept = [key for _, key in gradients]
    kept += [scope.held[name].key for name in graph.results if name in scope.held]
    fused = []
    for group in groups:
        others = (key for other in groups if other is not group for n in other for key in n.reads)
        fused.append(fuse_epilogues(group, (*kept, *others)))
    return Template(
        name=graph.name,
        nodes=tuple(node for group in fused for node in group),
        passes=tuple(accumulate(map(len, fused)))[:-1],
        buffers=scope.buffers,
        weights=tuple(
            Weight(p.tensor.name, Local(p.tensor.dims, wanted[p.tensor.name]), p.copies)
            for p in graph.parameters
        ),
        gradients=gradients,
        layouts=dict(wanted),
    )


def _body(scope: Scope, ops: tuple[Op, ...]) -> None:
    scope.read_by(ops)
    for op in ops:
        _operation(scope, op)


def _operation(scope: Scope, op: Op) -> None:
    scope.phase = op.phase
    match op:
        case Einsum() | Convolution():
            _contraction(scope, op)
        case Pointwise(linear=True):
            _sum(scope, op)
        case Pointwise():
            _pointwise(scope, op)
        case Attention():
            _attention(scope, op)
        case Gather():
            _lookup(scope, op, op.table)
        case Scatter():
            _lookup(scope, op, op.output)
        case Scan():
            _scan(scope, op)
        case Route():
            _route(scope, op)


def _divided(scope: Scope, op: Op, split: Split) -> None:
    """Bring the operands to lie as the operation is divided, emit it, settle its results."""
    reads = [scope.need(tensor, split) for tensor in op.inputs]
    if isinstance(op, Pointwise):
        _statistics(scope, op, split, reads[0])
    scope.finish(scope.calc(op, split, reads))


def _contraction(scope: Scope, op: Einsum | Convolution) -> None:
    (output,) = op.outputs
    operands = [(tensor, scope.whole(tensor).layout) for tensor in op.inputs]
    _divided(scope, op, divide.contraction(operands, output, scope.want(output)))


def _pointwise(scope: Scope, op: Pointwise) -> None:
    inputs = [(tensor, scope.whole(tensor).layout) for tensor in op.inputs]
    outputs = [(tensor, scope.want(tensor)) for tensor in op.outputs]
    _divided(scope, op, divide.pointwise(inputs, outputs, op.repeats, op.copies))


def _attention(scope: Scope, op: Attention) -> None:
    query, key = scope.whole(op.query), scope.whole(op.key)
    _divided(scope, op, divide.attention(op, query.layout, key.layout))


def _route(scope: Scope, op: Route) -> None:
    tokens, gates = scope.whole(op.tokens), scope.whole(op.gates)
    _divided(scope, op, divide.route(op, tokens.layout, gates.layout))


def _lookup(scope: Scope, op: Gather | Scatter, table: Tensor) -> None:
    """A lookup or its transpose: each device serves the rows of the table that it holds.

    A row that lies elsewhere adds zero, so the result is a partial sum over the rows' axes.
    """
    split = dict(zip(op.ids.dims, scope.whole(op.ids).layout, strict=True))
    used = {axis for axes in split.values() for axis in axes}
    for dim, axes in zip(table.dims, scope.want(table), strict=True):
        split[dim] = tuple(a for a in axes if a not in used) if dim == op.dim else ()
    _divided(scope, op, split)


def _statistics(scope: Scope, op: Pointwise, split: Split, reads: str) -> None:
    """A norm or a softmax over a sharded dimension exchanges its sums, in f32."""
    axes = tuple(axis for dim in op.over for axis in split.get(dim, ()))
    if not axes:
        return
    largest = max((*op.inputs, *op.outputs), key=lambda tensor: len(tensor.dims))
    dims = tuple(dim for dim in largest.dims if dim not in op.over)
    local = Local(dims, tuple(split.get(dim, ()) for dim in dims))
    key = f"{scope.prefix}{op.name}/sums"
    scope.buffer(key, local, "f32", "activations")
    scope.nodes.append(
        Comm(
            name=f"{CollectiveKind.ALL_REDUCE}/{key}", phase=op.phase,
            kind=CollectiveKind.ALL_REDUCE, axes=axes, payload=local, dtype="f32",
            purpose=Purpose.STATISTICS, reads=(reads,), writes=(key,), tensor=op.name,
        )
    )  # fmt: skip


def _sum(scope: Scope, op: Pointwise) -> None:
    """Add up the terms that are partial alike before their collective, the others after it."""
    (output,) = op.outputs
    want = scope.want(output)
    terms = _merged_terms(scope, op, [scope.piece(tensor) for tensor in op.inputs])
    settled = [scope.added_up(term, want) for term in terms]
    if len(settled) == 1:
        scope.held[output.name] = replace(settled[0], tensor=output)
        return
    split = dict(zip(output.dims, want, strict=True))
    scope.finish(scope.calc(op, split, [piece.key for piece in settled]))


def _merged_terms(scope: Scope, op: Pointwise, pieces: list[Piece]) -> list[Piece]:
    groups: dict[tuple[Layout, Axes], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.layout, piece.partial), []).append(piece)
    terms: list[Piece] = []
    for (layout, partial), members in groups.items():
        if not partial or len(members) == 1:
            terms.extend(members)
            continue
        split = dict(zip(op.outputs[0].dims, layout, strict=True))
        keys = [piece.key for piece in members]
        (made,) = scope.calc(op, split, keys, f"{op.name}/terms")
        terms.append(replace(made, partial=partial, maker=""))
    return terms


def _scan(scope: Scope, op: Scan) -> None:
    """Emit the body in its own scope; tensors lie as wanted where they enter and leave it."""
    again = "wgt/" if op.deferred else "bwd/"
    inner = scope.inner(again if op.phase is Phase.BACKWARD else scope.prefix, op)
    entered = [inner.hold(inner_in).key for _, inner_in, _, _ in op.carries]
    loads = tuple(inner.hold(replace(t, dtype=t.saved_dtype)).key for t in op.loads)
    for _, part in op.slices:
        inner.hold(part)
    _body(inner, op.body)
    left = [inner.whole(inner_out).key for _, _, inner_out, _ in op.carries]
    saves = tuple(inner.whole(tensor).key for tensor in op.saves)
    parts = [inner.whole(part).key for part, _ in op.stacks]
    sums = [_added_up(scope, inner, inside, outside) for inside, outside in op.sums]
    gradients = _stacked_gradients(inner, op)
    outside = tuple(inner.outside)
    kept = (*left, *saves, *parts, *outside, *(key for _, key in gradients))
    given = (*(before for before, *_ in op.carries), *(whole for whole, _ in op.slices))
    made = (*(after for *_, after in op.carries), *(whole for _, whole in op.stacks))
    scope.nodes.append(
        Nest(
            scan=op, body=fuse_epilogues(inner.nodes, kept),
            reads=(*(scope.whole(tensor).key for tensor in given), *outside),
            writes=tuple(scope.hold(tensor).key for tensor in made),
            carried=tuple(zip(entered, left, strict=True)), saves=saves, loads=loads,
            gradients=gradients, outside=outside,
        )
    )  # fmt: skip
    scope.finish(sums)


def _stacked_gradients(inner: Scope, op: Scan) -> tuple[tuple[str, str], ...]:
    """The weights of which each trip has its own, with what holds a trip's gradient of it."""
    shared = {tensor.name for tensor in op.shared}
    return tuple(
        (tensor.primal, inner.held[tensor.name].key)
        for tensor in {t.name: t for o in op.body for t in o.outputs}.values()
        if tensor.name == f"d({tensor.primal})"
        and tensor.primal not in shared
        and inner.is_weight_gradient(tensor)
    )


def _added_up(scope: Scope, inner: Scope, inside: Tensor, outside: Tensor) -> Piece:
    """Add what a trip makes to a sum that starts at zero before the loop.

    Terms that are partial are added up as they are, and reduced once behind the loop: XLA moves the
    reduction there (compiled programs of MaxText's loss in tiles on v5p and v6e, libtpu 0.0.42.1).
    """
    share = inner.piece(inside)
    split = dict(zip(inside.dims, share.layout, strict=True))
    zeros = Pointwise(f"{outside.name}/zeros", (), (outside,), 0.0, phase=Phase.BACKWARD)
    (total,) = scope.calc(zeros, split, ())
    before, after = (replace(outside, name=f"{outside.name}/{end}") for end in ("before", "after"))
    add = Pointwise(
        f"{outside.name}/sum", (before, inside), (after,), 1.0, linear=True, phase=Phase.BACKWARD
    )
    inner.add_to(total, add, split, share)
    scope.held[outside.name] = replace(total, partial=share.partial, maker="")
    return scope.held[outside.name]

"""Sharding propagation: from a few annotated tensors to all of them.

As GSPMD does it (arXiv:2105.04663, section 3.5): a dimension's axes spread along operations in
both directions, element-wise groups first, until nothing changes; an axis shards one dimension of
a tensor only. Weights and inputs start from the rules; activations from the annotations, and from
the rules where propagation leaves a dimension open. Without annotations the rules say it all.
"""

from collections.abc import Iterable, Mapping
from math import prod

from tpusim.base.errors import PlanError, nearest
from tpusim.base.phase import Phase
from tpusim.graph import TILE, Graph, Op, Pointwise, Scan, Tensor, TensorRole, whole_dim
from tpusim.partition.layout import Layout
from tpusim.partition.rules import ShardingRules
from tpusim.plan import Axes, Sharding, axes_of, check_known, check_once

_Open = list[Axes | None]


def layouts(graph: Graph, sharding: Sharding, rules: ShardingRules) -> dict[str, Layout]:
    """Return the layout of every tensor of the forward pass, by name.

    A gradient has the layout of its primal.
    """
    ops, pairs = tuple(_forward(graph.ops)), tuple(_carries(graph.ops))
    tensors: dict[str, Tensor] = {}
    for group in (*pairs, *((*op.outputs, *op.inputs) for op in ops)):
        for tensor in group:
            tensors.setdefault(tensor.name, tensor)
    if not sharding.annotate:
        return {name: rules.layout(tensor) for name, tensor in tensors.items()}
    given = _annotated(sharding, tensors.values(), graph.sizes)
    state: dict[str, _Open] = {
        name: list(given.get(name, ())) or _start(tensor, rules) for name, tensor in tensors.items()
    }
    state |= {name: list(rules.layout(tensors[name])) for name in rules.kernels}
    _spread(state, ops, pairs)
    for name, tensor in tensors.items():
        _fill(state[name], rules.layout(tensor))
    return {name: tuple(axes or () for axes in opened) for name, opened in state.items()}


def _start(tensor: Tensor, rules: ShardingRules) -> _Open:
    """Return the layout known from the start: of what the step is given, and of experts' tensors.

    Codes always constrain the latter: their axis comes from the batch, which spreads no further.
    """
    given = (TensorRole.PARAM, TensorRole.INPUT, TensorRole.STATE)
    fixed = tensor.role in given or "expert" in tensor.dims
    return list(rules.layout(tensor)) if fixed else [None] * len(tensor.dims)


def _forward(ops: Iterable[Op]) -> Iterable[Op]:
    for op in ops:
        if op.phase is not Phase.FORWARD:
            continue
        if isinstance(op, Scan):
            yield from _forward(op.body)
        else:
            yield op


def _carries(ops: Iterable[Op]) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield pairs of tensors with the same layout: carries of a scan, parts, terms of a sum."""
    for op in ops:
        if isinstance(op, Scan) and op.phase is Phase.FORWARD:
            for before, first, last, after in op.carries:
                yield from ((before, first), (first, last), (last, after))
            yield from (*op.slices, *op.stacks, *op.sums)


def _spread(
    state: dict[str, _Open], ops: tuple[Op, ...], pairs: tuple[tuple[Tensor, Tensor], ...]
) -> None:
    """Spread axes to a fixed point, first between activations, then with the weights' axes too."""
    groups = [(*op.inputs, *op.outputs) for op in sorted(ops, key=_priority)]
    groups = [*pairs, *groups]
    for weights in (False, True):
        changed = True
        while changed:
            changed = False
            for group in groups:
                members = [t for t in group if weights or t.role is not TensorRole.PARAM]
                changed |= _agree(state, members)


def _priority(op: Op) -> int:
    return 0 if isinstance(op, Pointwise) else 1


def _agree(state: dict[str, _Open], tensors: list[Tensor]) -> bool:
    """Give each open dimension the axes that another tensor of the group has for it."""
    known: dict[str, Axes] = {}
    for tensor in tensors:
        for dim, axes in zip(tensor.dims, state[tensor.name], strict=True):
            if axes:
                known.setdefault(whole_dim(dim), axes)
    changed = False
    for tensor in tensors:
        opened = state[tensor.name]
        for place, dim in enumerate(tensor.dims):
            axes = known.get(whole_dim(dim))
            taken = {a for have in opened if have for a in have}
            if opened[place] is None and axes and not taken & set(axes):
                opened[place] = axes
                changed = True
    return changed


def _fill(opened: _Open, layout: Layout) -> None:
    """Give dimensions that propagation left open the rules' axes, if they are still free."""
    for place, axes in enumerate(layout):
        if opened[place] is None:
            taken = {a for have in opened if have for a in have}
            opened[place] = tuple(a for a in axes if a not in taken)


def _annotated(
    sharding: Sharding, tensors: Iterable[Tensor], sizes: Mapping[str, int]
) -> dict[str, Layout]:
    """Return the layout of each annotated tensor; annotated axes must divide their dimension."""
    known = {tensor.name: tensor for tensor in tensors if not tensor.name.startswith(TILE)}
    found = {}
    for name, given in sharding.annotate.items():
        if name not in known:
            raise PlanError(
                f"plan.annotate names {name!r}, which is no tensor of the model: "
                f"{nearest(name, known)}"
            )
        tensor = known[name]
        if len(given) != len(tensor.dims):
            raise PlanError(
                f"plan.annotate.{name} gives {len(given)} entries, but the tensor has "
                f"{len(tensor.dims)} dimensions ({', '.join(tensor.dims)}); write one entry for "
                "each, None where it is not sharded"
            )
        layout = tuple(axes_of(rule) for rule in given)
        check_once(f"plan.annotate.{name}", [axis for axes in layout for axis in axes])
        for dim, axes in zip(tensor.dims, layout, strict=True):
            _check_annotated(f"plan.annotate.{name}", dim, sizes[dim], axes, sharding.mesh)
        found[name] = tuple(tuple(a for a in axes if sharding.mesh[a] > 1) for axes in layout)
    return found


def _check_annotated(where: str, dim: str, size: int, axes: Axes, mesh: Mapping[str, int]) -> None:
    check_known(f"{where} shards {dim}", axes, mesh)
    parts = prod(mesh[axis] for axis in axes)
    if size % parts:
        raise PlanError(
            f"{where} shards {dim} (size {size}) over {' x '.join(axes)} = {parts}, which does "
            f"not divide it; choose axes whose sizes divide {size}"
        )

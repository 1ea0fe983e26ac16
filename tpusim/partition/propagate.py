"""Sharding propagation: from a few annotated tensors to all of them.

As GSPMD does it (arXiv:2105.04663, section 3.5): a dimension's axes spread along operations in
both directions, element-wise groups first, until nothing changes; an axis shards one dimension of
a tensor only. Weights and inputs start from the rules; activations from the annotations, and from
the rules where propagation leaves a dimension open. Without annotations the rules say it all.
"""

from collections.abc import Iterable

from tpusim.graph import Graph, Op, Pointwise, Role, Scan, Tensor, whole_dim
from tpusim.partition.annotations import annotations
from tpusim.partition.layout import Axes, Layout
from tpusim.partition.plan import Plan
from tpusim.partition.rules import Rules
from tpusim.phase import Phase

_Open = list[Axes | None]


def layouts(graph: Graph, plan: Plan, rules: Rules) -> dict[str, Layout]:
    """The layout of every tensor of the forward pass, by name, over the dimensions it is made with.

    A gradient lies as the tensor that it is the gradient of.
    """
    ops, pairs = tuple(_forward(graph.ops)), tuple(_carries(graph.ops))
    tensors: dict[str, Tensor] = {}
    for group in (*pairs, *((*op.outputs, *op.inputs) for op in ops)):
        for tensor in group:
            tensors.setdefault(tensor.name, tensor)
    if not plan.annotate:
        return {name: rules.layout(tensor) for name, tensor in tensors.items()}
    given = annotations(plan, tensors.values(), graph.sizes)
    state: dict[str, _Open] = {
        name: list(given.get(name, ())) or _start(tensor, rules) for name, tensor in tensors.items()
    }
    state |= {name: list(rules.layout(tensors[name])) for name in rules.kernels}
    _spread(state, ops, pairs)
    for name, tensor in tensors.items():
        _fill(state[name], rules.layout(tensor))
    return {name: tuple(axes or () for axes in opened) for name, opened in state.items()}


def _start(tensor: Tensor, rules: Rules) -> _Open:
    """What is known of a tensor: all of weights and inputs, and of what experts have.

    Codes constrain that always: their axis comes from the batch, which spreads no further.
    """
    fixed = tensor.role in (Role.PARAM, Role.INPUT) or "expert" in tensor.dims
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
    """Tensors that must lie alike: what a scan carries in and out, and what it takes in parts."""
    for op in ops:
        if isinstance(op, Scan) and op.phase is Phase.FORWARD:
            for before, first, last, after in op.carries:
                yield from ((before, first), (first, last), (last, after))
            yield from (*op.slices, *op.stacks)


def _spread(
    state: dict[str, _Open], ops: tuple[Op, ...], pairs: tuple[tuple[Tensor, Tensor], ...]
) -> None:
    """Two rounds to a fixed point: between activations, then with the weights' axes too."""
    groups = [(*op.inputs, *op.outputs) for op in sorted(ops, key=_priority)]
    groups = [*pairs, *groups]
    for weights in (False, True):
        changed = True
        while changed:
            changed = False
            for group in groups:
                members = [t for t in group if weights or t.role is not Role.PARAM]
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
    """Close what propagation left open with the rules' axes, where they are still free."""
    for place, axes in enumerate(layout):
        if opened[place] is None:
            taken = {a for have in opened if have for a in have}
            opened[place] = tuple(a for a in axes if a not in taken)

"""Changes of a plan's sharding that save what a step loses, found by partitioning again."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple, TypeAlias

from tpusim.base.errors import TpusimError
from tpusim.graph import INPUT, TensorRole, plain_dim
from tpusim.hardware import DCN_PREFIX
from tpusim.partition import rule_of
from tpusim.plan import Axes
from tpusim.results.extra_flops import PartitionedStep

Tables: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keys of a plan that are tables, with all entries of each."""

MUCH_LESS = 0.5
"""A change is named if it saves at least this fraction of what is lost."""

LITTLE, MOST_DIMS = 0.01, 3
"""Repeated FLOPs over all that need no more rules, and the dimensions that get some at most."""


class _Rearrangement(NamedTuple):
    """A change: what it leaves repeated, over all FLOPs of the plan, and how odd its rule is.

    had: the dimension had axes before.
    weightless: it is a dimension of no weight.
    """

    left: float
    had: bool
    weightless: bool
    tables: Tables


def cure(step: PartitionedStep, axes: Axes) -> Tables | None:
    """Return the tables that divide the work that all devices of some axes repeat.

    Rules for the dimensions of the largest operations are tried, and then meshes without one of the
    axes. None if nothing saves half of the work.
    """
    enough = (step.repeated() - MUCH_LESS * step.repeated(axes)) / step.total
    for tried in (_ruled(step, axes), min(_meshes(step, axes), default=None, key=_left)):
        if tried is not None and tried.left <= enough:
            return tried.tables
    return None


def _left(trial: _Rearrangement) -> float:
    return trial.left


def _ruled(step: PartitionedStep, axes: Axes, dims: int = MOST_DIMS) -> _Rearrangement | None:
    """Return the best rules: one dimension at a time, as long as much is left."""
    best = min(_rules(step, axes), default=None, key=lambda trial: trial[:3])
    if best is None or best.left <= LITTLE or dims == 1:
        return best
    other = PartitionedStep(step.model, step.plan.replace(**best.tables))
    if not other.repeated(axes):
        return best
    more = _ruled(other, axes, dims - 1)
    if more is None:
        return best
    more = more._replace(left=more.left * other.total / step.total)
    return min(best, more, key=_left)


def _rules(step: PartitionedStep, axes: Axes) -> Iterator[_Rearrangement]:
    """Yield rules that give the axes to one dimension of the largest operation.

    A rule is for the dimension in all parts of a model, or in the operation's own.
    """
    op, table = step.largest(axes).op, dict(step.rules.table)
    tensors = (*op.inputs, *op.outputs)
    tried = set()
    for dim in dict.fromkeys(dim for tensor in tensors for dim in tensor.dims):
        own = [tensor for tensor in tensors if dim in tensor.dims]
        weightless = all(tensor.role is not TensorRole.PARAM for tensor in own)
        of_part = tuple(dict.fromkeys(rule_of(tensor, dim) for tensor in own))
        of_all = tuple(plain_dim(key).removeprefix(INPUT) for key in of_part)
        for keys in (of_all, of_part):
            if keys not in tried:
                tried.add(keys)
                had = {key: table.get(key, ()) for key in keys}
                rules = {key: tuple(dict.fromkeys((*had[key], *axes))) for key in keys}
                tables = {"rules": {**step.plan.rules, **rules}}
                yield _Rearrangement(_repeated(step, tables), any(had.values()), weightless, tables)


def _meshes(step: PartitionedStep, axes: Axes) -> Iterator[_Rearrangement]:
    """Yield meshes that give the devices of an idle axis to another."""
    mesh = step.plan.mesh
    for taken in axes:
        for given in mesh:
            across = given.startswith(DCN_PREFIX), taken.startswith(DCN_PREFIX)
            if given != taken and across[0] == across[1]:
                tables = {"mesh": {**mesh, taken: 1, given: mesh[given] * mesh[taken]}}
                yield _Rearrangement(_repeated(step, tables), True, True, tables)


def _repeated(step: PartitionedStep, tables: Tables) -> float:
    """Return the repeated FLOPs after a change over all of the step; infinite if it is refused."""
    try:
        other = PartitionedStep(step.model, step.plan.replace(**tables))
        return round(other.repeated() / step.total, 3)
    except TpusimError:
        return inf

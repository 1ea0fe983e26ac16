"""Changes of a plan's sharding that save what a step loses, found by partitioning again."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple, TypeAlias

from tpusim.base.errors import TpusimError
from tpusim.graph import INPUT, plain_dim
from tpusim.hardware import DCN_PREFIX
from tpusim.partition import rule_of
from tpusim.plan import Axes
from tpusim.results.extra_flops import PartitionedStep

Tables: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keys of a plan that are tables, with all entries of each."""

MUCH_LESS = 0.5
"""A change is named if it saves at least this fraction of what is lost."""

LITTLE, MOST_DIMS = 0.01, 3
"""The fraction of repeated FLOPs that needs no more rules, and the most dimensions that get one."""


class _Rearrangement(NamedTuple):
    """A change of tables.

    left: the FLOPs that it leaves repeated, over all of the plan.
    moved: the bytes that its collectives move.
    """

    left: float
    moved: float
    tables: Tables

    @property
    def rank(self) -> tuple[float, float]:
        """The less the better: what is left, if it is not little, and then what is moved."""
        return max(self.left, LITTLE), self.moved


def cure(step: PartitionedStep, axes: Axes) -> Tables | None:
    """Return the tables that divide the work that all devices of some axes repeat.

    Rules for the dimensions of the largest operations are tried, and then meshes without one of the
    axes; of those that leave as little, the one that moves the fewest bytes is taken. None if
    nothing saves half of the work.
    """
    enough = (step.repeated() - MUCH_LESS * step.repeated(axes)) / step.total
    for tried in (_ruled(step, axes), _best(_meshes(step, axes))):
        if tried is not None and tried.left <= enough:
            return tried.tables
    return None


def _best(tried: Iterable[_Rearrangement]) -> _Rearrangement | None:
    return min(tried, default=None, key=lambda each: each.rank)


def _ruled(step: PartitionedStep, axes: Axes, dims: int = MOST_DIMS) -> _Rearrangement | None:
    """Return the best rules: one dimension at a time, as long as much is left."""
    best = _best(_rules(step, axes))
    if best is None or best.left <= LITTLE or dims == 1:
        return best
    other = PartitionedStep(step.model, step.plan.replace(**best.tables))
    more = _ruled(other, axes, dims - 1) if other.repeated(axes) else None
    if more is None:
        return best
    return _best((best, more._replace(left=more.left * other.total / step.total)))


def _rules(step: PartitionedStep, axes: Axes) -> Iterator[_Rearrangement]:
    """Yield rules that give the axes to one dimension of the largest operation.

    A rule is for the dimension in all parts of a model, or in the operation's own.
    """
    op, table = step.largest(axes).op, dict(step.rules.table)
    tensors = (*op.inputs, *op.outputs)
    tried = set()
    for dim in dict.fromkeys(dim for tensor in tensors for dim in tensor.dims):
        of_part = tuple(dict.fromkeys(rule_of(t, dim) for t in tensors if dim in t.dims))
        of_all = tuple(plain_dim(key).removeprefix(INPUT) for key in of_part)
        for keys in (of_all, of_part):
            if keys not in tried:
                tried.add(keys)
                had = {key: table.get(key, ()) for key in keys}
                rules = {key: tuple(dict.fromkeys((*had[key], *axes))) for key in keys}
                yield _rearranged(step, {"rules": {**step.plan.rules, **rules}})


def _meshes(step: PartitionedStep, axes: Axes) -> Iterator[_Rearrangement]:
    """Yield meshes that give the devices of an idle axis to another."""
    mesh = step.plan.mesh
    for taken in axes:
        for given in mesh:
            across = given.startswith(DCN_PREFIX), taken.startswith(DCN_PREFIX)
            if given != taken and across[0] == across[1]:
                sizes = {**mesh, taken: 1, given: mesh[given] * mesh[taken]}
                yield _rearranged(step, {"mesh": sizes})


def _rearranged(step: PartitionedStep, tables: Tables) -> _Rearrangement:
    """Return what a change leaves repeated and moves; infinite if the plan does not admit it."""
    try:
        other = PartitionedStep(step.model, step.plan.replace(**tables))
        return _Rearrangement(other.repeated() / step.total, other.moved(), tables)
    except TpusimError:
        return _Rearrangement(inf, inf, tables)

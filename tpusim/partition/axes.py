"""Mesh axes as a user writes them, in rules and annotations: names of the mesh, each once."""

from collections.abc import Mapping, Sequence

from tpusim.errors import PlanError, nearest
from tpusim.partition.layout import Axes
from tpusim.partition.plan import Rule


def axes_of(rule: Rule) -> Axes:
    """A rule as a tuple of axes: a name, several names or None."""
    if rule is None:
        return ()
    return (rule,) if isinstance(rule, str) else tuple(rule)


def check_once(where: str, axes: Sequence[str]) -> None:
    """Raise PlanError for an axis that stands twice."""
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice:
        raise PlanError(
            f"{where} names {twice!r} twice; an axis shards one dimension of a tensor, once"
        )


def check_known(where: str, axes: Axes, mesh: Mapping[str, int]) -> None:
    """Raise PlanError for an axis that the mesh has not."""
    for axis in axes:
        if axis not in mesh:
            raise PlanError(
                f"{where} over {axis!r}, which is no axis of the mesh: {nearest(axis, mesh)}"
            )

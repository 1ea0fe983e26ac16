"""Mesh axes as a user writes them in rules and annotations."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tpusim.base.errors import PlanError, nearest

Axes: TypeAlias = tuple[str, ...]
Rule: TypeAlias = str | Sequence[str] | None


def axes_of(rule: Rule) -> Axes:
    """Return the axes of a rule, which is a name, several names or None."""
    if rule is None:
        return ()
    return (rule,) if isinstance(rule, str) else tuple(rule)


def check_once(where: str, axes: Sequence[str]) -> None:
    """Raise PlanError if an axis is named twice."""
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice:
        raise PlanError(
            f"{where} names {twice!r} twice; an axis shards one dimension of a tensor, once"
        )


def check_known(where: str, axes: Axes, mesh: Mapping[str, int]) -> None:
    """Raise PlanError for an axis that the mesh does not have."""
    for axis in axes:
        if axis not in mesh:
            raise PlanError(
                f"{where} over {axis!r}, which is no axis of the mesh: {nearest(axis, mesh)}"
            )

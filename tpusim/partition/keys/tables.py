"""The keys of a plan that are tables: the mesh, rules and annotations."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpusim.errors import PlanError
from tpusim.partition.keys.values import check_positive, is_list

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan

_TABLES = {
    "mesh": "{'fsdp': 256, 'tensor': 8}",
    "rules": "{'act_embed': 'tensor'}",
    "annotate": "{'layer/q': ['fsdp', None, 'tensor', None]}",
}
"""The keys, and what they may be."""


def check(plan: "Plan") -> None:
    """Raise PlanError for what is no table, for a size that is none, and for what is no rule."""
    for key, example in _TABLES.items():
        if not isinstance(getattr(plan, key), Mapping):
            raise PlanError(
                f"plan.{key} is {getattr(plan, key)!r}; write a table, such as {example}"
            )
    if not plan.mesh:
        raise PlanError("plan.mesh is empty; write at least one axis, such as fsdp = 256")
    for axis, size in plan.mesh.items():
        check_positive(f"plan.mesh.{axis}", size)
    for key, rule in plan.rules.items():
        _check_rule(f"plan.rules.{key}", rule)
    for name, given in plan.annotate.items():
        if not is_list(given):
            raise PlanError(
                f"plan.annotate.{name} is {given!r}; write an entry for each dimension, such as "
                "['fsdp', None]"
            )
        for place, rule in enumerate(given):
            _check_rule(f"plan.annotate.{name}[{place}]", rule)


def _check_rule(where: str, value: Any) -> None:
    listed = isinstance(value, Sequence) and all(isinstance(axis, str) for axis in value)
    if value is not None and not listed:
        raise PlanError(f"{where} is {value!r}; write an axis, a list of axes or None")

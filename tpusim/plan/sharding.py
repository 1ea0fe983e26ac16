"""The sharding of a plan: the mesh, and what its axes shard."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.base.shown_value import cut
from tpusim.base.value_checks import check_name, check_positive, is_list
from tpusim.plan.axes import Rule
from tpusim.plan.context import Context
from tpusim.plan.experts import Experts
from tpusim.plan.pipeline import stages_of

_TABLE_EXAMPLES = {
    "mesh": "{'fsdp': 256, 'tensor': 8}",
    "rules": "{'act_embed': 'tensor'}",
    "annotate": "{'layer/q': ['fsdp', None, 'tensor', None]}",
}
"""An example of each field that is a table."""

_AXIS = re.compile(r"\s*(?P<axis>\S.*?)\s*(?:=\s*(?P<size>[0-9]+))?\s+on\s+(?P<parts>\S.*?)\s*")
_SEPARATOR = re.compile(r"[\s+,;=·]")
"""What stands between axes, or between an axis and its size or place, where they are text."""
_EXAMPLE = "'fsdp on y,z; tensor on x'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The mesh, and the tensors, tokens and experts that its axes shard.

    mesh: axis -> devices; axes named `dcn_...` run across slices. A plan in Python without a mesh
        is for one device, or for a search or a sweep that chooses the mesh.
    rules: dimension -> axes, over the default rules; `act_` before a dimension means activations,
        without it weights. The default rules are in `default_rules.py`.
    annotate: tensor -> one axis, several or none per dimension; the layouts of other tensors
        follow.
    placement: axis -> torus dimensions or parts of them, such as `{ tensor = ["x", "y[:2]"] }`;
        chosen if not given. The text of results and sweeps is read too (`tensor=8 on x,y[:2] ·
        fsdp=64 on y[::2],z`; `;` may stand for `·`, and sizes may be left out).
    context: the exchange of keys and values of sharded sequences.
    experts: the routing of tokens to experts.
    """

    mesh: Mapping[str, int] = field(default_factory=lambda: {"data": 1})
    rules: Mapping[str, Rule] = field(default_factory=dict)
    annotate: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    placement: Mapping[str, Sequence[str]] | None = None
    context: Context = field(default_factory=Context)
    experts: Experts = field(default_factory=Experts)

    def __post_init__(self) -> None:
        for key in ("mesh", "rules", "annotate", "placement"):  # the caller's may change
            if isinstance(value := getattr(self, key), dict):
                object.__setattr__(self, key, dict(value))
        for key, example in _TABLE_EXAMPLES.items():
            if not isinstance(getattr(self, key), Mapping):
                raise PlanError(
                    f"plan.{key} is {getattr(self, key)!r}; write a table, such as {example}"
                )
        if not self.mesh:
            raise PlanError("plan.mesh is empty; write at least one axis, such as fsdp = 256")
        for axis, size in self.mesh.items():
            check_name("plan.mesh", axis)
            if found := _SEPARATOR.search(axis):
                raise PlanError(
                    f"plan.mesh has the axis {axis!r}, and {found[0]!r} separates axes in tables "
                    "and placements; write _ or - in its name"
                )
            check_positive(f"plan.mesh.{axis}", size)
        for key, rule in self.rules.items():
            _check_rule(f"plan.rules.{key}", rule)
        if isinstance(self.placement, str):
            object.__setattr__(self, "placement", read_placement(self.placement, self.mesh))
        for name, given in self.annotate.items():
            if not is_list(given):
                raise PlanError(
                    f"plan.annotate.{name} is {given!r}; write an entry for each dimension, such "
                    "as ['fsdp', None]"
                )
            for position, rule in enumerate(given):
                _check_rule(f"plan.annotate.{name}[{position}]", rule)
        self._spell_alike()

    def _spell_alike(self) -> None:
        """Make plans equal that say the same, in lists or tuples, with None or no axes."""
        rules = {key: _alike(rule) for key, rule in self.rules.items()}
        annotate = {
            name: [_alike(rule) or None for rule in given] for name, given in self.annotate.items()
        }
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "annotate", annotate)
        if isinstance(self.placement, Mapping):
            placement = {
                axis: list(parts) if is_list(parts) else parts
                for axis, parts in self.placement.items()
            }
            object.__setattr__(self, "placement", placement)

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    @property
    def active_axes(self) -> dict[str, int]:
        """The axes that are larger than one; the others change nothing."""
        return {axis: size for axis, size in self.mesh.items() if size > 1}

    @property
    def stages(self) -> int:
        """Stages of the pipeline; 1 where there is none."""
        return stages_of(self.mesh)


def _check_rule(where: str, value: Any) -> None:
    listed = isinstance(value, Sequence) and all(isinstance(axis, str) for axis in value)
    if value is not None and not listed:
        raise PlanError(f"{where} is {value!r}; write an axis, a list of axes or None")


def _alike(rule: Rule) -> Rule:
    """Return a rule as it is kept: a name, or a tuple of names."""
    return rule if isinstance(rule, str) else tuple(rule or ())


def read_placement(text: str, mesh: Mapping[str, int]) -> dict[str, list[str]] | None:
    """Return the parts of the torus of each axis; None for an empty text.

    text: axes with their parts, separated by `·` or `;`. Sizes may be left out.
    mesh: that the sizes must agree with.

    Raise PlanError for a text that is no placement, and for one of another mesh.

    >>> read_placement("fsdp=64 on y[:4],z · tensor on x", {"fsdp": 64, "tensor": 8})
    {'fsdp': ['y[:4]', 'z'], 'tensor': ['x']}
    """
    found: dict[str, list[str]] = {}
    for part in re.split("[·;]", text) if text.strip() else ():
        read = _AXIS.fullmatch(part)
        if read is None:
            raise PlanError(
                f"plan.placement is {cut(text)!r}, of which {cut(part.strip())!r} is no axis on "
                f"dimensions of the torus; write for example {_EXAMPLE}"
            )
        axis, size = read["axis"], read["size"]
        if axis in found:
            raise PlanError(
                f"plan.placement is {cut(text)!r}, which has {axis} twice; write all of its parts "
                "at once, such as 'fsdp on y,z'"
            )
        if size is not None and axis in mesh and int(size) != mesh[axis]:
            raise PlanError(
                f"plan.placement has {axis}={size}, but plan.mesh has {axis}={mesh[axis]}; give "
                "the placement of this mesh, or leave it out and the best is chosen"
            )
        found[axis] = [each.strip() for each in read["parts"].split(",")]
    return found or None

"""The frame of a sweep: its columns, which depend on the space alone, and its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpusim.errors import PlanError
from tpusim.search.rows import NUMBERS, REFUSED, Row, labels
from tpusim.search.space import Candidate

if TYPE_CHECKING:
    from pandas import DataFrame

TOPOLOGY = "topology"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a sweep: sizes of mesh axes, varied fields, breakdown labels.

    shaped: whether the shape of the slice varies, which is the column `topology`.
    """

    axes: tuple[str, ...]
    varied: tuple[str, ...]
    breakdown: tuple[str, ...]
    shaped: bool

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in order."""
        shape = (TOPOLOGY,) if self.shaped else ()
        inputs = (*self.axes, *self.varied, *shape)
        return (*inputs, "placement", *NUMBERS, *self.breakdown, "status", "reason")


def columns(tried: Sequence[Candidate], varied: Sequence[str]) -> Columns:
    """The columns for these candidates. Raises PlanError for an axis named like another column."""
    meshes = [candidate.plan.mesh for candidate in tried]
    axes = tuple(dict.fromkeys(axis for mesh in meshes for axis in mesh))
    active = {axis for mesh in meshes for axis, size in mesh.items() if size > 1}
    shaped = any(candidate.shape for candidate in tried)
    found = Columns(axes, tuple(varied), labels(active), shaped)
    for axis in axes:
        if found.names.count(axis) > 1:
            raise PlanError(f"the mesh axis {axis!r} has the name of a column; write another name")
    return found


def frame(columns: Columns, tried: Sequence[Candidate], outcomes: Sequence[Row]) -> "DataFrame":
    """One row a candidate; numbers that a refused plan does not have are NaN."""
    from pandas import DataFrame

    rows = [
        _inputs(columns, candidate) | _zeros(columns, outcome) | outcome
        for candidate, outcome in zip(tried, outcomes, strict=True)
    ]
    floats = {*NUMBERS, *columns.breakdown} - {"fits"}
    kinds = dict.fromkeys(columns.axes, "int64") | dict.fromkeys(floats, "float64")
    return DataFrame(rows, columns=list(columns.names)).astype(kinds)


def _inputs(columns: Columns, candidate: Candidate) -> Row:
    """What distinguishes a plan. An axis that its mesh does not have is of size 1."""
    sizes = {axis: candidate.plan.mesh.get(axis, 1) for axis in columns.axes}
    given = {key: getattr(candidate.plan, key) for key in columns.varied}
    fields = {key: written(value) for key, value in {**given, **candidate.values}.items()}
    return sizes | fields | ({TOPOLOGY: candidate.shape} if columns.shaped else {})


def _zeros(columns: Columns, outcome: Row) -> Row:
    return {} if outcome["status"] == REFUSED else dict.fromkeys(columns.breakdown, 0.0)


def written(value: Any) -> float | str:
    """A plan's field as one cell: numbers and names as they are, the rest as text.

    >>> written({"act_embed": "tensor", "mlp": ["fsdp", "tensor"]})
    'act_embed=tensor, mlp=fsdp+tensor'
    >>> written(())
    'none'
    """
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_part(inner)}" for key, inner in value.items()) or "none"
    return ", ".join(map(_part, value or ())) or "none"


def _part(value: Any) -> str:
    if isinstance(value, int | str):
        return str(value)
    return "+".join(map(_part, value or ())) or "none"

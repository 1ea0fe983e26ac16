"""The space of a sweep: a base plan, and what varies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, blame, nearest
from tpusim.base.html_text import html_fields
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import is_list
from tpusim.hardware import Slice
from tpusim.plan import PLAN_KEYS, Plan
from tpusim.sweeps.row_plans import (
    ROW_ADVICE,
    row_cells,
    row_mesh,
    varied_values,
    with_row_values,
)
from tpusim.sweeps.search_axes import (
    ALL_TWISTED,
    SearchAxis,
    SweepCandidate,
    expand,
    mesh_axis,
    placement_axis,
    plan_field_axis,
    shape_axis,
)

PLACEMENTS = ("best", "all")
_INTERDEPENDENT = {
    PLAN_KEYS.table[key]
    for key in ("schedule", "virtual_stages", "stage_layers", "save", "offload")
}
"""Fields of a plan whose values may be legal only together."""

_NOT_VARIED = {"mesh": "axes or meshes", "placement": 'placements = "all"'}


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All combinations of values, shapes, meshes and placements that a sweep tries.

    base: the plan that the others vary; its own mesh is tried if there are neither `axes` nor
        `meshes`.
    axes: mesh axes; each factorisation of the slice's devices over them is a mesh. Axes named
        `dcn_...` divide the slices instead. Axes of the base that are not listed keep their size.
    meshes: meshes to try, instead of `axes`.
    placements: `best`, the placement with the cheapest collectives, or `all` on whole torus
        dimensions. Where there is none, `all` tries the placements with the fewest cuts.
    shapes: other shapes with as many chips: a list (`4x8x16`, `4x8x16_twisted`), `all`, or
        `all+twisted`. A shape is tried in one order of its dimensions, as another order is the same
        machine.
    vary: plan key, flat (`gather_dtype`) or grouped (`dtypes.gather`) -> values to try.
    extra_axes: further dimensions, tried outside of shapes, meshes and placements.

    Raise PlanError for a field that a plan does not have, and for a value that it cannot have.
    Values that contradict each other (a schedule and its virtual stages) are refused plans.
    """

    base: Plan
    axes: Sequence[str] = ()
    meshes: Sequence[Mapping[str, int]] = ()
    placements: str = "best"
    shapes: str | Sequence[str] | None = None
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    extra_axes: Sequence[SearchAxis] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.base, Plan):
            raise PlanError(f"the base of a space is {shown(self.base)}; write a ts.Plan(...)")
        if not isinstance(self.vary, Mapping):
            raise PlanError(
                f"sweep.vary is {shown(self.vary)}; write a table, such as {{'microbatches': [1]}}"
            )
        for key in ("meshes", "extra_axes"):
            if not is_list(getattr(self, key)):
                raise PlanError(f"sweep.{key} is {shown(getattr(self, key))}; write a list")
        for axis in self.extra_axes:
            if not isinstance(axis, SearchAxis):
                raise PlanError(f"sweep.extra_axes has {shown(axis)}; write a SearchAxis")
        if self.placements not in PLACEMENTS:
            hint = nearest(str(self.placements), PLACEMENTS)
            raise PlanError(f"sweep.placements is {self.placements!r}: {hint}")
        if self.axes and self.meshes:
            raise PlanError("sweep.axes and sweep.meshes are both given; write one of them")
        if not _is_list_of_names(self.axes) or len(set(self.axes)) < len(self.axes):
            raise PlanError(f"sweep.axes is {self.axes!r}; write a list of names, each once")
        if self.shapes is not None:
            _check_shapes(self.shapes)
        chooses = self.axes or self.meshes or self.shapes or self.placements == "all"
        if self.base.placement is not None and chooses:
            raise PlanError(
                "plan.placement is given, but the sweep chooses placements itself; leave it out"
            )
        for number, mesh in enumerate(self.meshes):
            with blame(f"sweep.meshes[{number}]"):
                self.base.replace(mesh=mesh)
        check_vary(self.base, self.vary, "sweep", _NOT_VARIED)

    def _repr_html_(self) -> str:
        """Return what varies and the base, for a notebook."""
        return html_fields("Space: what a sweep tries", self)

    @property
    def search_axes(self) -> tuple[SearchAxis, ...]:
        """All dimensions, outermost first. A new one that is built in is an entry here."""
        return (
            *(plan_field_axis(key, values) for key, values in self.vary.items()),
            *self.extra_axes,
            *(() if self.shapes is None else (shape_axis(self.shapes),)),
            mesh_axis(self.axes, self.meshes),
            *((placement_axis(),) if self.placements == "all" else ()),
        )

    def plan(self, row: Any, pod: Slice | None = None) -> Plan:
        """Return the plan that a row of this space's sweep is of.

        row: one row of the frame, also of one that was joined, filtered or read from a file, as a
            Series or a mapping by column. Where it has no value of a varied key (NaN), the base's
            stands.
        pod: the slice of the sweep; needed where the space has `extra_axes` alone.

        The plan has the row's placement if the sweep tried several; to fix the best, give the
        column to the plan: `plan.replace(placement=row["placement"])`.

        Raise PlanError for what is no row of this space, and for values that contradict each other.
        """
        cells = row_cells(row)
        if self.extra_axes and pod is None:
            raise PlanError(
                "the space has search axes of its own, whose values depend on the slice; write "
                "space.plan(row, pod)"
            )
        plan = self.base
        if pod is not None:
            plan = with_row_values(SweepCandidate(plan, pod), self.extra_axes, cells).plan
        mesh = row_mesh(plan.mesh, self.axes, self.meshes, cells)
        plan = plan.replace(mesh=mesh, **varied_values(self.vary, cells))
        if self.placements == "best":
            return plan
        return plan.replace(placement=cells.get("placement"))

    def slice(self, row: Any, pod: Slice) -> Slice:
        """Return the slice that a row of this space's sweep on `pod` is of.

        Raise PlanError for what is no row of this space.
        """
        cells = row_cells(row)
        found = with_row_values(SweepCandidate(self.base, pod), self.extra_axes, cells).pod
        if self.shapes is None:
            return found
        if "topology" not in cells:
            raise PlanError(f"the row has no topology; {ROW_ADVICE}")
        return found.changed(shape=cells["topology"])


def candidates(space: Space, pod: Slice) -> Iterator[SweepCandidate]:
    """Yield all candidates of a space on `pod`: plan fields outermost, then the other axes.

    The order depends on the space alone, and keeps plans of one graph together. Raise PlanError if
    no mesh of the axes has the slice's devices or a shape has not its chips, and HardwareError for
    a shape that the generation does not have.
    """
    before: tuple[Plan, Mapping[str, Any], Plan | str] | None = None
    for candidate in expand(space.search_axes, SweepCandidate(space.base, pod)):
        tried = {key: candidate.values[key] for key in space.vary}
        if before is None or before[0] is not candidate.plan or before[1] != tried:
            before = candidate.plan, tried, _with_fields(candidate.plan, tried)
        plan = before[2]  # one object for all placements of a mesh
        if isinstance(plan, Plan):
            yield replace(candidate, plan=plan)
        else:
            yield replace(candidate, refused=plan)


def _with_fields(plan: Plan, tried: Mapping[str, Any]) -> Plan | str:
    """Return the plan with other values, or why it cannot have them."""
    try:
        return plan.replace(**tried)
    except PlanError as error:
        return str(error)


def _check_shapes(given: Any) -> None:
    """Raise PlanError unless these are `all`, `all+twisted` or a list of strings, each once."""
    if isinstance(given, str) and given in ("all", ALL_TWISTED):
        return
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise PlanError(
            f"sweep.shapes is {given!r}; write 'all', 'all+twisted' or a list of shapes, such as "
            "['4x4x8'], or leave it out to keep the slice's own"
        )
    for number, shape in enumerate(given):
        if not isinstance(shape, str) or not shape:
            raise PlanError(f"sweep.shapes[{number}] is {shape!r}; write a shape, such as '4x4x8'")
        if shape in given[:number]:
            raise PlanError(f"sweep.shapes[{number}] is {shape!r} again; write each shape once")


def _is_list_of_names(given: Any) -> bool:
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    return listed and all(isinstance(name, str) for name in given)


def check_vary(
    base: Plan, vary: Mapping[str, Any], section: str, chosen: Mapping[str, str]
) -> None:
    """Raise PlanError for a key that is not varied, and for a value that no plan can have.

    section: of a run file, for messages.
    chosen: keys that are chosen otherwise, and by what.
    """
    for key, values in vary.items():
        if key in chosen:
            raise PlanError(f"{section}.vary does not take {key!r}; write {chosen[key]} instead")
        if not PLAN_KEYS.is_known(key):
            hint = nearest(key, PLAN_KEYS.table.keys() - chosen.keys())
            raise PlanError(f"{section}.vary has an unknown field {key!r}; {hint}")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise PlanError(f"{section}.vary.{key} is {values!r}; write a list of values to try")
    PLAN_KEYS.check_once(vary)
    for key, values in vary.items():
        for number, value in enumerate(values):
            _check_varied(base, vary, key, value, f"{section}.vary.{key}[{number}]")


def _check_varied(base: Plan, vary: Mapping[str, Any], key: str, value: Any, where: str) -> None:
    """Raise PlanError unless some plan can have the value."""
    try:
        with blame(where):
            base.replace(**{key: value})
    except PlanError:
        others = {k: v for k, v in vary.items() if _is_interdependent(k) and k != key}
        if not _is_interdependent(key) or not any(
            isinstance(
                _with_fields(base, {**dict(zip(others, values, strict=True)), key: value}), Plan
            )
            for values in product(*others.values())
        ):
            raise


def _is_interdependent(key: str) -> bool:
    return PLAN_KEYS.field_of(key) in _INTERDEPENDENT

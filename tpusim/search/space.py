"""The plans of a sweep: a base plan, and what varies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from math import prod
from typing import Any

from tpusim.errors import PlanError, blame, nearest
from tpusim.hardware import Placement, Slice, placements
from tpusim.hardware.legality import can_twist, format_shape, legal_shapes
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.hardware.rules import GENERATIONS
from tpusim.hardware.topology import TWISTED
from tpusim.partition import Plan

PLACEMENTS = ("best", "all")
ALL_TWISTED = "all+twisted"
SHAPES = ("all", ALL_TWISTED)
_TOGETHER = ("schedule", "virtual_stages", "stage_layers", "save", "offload")
"""Fields of a plan whose values can contradict each other."""

_ELSEWHERE = {"mesh": "axes or meshes", "placement": 'placements = "all"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a sweep tries: all combinations of values, meshes and placements.

    base: the plan that the others vary; its own mesh is tried when there are neither `axes` nor
        `meshes`.
    axes: names of mesh axes; every way to write the devices of a slice as a product of their sizes
        is a mesh. Axes named `dcn_...` share the slices instead. Axes of the base that are not
        among them keep their size.
    meshes: meshes to try, instead.
    placements: `best` takes the placement with the cheapest collectives; `all` tries every one on
        whole torus dimensions, or where there is none those that cut the fewest.
    shapes: shapes to try instead of the slice's own, of as many chips: a list (`4x8x16`,
        `4x8x16_twisted`), `all` that the generation has, or `all+twisted`. A shape is tried in
        one order of its dimensions, as another is the same machine.
    vary: plan field -> values to try.

    Raises PlanError for a field that a plan does not have, and for a value that it cannot have.
    Values that contradict each other (a schedule, and its virtual stages) are refused plans.
    """

    base: Plan
    axes: Sequence[str] = ()
    meshes: Sequence[Mapping[str, int]] = ()
    placements: str = "best"
    shapes: str | Sequence[str] | None = None
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.placements not in PLACEMENTS:
            hint = nearest(str(self.placements), PLACEMENTS)
            raise PlanError(f"sweep.placements is {self.placements!r}: {hint}")
        if self.axes and self.meshes:
            raise PlanError("sweep.axes and sweep.meshes are both given; write one of them")
        if not _are_names(self.axes) or len(set(self.axes)) < len(self.axes):
            raise PlanError(f"sweep.axes is {self.axes!r}; write a list of names, each once")
        if self.shapes is not None:
            _check_shapes(self.shapes)
        chooses = self.axes or self.meshes or self.shapes or self._all_placements
        if self.base.placement is not None and chooses:
            raise PlanError(
                "plan.placement is given, but the sweep chooses placements itself; leave it out"
            )
        for number, mesh in enumerate(self.meshes):
            _check_value(self.base, "mesh", mesh, f"sweep.meshes[{number}]")
        for key, values in self.vary.items():
            _check_values(key, values)
        for key, values in self.vary.items():
            for number, value in enumerate(values):
                _check_varied(self, key, value, f"sweep.vary.{key}[{number}]")

    @property
    def _all_placements(self) -> bool:
        return self.placements == "all"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan to try, with the slice's shape and the placement where the sweep sets them.

    Model and slice have not been asked yet: one that they do not admit becomes a row that says so.
    values: of the fields that vary. refused: why they contradict each other, if they do; then the
    plan is the base on its mesh.
    """

    plan: Plan
    placement: Placement | None = None
    shape: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""


def candidates(space: Space, pod: Slice) -> Iterator[Candidate]:
    """All candidates of a space on `pod`: values outermost, then shapes, meshes and placements.

    The order depends on the space alone, and keeps plans of one graph together. Raises PlanError
    where no mesh of the axes has the slice's devices, or a shape has not its chips, and
    HardwareError for a shape that the generation does not have.
    """
    tried = meshes(space, pod)
    laid = [
        (mesh, placement, shape)
        for shape in shapes(space, pod)
        for mesh in tried
        for placement in _placements(space, shaped(pod, shape), mesh)
    ]
    for each in product(*space.vary.values()):
        values = dict(zip(space.vary, each, strict=True))
        for mesh, placement, shape in laid:
            plan = replace(space.base, mesh=mesh)
            try:
                plan, refused = replace(plan, **values), ""
            except PlanError as error:
                refused = str(error)
            yield Candidate(plan, placement, shape, values, refused)


def shapes(space: Space, pod: Slice) -> Sequence[str]:
    """The shapes of a space, each with as many chips as a slice of `pod`; "" for its own."""
    if space.shapes is None:
        return ("",)
    if isinstance(space.shapes, str):
        legal = legal_shapes(pod.chip.generation, pod.topology.chips)
        twists = space.shapes == ALL_TWISTED and GENERATIONS[pod.chip.generation].twistable
        return [
            format_shape(dims) + suffix
            for dims in legal
            for suffix in (("", TWISTED) if twists and can_twist(dims) else ("",))
        ]
    return [_alike(pod, shape, f"sweep.shapes[{n}]") for n, shape in enumerate(space.shapes)]


def _alike(pod: Slice, shape: str, where: str) -> str:
    """The shape as a topology writes it, if it has as many chips as a slice of `pod`."""
    with blame(where):
        topology = shaped(pod, shape).topology
    if topology.chips != pod.topology.chips:
        raise PlanError(
            f"{where} is {topology}, which has {topology.chips} chips, but the slice "
            f"{pod.topology} has {pod.topology.chips}; write shapes of as many"
        )
    return str(topology)


def shaped(pod: Slice, shape: str) -> Slice:
    """The slice with another shape; itself where that is empty."""
    if not shape:
        return pod
    return Slice(pod.chip, shape, pod.num_slices, dcn_oversubscription=pod.dcn_oversubscription)


def meshes(space: Space, pod: Slice) -> Sequence[Mapping[str, int]]:
    """The meshes of a space, in their order; sizes of the first axis rise slowest."""
    if space.meshes or not space.axes:
        return space.meshes or (space.base.mesh,)
    kept = {axis: size for axis, size in space.base.mesh.items() if axis not in space.axes}
    inside = [axis for axis in space.axes if not axis.startswith(DCN_PREFIX)]
    across = [axis for axis in space.axes if axis.startswith(DCN_PREFIX)]
    found = [
        {**kept, **{axis: sizes[axis] for axis in space.axes}}
        for one in _sized(across, pod.num_slices, kept, pod)
        for other in _sized(inside, pod.devices // pod.num_slices, kept, pod)
        for sizes in ({**one, **other},)
    ]
    return found


def _sized(
    axes: Sequence[str], number: int, kept: Mapping[str, int], pod: Slice
) -> list[dict[str, int]]:
    """Sizes of `axes` that multiply to what the kept axes leave of `number`."""
    if not axes:
        return [{}]
    across = axes[0].startswith(DCN_PREFIX)
    beside = {axis: n for axis, n in kept.items() if axis.startswith(DCN_PREFIX) == across}
    left, rest = divmod(number, prod(beside.values()))
    if rest:
        said = ", ".join(f"{axis} = {n}" for axis, n in beside.items())
        raise PlanError(
            f"sweep.axes cannot share the {number} {'slices' if across else 'devices'} of {pod}: "
            f"plan.mesh has {said} besides, which does not divide them; add it to sweep.axes or "
            "write a size that does"
        )
    return [dict(zip(axes, sizes, strict=True)) for sizes in factorisations(left, len(axes))]


def factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `number` as an ordered product of `parts` factors.

    >>> list(factorisations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        yield (number,)
        return
    for first in (size for size in range(1, number + 1) if number % size == 0):
        for rest in factorisations(number // first, parts - 1):
            yield (first, *rest)


def _placements(space: Space, pod: Slice, mesh: Mapping[str, int]) -> Sequence[Placement | None]:
    if space.placements == "best":
        return (None,)
    try:
        return placements(pod, mesh)
    except PlanError:
        return (None,)


def _check_shapes(given: Any) -> None:
    """Raise `PlanError` unless these are one of the words, or a list of texts, each once."""
    if isinstance(given, str) and given in SHAPES:
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


def _are_names(given: Any) -> bool:
    """Whether this is a list of texts."""
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    return listed and all(isinstance(name, str) for name in given)


def _check_values(key: str, values: Any) -> None:
    names = {each.name for each in fields(Plan)} - set(_ELSEWHERE)
    if key in _ELSEWHERE:
        raise PlanError(f"sweep.vary does not take {key!r}; write {_ELSEWHERE[key]} instead")
    if key not in names:
        raise PlanError(f"sweep.vary has an unknown field {key!r}; {nearest(key, names)}")
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise PlanError(f"sweep.vary.{key} is {values!r}; write a list of values to try")


def _check_varied(space: Space, key: str, value: Any, where: str) -> None:
    """Raise PlanError unless some plan of the space can have the value."""
    try:
        _check_value(space.base, key, value, where)
    except PlanError:
        beside = {k: v for k, v in space.vary.items() if k in _TOGETHER and k != key}
        if key not in _TOGETHER or not any(
            _agree(space.base, {**dict(zip(beside, values, strict=True)), key: value})
            for values in product(*beside.values())
        ):
            raise


def _agree(base: Plan, values: Mapping[str, Any]) -> bool:
    try:
        replace(base, **values)
    except PlanError:
        return False
    return True


def _check_value(base: Plan, key: str, value: Any, where: str) -> None:
    with blame(where):
        replace(base, **{key: value})

"""Search axes: the dimensions of a sweep, and the candidates that they span.

Every field of `Plan` is a search axis (`Space.vary`). Anything else that a sweep may vary, such as
a property of the slice, is one `SearchAxis`: give it to `Space.extra_axes`, or build it in with an
entry in `Space.search_axes`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

from tpusim.base.errors import PlanError, blame
from tpusim.hardware import (
    DCN_PREFIX,
    TWISTED,
    Placement,
    Slice,
    can_twist,
    format_shape,
    legal_shapes,
    placements,
)
from tpusim.plan import Plan

ALL_TWISTED = "all+twisted"


@dataclass(frozen=True, slots=True)
class SweepCandidate:
    """A plan to try on a slice; only its simulation shows whether model and slice admit it.

    placement: the placement to try, or None for the best one.
    values: value of each search axis that has a column, by column.
    refused: why the varied fields contradict each other, or "". The plan then is the base plan on
        its mesh.
    """

    plan: Plan
    pod: Slice
    placement: Placement | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, slots=True)
class SearchAxis:
    """A dimension of a sweep.

    values: from a candidate, as the axes before this one have set it, to the values to try.
    change: from a candidate and a value to the candidate with that value.
    column: the column of the frame that holds the value, or "" if none is needed.
    """

    values: Callable[[SweepCandidate], Iterable[Any]]
    change: Callable[[SweepCandidate, Any], SweepCandidate]
    column: str = ""


def plan_field_axis(key: str, values: Sequence[Any]) -> SearchAxis:
    """Return the axis of a plan field. Fields may be legal only together: see `candidates`."""
    return SearchAxis(lambda _: values, lambda candidate, _: candidate, key)


def shape_axis(shapes: str | Sequence[str]) -> SearchAxis:
    """Return the axis of the slice's topology. shapes: as in `Space`."""
    return SearchAxis(
        lambda candidate: _shapes(candidate.pod, shapes),
        lambda candidate, shape: replace(candidate, pod=candidate.pod.changed(shape=shape)),
        "topology",
    )


def mesh_axis(axes: Sequence[str], meshes: Sequence[Mapping[str, int]]) -> SearchAxis:
    """Return the axis of the mesh: `meshes`, or all sizes of `axes`, or else the plan's own.

    It has no column of its own: the sizes of the mesh axes are columns.
    """
    return SearchAxis(
        lambda candidate: meshes or _meshes(candidate.plan.mesh, axes, candidate.pod),
        lambda candidate, mesh: replace(candidate, plan=candidate.plan.replace(mesh=mesh)),
    )


def placement_axis() -> SearchAxis:
    """Return the axis of all placements of the mesh. Their column comes from the result."""
    return SearchAxis(
        lambda candidate: _placements(candidate.pod, tuple(candidate.plan.mesh.items())),
        lambda candidate, placement: replace(candidate, placement=placement),
    )


def expand(axes: Sequence[SearchAxis], candidate: SweepCandidate) -> Iterator[SweepCandidate]:
    """Yield all combinations of values; the first axis is outermost."""
    if not axes:
        yield candidate
        return
    axis, *others = axes
    for value in axis.values(candidate):
        changed = axis.change(candidate, value)
        if axis.column:
            changed = replace(changed, values={**changed.values, axis.column: value})
        yield from expand(others, changed)


def _shapes(pod: Slice, shapes: str | Sequence[str]) -> Sequence[str]:
    """Return shapes with as many chips as the slice has."""
    if not isinstance(shapes, str):
        return [_same_size(pod, shape, f"sweep.shapes[{n}]") for n, shape in enumerate(shapes)]
    twists = shapes == ALL_TWISTED and pod.slice_rules.twistable
    return [
        format_shape(dims) + suffix
        for dims in legal_shapes(pod.slice_rules, pod.topology.chips)
        for suffix in (("", TWISTED) if twists and can_twist(dims) else ("",))
    ]


def _same_size(pod: Slice, shape: str, where: str) -> str:
    """Return the canonical name of a shape. Raise PlanError unless it has the slice's chips."""
    with blame(where):
        topology = pod.changed(shape=shape).topology
    if topology.chips != pod.topology.chips:
        raise PlanError(
            f"{where} is {topology}, which has {topology.chips} chips, but the slice "
            f"{pod.topology} has {pod.topology.chips}; write shapes of as many"
        )
    return str(topology)


@lru_cache(maxsize=1024)
def _placements(pod: Slice, mesh: tuple[tuple[str, int], ...]) -> Sequence[Placement | None]:
    try:
        return placements(pod, dict(mesh))
    except PlanError:
        return (None,)


def _meshes(
    base: Mapping[str, int], axes: Sequence[str], pod: Slice
) -> Sequence[Mapping[str, int]]:
    """Return the base mesh with all sizes of `axes`; those of the first axis rise slowest."""
    kept = {axis: size for axis, size in base.items() if axis not in axes}
    inner = [axis for axis in axes if not axis.startswith(DCN_PREFIX)]
    dcn = [axis for axis in axes if axis.startswith(DCN_PREFIX)]
    return [
        {**kept, **{axis: sizes[axis] for axis in axes}}
        for across in _axis_sizes(dcn, pod.num_slices, kept, pod)
        for within in _axis_sizes(inner, pod.devices // pod.num_slices, kept, pod)
        for sizes in ({**across, **within},)
    ]


def _axis_sizes(
    axes: Sequence[str], number: int, kept: Mapping[str, int], pod: Slice
) -> list[dict[str, int]]:
    """Return the sizes of `axes` whose product is what the kept axes leave of `number`."""
    if not axes:
        return [{}]
    across = axes[0].startswith(DCN_PREFIX)
    beside = {axis: n for axis, n in kept.items() if axis.startswith(DCN_PREFIX) == across}
    left, rest = divmod(number, prod(beside.values()))
    if rest:
        sizes = ", ".join(f"{axis} = {n}" for axis, n in beside.items())
        raise PlanError(
            f"sweep.axes cannot share the {number} {'slices' if across else 'devices'} of {pod}: "
            f"plan.mesh has {sizes} besides, which does not divide them; add it to sweep.axes or "
            "write a size that does"
        )
    return [dict(zip(axes, sizes, strict=True)) for sizes in factorisations(left, len(axes))]


def factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write `number` as an ordered product of `parts` factors.

    >>> list(factorisations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        yield (number,)
        return
    for first in (size for size in range(1, number + 1) if number % size == 0):
        for rest in factorisations(number // first, parts - 1):
            yield (first, *rest)

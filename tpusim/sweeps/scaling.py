"""Scaling curves: one plan on more and more chips of a slice, and on more and more slices.

An axis that shards the batch grows with the machine and the others keep their size. In a *weak*
curve the batch grows too, so that a chip keeps its share; in a *strong* one it stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import nan
from typing import TYPE_CHECKING, Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, blame, nearest
from tpusim.base.short_repr import ShortRepr
from tpusim.base.units import format_mesh
from tpusim.hardware import DCN_PREFIX, Slice, default_shape, format_shape, legal_shapes
from tpusim.models import Architecture
from tpusim.plan import DEFAULT_RULES, Input, Plan, Sharding, axes_of
from tpusim.simulation.arguments import check_arguments, check_input
from tpusim.sweeps.rows import PLAN_FITS, RANGE_COLUMNS, SweepRow, simulate_chunk
from tpusim.sweeps.scaling_text import scaling_text
from tpusim.sweeps.search_axes import SweepCandidate

if TYPE_CHECKING:
    from pandas import DataFrame

CURVES = WEAK, STRONG = "weak", "strong"
MEASURES = CHIPS, SLICES = "chips", "slices"
"""What grows along a curve: the chips of each slice, or the slices."""

DOUBLINGS = 3
"""Without a list, slices are halved and doubled so many times, where the generation has them."""

USUAL_SLICES = (1, 2, 4, 8, 16, 32)
_NUMBERS = ("step_time_s", "mfu", "hfu", "tokens_per_s", "hbm_peak_bytes", *RANGE_COLUMNS)


@dataclass(frozen=True, slots=True, repr=False)
class Scaling(ShortRepr):
    """Scaling curves of a plan.

    pod: the slice of the plan that the curves begin with or pass through.
    grows: the mesh axis that grows, by what it grows with (`chips`, `slices`).
    points: plan and slice of each point.
    table: a row per point, in the order of the curves: `curve` (`weak`, `strong`), `over`, `chips`
        (of all slices), `slices`, `topology`, `mesh`, `global_batch`, `placement`, the numbers of
        `Result` in SI units, `efficiency`, `fits`, `status` and `reason` as in a sweep.
        `efficiency` is examples per second and chip, over those of the curve's first plan that
        fits (of its first that runs, if none fits).
    """

    model: Architecture
    plan: Plan
    pod: Slice
    grows: dict[str, str]
    points: tuple[SweepCandidate, ...]
    table: "DataFrame"

    def __str__(self) -> str:
        head = f"{self.model.name} on {self.pod} ({self.pod.chips} chips), {self.plan}"
        return scaling_text(head, self.grows, self.table)


@checked_call
def scaling(
    model: Architecture | str,
    plan: Plan,
    pod: Slice | str,
    *,
    chips: Sequence[int] | None = None,
    slices: Sequence[int] | None = None,
    axis: str | None = None,
    input: Input | None = None,
) -> Scaling:
    """Return weak and strong curves of a plan over the chips of a slice and over slices.

    chips: chips of each slice, in the most cube-like legal shape, but for the plan's own slice; by
        default the plan's, three times halved and doubled, where the generation has such slices.
    slices: numbers of slices of the plan's shape, joined by DCN; by default 1 to 32 in powers of
        two. If one of both lists is given, only its curves are made.
    axis: the mesh axis that grows with the chips; by default the first that shards the batch and
        is larger than one (`data`, then `fsdp`).
    input: the input pipeline of each host, of which there are more on more chips; None for batches
        that are there when a step begins.

    Over slices the first `dcn_` axis of the mesh that shards the batch grows, or else `dcn_data`.
    Placements are chosen anew where chips change. Raise PlanError or HardwareError with one
    sentence for a list that is none, a number of chips that the generation has not, an axis that
    cannot grow so, and a slice with slow or broken parts. A plan that the model refuses is a row
    with its reason.
    """
    model, plan, pod = check_arguments(model, plan, pod, "scaling")
    check_input(input, plan.input_s)
    if pod.impaired:
        raise PlanError(
            f"the slice has {pod.impaired}, which other slices do not have; leave them "
            "out for a scaling curve"
        )
    points: list[_Point] = []
    grows: dict[str, str] = {}
    if chips is not None or slices is None:
        grows[CHIPS] = growing_axis(plan.sharding, axis)
        points += _over_chips(plan, pod, grows[CHIPS], _counts("chips", chips))
    elif axis is not None:
        raise PlanError(f"axis is {axis!r}, but only slices grow; leave it out, or give chips")
    if slices is not None or chips is None:
        grows[SLICES] = _growing_dcn_axis(plan.sharding)
        points += _over_slices(plan, pod, grows[SLICES], _counts("slices", slices))
    tried = tuple(point.tried for point in points)
    return Scaling(model, plan, pod, grows, tried, _frame(model, points, input))


@dataclass(frozen=True, slots=True)
class _Point:
    """A point of a curve."""

    curve: str
    over: str
    tried: SweepCandidate


def growing_axis(sharding: Sharding, given: str | None = None) -> str:
    """Return the mesh axis that grows with the chips of a slice: `given`, or one of the batch.

    Raise PlanError if there is none, or if the mesh does not have it.
    """
    inner = [name for name in sharding.mesh if not name.startswith(DCN_PREFIX)]
    if given is not None:
        if given not in inner:
            raise PlanError(f"axis is {given!r}, which cannot grow: {nearest(str(given), inner)}")
        return given
    batch = [name for name in _batch_axes(sharding) if name in inner]
    found = next((name for name in batch if sharding.mesh[name] > 1), batch[0] if batch else None)
    if found is None:
        raise PlanError(
            f"no axis of plan.mesh shards the batch within a slice ({', '.join(sharding.mesh)}), "
            "so none grows with the chips; name the one that does (--axis)"
        )
    return found


def _batch_axes(sharding: Sharding) -> Sequence[str]:
    return axes_of(sharding.rules.get("act_batch", DEFAULT_RULES["act_batch"]))


def _growing_dcn_axis(sharding: Sharding) -> str:
    across = [name for name in _batch_axes(sharding) if name.startswith(DCN_PREFIX)]
    return next((name for name in across if name in sharding.mesh), f"{DCN_PREFIX}data")


def _counts(what: str, given: Sequence[int] | None) -> Sequence[int] | None:
    """Return a list of rising whole numbers. Raise PlanError for anything else."""
    if given is None:
        return None
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    whole = listed and all(type(each) is int and each > 0 for each in given)
    if not whole or not given or list(given) != sorted(set(given)):
        raise PlanError(
            f"{what} is {given!r}; write whole numbers from 1 up that rise, such as [1, 2, 4]"
        )
    return given


def _over_chips(plan: Plan, pod: Slice, axis: str, given: Sequence[int] | None) -> Iterator[_Point]:
    """Yield the points over chips of a slice: first the weak curve, then the strong one."""
    own = pod.topology.chips
    counts = _usual_chips(pod, plan.mesh[axis]) if given is None else given
    free = plan.replace(placement=None)
    machines = []
    for count in counts:
        with blame(f"chips = {count}"):
            grown = pod
            if count != own:
                grown = pod.changed(shape=format_shape(default_shape(pod.slice_rules, count)))
            mesh = _grown(plan.mesh, axis, Fraction(count, own))
            machines.append(SweepCandidate(free.replace(mesh=mesh), grown))
    yield from _points(CHIPS, machines, own * pod.num_slices)


def _usual_chips(pod: Slice, size: int) -> Sequence[int]:
    """Return the chips of a slice, halved and doubled, where an axis of some size can follow."""
    own = pod.topology.chips
    factors = [Fraction(2) ** power for power in range(-DOUBLINGS, DOUBLINGS + 1)]
    return [
        int(own * factor)
        for factor in factors
        if (size * factor).denominator == (own * factor).denominator == 1
        and (factor == 1 or legal_shapes(pod.slice_rules, int(own * factor)))
    ]


def _over_slices(
    plan: Plan, pod: Slice, axis: str, given: Sequence[int] | None
) -> Iterator[_Point]:
    """Yield the points over slices: first the weak curve, then the strong one."""
    base = plan if axis in plan.mesh else plan.replace(mesh={**plan.mesh, axis: 1})
    machines = []
    for count in USUAL_SLICES if given is None else given:
        factor = Fraction(count, pod.num_slices)
        if given is None and (base.mesh[axis] * factor).denominator > 1:
            continue
        with blame(f"slices = {count}"):
            grown = pod.changed(num_slices=count)
            mesh = _grown(base.mesh, axis, factor)
            machines.append(SweepCandidate(base.replace(mesh=mesh), grown))
    yield from _points(SLICES, machines, pod.chips)


def _grown(mesh: Mapping[str, int], axis: str, factor: Fraction) -> dict[str, int]:
    """Return the mesh with an axis that is larger by a factor."""
    size = mesh[axis] * factor
    if size.denominator > 1:
        raise PlanError(
            f"the axis {axis} = {mesh[axis]} cannot be {factor} of itself; write multiples "
            "that leave it whole, or another axis"
        )
    return {**mesh, axis: int(size)}


def _points(over: str, machines: Sequence[SweepCandidate], chips: int) -> Iterator[_Point]:
    """Yield the points of both curves.

    machines: the slices, each with the plan whose batch is that of `chips`.
    """
    for curve in CURVES:
        for grown in machines:
            factor = Fraction(grown.pod.chips, chips) if curve == WEAK else Fraction(1)
            batch = grown.plan.global_batch * factor
            if batch.denominator == 1:
                tried = replace(grown, plan=grown.plan.replace(global_batch=int(batch)))
            else:
                reason = f"plan.global_batch would be {batch}: not a whole number of examples"
                tried = replace(grown, refused=reason)
            yield _Point(curve, over, tried)


def _frame(model: Architecture, points: Sequence[_Point], given: Input | None) -> "DataFrame":
    """Return a row for each point."""
    from pandas import DataFrame

    found = simulate_chunk(model, [point.tried for point in points], given)
    rows = [_row(point, row) for point, row in zip(points, found, strict=True)]
    firsts: dict[tuple[str, str], float] = {}
    for wanted in (PLAN_FITS, None):
        for row in rows:
            if row["status"] == wanted or (wanted is None and row["step_time_s"] > 0):
                firsts.setdefault((row["curve"], row["over"]), _rate(row))
    for row in rows:
        row["efficiency"] = _rate(row) / firsts.get((row["curve"], row["over"]), nan)
    return DataFrame(rows)


def _rate(row: SweepRow) -> float:
    """Return examples per second and chip."""
    return float(row["global_batch"] / row["step_time_s"] / row["chips"])


def _row(point: _Point, found: SweepRow) -> dict[str, Any]:
    plan, pod = point.tried.plan, point.tried.pod
    return {
        "curve": point.curve,
        "over": point.over,
        "chips": pod.chips,
        "slices": pod.num_slices,
        "topology": str(pod.topology),
        "mesh": format_mesh(plan.active_axes),
        "global_batch": plan.global_batch,
        "placement": found["placement"],
        **{name: float(found.get(name, nan) or nan) for name in _NUMBERS},
        "efficiency": nan,
        "fits": found["fits"],
        "status": found["status"],
        "reason": found["reason"],
    }

"""The candidate placements of a mesh on a slice.

Axes take products of whole torus dimensions if they can. Otherwise they share some: the inner axis
of a shared dimension is on neighbouring chips (a line), the outer one on chips `stride` apart (a
ring, if the dimension wraps, whose links its neighbours share). JAX splits dimensions with
`allow_split_physical_axes` (`mesh_utils.create_device_mesh`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, count, islice, permutations
from math import gcd, prod
from operator import mul

from tpusim.base.divisors import divisors
from tpusim.base.errors import PlanError
from tpusim.hardware.placement import DCN_PREFIX, Placement, check_mesh, dimensions
from tpusim.hardware.slices import Slice
from tpusim.hardware.spans import DIE, Span
from tpusim.hardware.topology import Topology

MAX_EXTRA_CUTS = 2
"""Cuts of a dimension that a candidate may have beyond the fewest possible."""

MAX_CANDIDATES = 24
"""Candidates with extra cuts are added while there are at most so many in all."""

MOST_PLACEMENTS = 5000
"""Placements with the fewest cuts that a search tries: four seconds on 4096 chips."""

_AxisSpans = tuple[tuple[str, Span], ...]
_RenumberedSpans = tuple[tuple[tuple[int, int, int], ...], ...]


def placements(pod: Slice, mesh: Mapping[str, int]) -> tuple[Placement, ...]:
    """Return the placements with the fewest cuts of a dimension: none if possible.

    Some placement always exists. Of those that differ by an exchange of like dimensions only, the
    first stands for all. The order is fixed: first those in which the first axes of the mesh take
    the first dimensions, the larger parts of a dimension first. An axis' spans are in the order of
    the dimensions.

    Raise PlanError if the mesh does not have the slice's devices, and for more than 5,000.
    """
    return _fewest_cuts(pod, mesh)[1]


def candidates(pod: Slice, mesh: Mapping[str, int]) -> tuple[Placement, ...]:
    """Return the placements among which the best is searched, those of `placements` first.

    If each axis has whole dimensions that all close to rings, no link can carry less. Otherwise
    placements with more cuts are candidates too: on a slice without wraparound an axis of 4 is a
    ring on 2 x 2 neighbours, and only a line along a dimension. They follow, cut by cut, as long as
    there are at most 24 in all and at most two cuts more than needed.

    Raise PlanError if the mesh does not have the slice's devices, and for more than 5,000 with the
    fewest cuts.
    """
    return _candidates(pod, tuple(mesh.items()))


@lru_cache(maxsize=1024)
def _candidates(pod: Slice, axes: tuple[tuple[str, int], ...]) -> tuple[Placement, ...]:
    mesh = dict(axes)
    least, found = _fewest_cuts(pod, mesh)
    if least == 0 and all(pod.topology.wrap) and not pod.topology.twisted:
        return found
    for cuts in range(least + 1, least + 1 + MAX_EXTRA_CUTS):
        room = MAX_CANDIDATES - len(found)
        if room <= 0:
            break
        more = tuple(islice(_with_cuts(pod, mesh, cuts), room + 1))
        if len(more) > room:
            break
        found += more
    return found


def _fewest_cuts(pod: Slice, mesh: Mapping[str, int]) -> tuple[int, tuple[Placement, ...]]:
    """Return the least number of cuts that a placement needs, and the placements with so many."""
    check_mesh(pod, mesh)
    ways = ((cuts, _with_cuts(pod, mesh, cuts)) for cuts in count())
    some = ((cuts, tuple(islice(found, MOST_PLACEMENTS + 1))) for cuts, found in ways)
    cuts, found = next((cuts, found) for cuts, found in some if found)
    if len(found) > MOST_PLACEMENTS:
        axes = sum(size > 1 for axis, size in mesh.items() if not axis.startswith(DCN_PREFIX))
        raise PlanError(
            f"plan.mesh has {axes} axes larger than one, which can lie on {pod} in more than "
            f"{MOST_PLACEMENTS:,} ways; write plan.placement, or one axis in place of those that "
            "shard the same dimensions"
        )
    return cuts, found


def _with_cuts(pod: Slice, mesh: Mapping[str, int], cuts: int) -> Iterator[Placement]:
    """Yield the placements that cut dimensions `cuts` times, one of each class of symmetry."""
    inside = {axis: size for axis, size in mesh.items() if not axis.startswith(DCN_PREFIX)}
    found = assignments(tuple(dimensions(pod).items()), inside, cuts)
    return _distinct((_placement(mesh, spans) for spans in found), pod.topology)


def _placement(mesh: Iterable[str], assigned: _AxisSpans) -> Placement:
    spans: dict[str, tuple[Span, ...]] = dict.fromkeys(mesh, ())
    for axis, span in assigned:
        spans[axis] += (span,)
    return Placement(tuple(spans.items()))


def symmetries(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the permutations of dimensions that map the torus onto itself, the identity first.

    They exchange dimensions of equal length and equal wraparound. A twist depends on the lengths
    alone, so it is mapped onto itself too.

    >>> symmetries(Topology.of("v4", "8x16x16"))
    ((0, 1, 2), (0, 2, 1))
    """
    kinds = list(zip(topology.dims, topology.wrap, strict=True))
    orders = permutations(range(len(kinds)))
    return tuple(order for order in orders if [kinds[dim] for dim in order] == kinds)


def _distinct(found: Iterable[Placement], topology: Topology) -> Iterator[Placement]:
    """Yield the first placement of each class that the symmetries of the torus make equal.

    The order of an axis' spans does not count: its chips are the same.
    """
    orders = symmetries(topology)
    known: set[_RenumberedSpans] = set()
    for placement in found:
        if len(orders) > 1:
            alike = min(_renumbered(placement, order) for order in orders)
            if alike in known:
                continue
            known.add(alike)
        yield placement


def _renumbered(placement: Placement, order: tuple[int, ...]) -> _RenumberedSpans:
    """Return the spans of each axis, sorted, with each dimension under its new number."""
    return tuple(
        tuple(
            sorted(
                (DIE if span.dim == DIE else order[span.dim], span.size, span.stride)
                for span in spans
            )
        )
        for _, spans in placement.axes
    )


def assignments(
    lengths: tuple[tuple[int, int], ...], left: Mapping[str, int], cuts: int
) -> Iterator[_AxisSpans]:
    """Yield the assignments of dimensions to axes that cut exactly `cuts` times.

    lengths: number and length of each dimension.
    left: positions that each axis still needs.
    """
    if not lengths:
        if cuts == 0 and prod(left.values()) == 1:
            yield ()
        return
    needed = tuple((axis, size) for axis, size in left.items() if size > 1)
    if _least_spans(lengths, needed) > len(lengths) + cuts:
        return
    (dim, length), *others = lengths
    for shares in _shares(length, 1, needed, cuts + 1):
        taken = {axis: size for axis, size, _ in shares}
        rest = {axis: size // taken.get(axis, 1) for axis, size in left.items()}
        spans = tuple((axis, Span(dim, size, stride)) for axis, size, stride in shares)
        for more in assignments(tuple(others), rest, cuts + 1 - len(shares)):
            yield spans + more


def _least_spans(lengths: tuple[tuple[int, int], ...], needed: tuple[tuple[str, int], ...]) -> int:
    """Return the fewest spans that axes can have: of each, as many as the longest dimensions."""
    reach = tuple(accumulate(sorted((length for _, length in lengths), reverse=True), mul))
    return sum(1 + bisect_left(reach, size) for _, size in needed)


@lru_cache(maxsize=4096)
def _shares(
    length: int, stride: int, left: tuple[tuple[str, int], ...], parts: int
) -> tuple[tuple[tuple[str, int, int], ...], ...]:
    """Return the divisions of a dimension among at most `parts` axes, innermost first.

    Each has the size and the stride of the axes. left: positions that each axis still needs.
    """
    found: list[tuple[tuple[str, int, int], ...]] = [()] if length == 1 else []
    for axis, size in left if parts else ():
        rest = tuple(each for each in left if each[0] != axis)
        for part in reversed(divisors(gcd(length, size))[1:]):
            others = _shares(length // part, stride * part, rest, parts - 1)
            found += [((axis, part, stride), *more) for more in others]
    return tuple(found)

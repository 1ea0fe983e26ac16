"""The ways in which a mesh can lie on a slice.

Axes take products of whole torus dimensions where they can. Where they cannot, they share some: the
inner axis of a shared dimension lies on neighbouring chips (a line), the outer one on chips
`stride` apart (a ring, if the dimension wraps, whose links its neighbours share). JAX splits
dimensions with `allow_split_physical_axes` (`mesh_utils.create_device_mesh`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import gcd, prod

from tpusim.errors import PlanError
from tpusim.hardware.placement import DCN_PREFIX, Placement, check_mesh, dimensions
from tpusim.hardware.slices import Slice
from tpusim.hardware.spans import Span
from tpusim.hardware.symmetry import distinct

MORE_CUTS = 2
MOST_CANDIDATES = 24

_Laid = tuple[tuple[str, Span], ...]


def whole_dimension_placements(pod: Slice, mesh: Mapping[str, int]) -> tuple[Placement, ...]:
    """The ways to lay the axes on products of whole torus dimensions (and the die).

    Of ways that are the same but for an exchange of like dimensions, the first stands for all.
    The order is fixed: first the ways in which the first axes of the mesh take the first
    dimensions. An axis' spans are in the order of the dimensions.

    Raises `PlanError` when the mesh does not have the slice's devices, or no way exists.
    """
    check_mesh(pod, mesh)
    found = _ways(pod, mesh, cuts=0)
    if not found:
        raise PlanError(_unplaceable(pod, mesh))
    return found


def placements(pod: Slice, mesh: Mapping[str, int]) -> tuple[Placement, ...]:
    """The ways to lay the mesh on the slice with the fewest cuts of a dimension: none if possible.

    Some way always exists. One stands for all that are the same but for an exchange of like
    dimensions. The order is fixed: as above, the larger parts of a dimension first.

    Raises `PlanError` when the mesh does not have the slice's devices.
    """
    return _fewest_cuts(pod, mesh)[1]


def candidates(pod: Slice, mesh: Mapping[str, int]) -> tuple[Placement, ...]:
    """The ways among which the best is looked for, those of `placements` first.

    Where each axis has whole dimensions that all close to rings, no link can carry less. Elsewhere
    ways with more cuts are candidates too: on a slice without wraparound an axis of 4 is a ring on
    2 x 2 neighbours, and only a line along a dimension. They follow, cut by cut, as long as there
    are at most 24 in all and at most two cuts more than needed.

    Raises `PlanError` when the mesh does not have the slice's devices.
    """
    least, found = _fewest_cuts(pod, mesh)
    if least == 0 and all(pod.topology.wrap) and not pod.topology.twisted:
        return found
    for cuts in range(least + 1, least + 1 + MORE_CUTS):
        more = _ways(pod, mesh, cuts)
        if len(found) + len(more) > MOST_CANDIDATES:
            break
        found += more
    return found


def _fewest_cuts(pod: Slice, mesh: Mapping[str, int]) -> tuple[int, tuple[Placement, ...]]:
    """The least number of cuts with which there is a way, and the ways with so many."""
    check_mesh(pod, mesh)
    return next((cuts, found) for cuts in count() if (found := _ways(pod, mesh, cuts)))


def _ways(pod: Slice, mesh: Mapping[str, int], cuts: int) -> tuple[Placement, ...]:
    """The ways that cut dimensions `cuts` times, one of each class of symmetry."""
    inside = {axis: size for axis, size in mesh.items() if not axis.startswith(DCN_PREFIX)}
    ways = (
        Placement(
            tuple((axis, tuple(span for owner, span in laid if owner == axis)) for axis in mesh)
        )
        for laid in _lay(tuple(dimensions(pod).items()), inside, cuts)
    )
    return distinct(ways, pod.topology)


def _lay(
    lengths: tuple[tuple[int, int], ...], left: Mapping[str, int], cuts: int
) -> Iterator[_Laid]:
    """The ways to give each axis the places `left` to it, cutting exactly `cuts` times."""
    if not lengths:
        if cuts == 0 and prod(left.values()) == 1:
            yield ()
        return
    (dim, length), *others = lengths
    for shares in _shares(dim, length, 1, left, cuts + 1):
        taken = {axis: span.size for axis, span in shares}
        rest = {axis: size // taken.get(axis, 1) for axis, size in left.items()}
        for more in _lay(tuple(others), rest, cuts + 1 - len(shares)):
            yield shares + more


def _shares(
    dim: int, length: int, stride: int, left: Mapping[str, int], parts: int
) -> Iterator[_Laid]:
    """The ways to share a dimension among at most `parts` axes, each once, innermost first."""
    if length == 1:
        yield ()
    for axis, size in left.items() if parts else ():
        rest = {other: need for other, need in left.items() if other != axis}
        for part in _divisors(gcd(length, size)):
            for more in _shares(dim, length // part, stride * part, rest, parts - 1):
                yield ((axis, Span(dim, part, stride)), *more)


def _divisors(number: int) -> list[int]:
    """The divisors above 1, the largest first."""
    return [part for part in range(number, 1, -1) if number % part == 0]


def _unplaceable(pod: Slice, mesh: Mapping[str, int]) -> str:
    lengths = dimensions(pod)
    sizes = ", ".join(f"{Span(dim, size)}={size}" for dim, size in lengths.items())
    products = _products(list(lengths.values()))
    inside = {axis: size for axis, size in mesh.items() if not axis.startswith(DCN_PREFIX)}
    odd = [f"{axis}={size}" for axis, size in inside.items() if size not in products]
    fault = (
        f"none of their products is {' or '.join(odd)}" if odd else "the axes need the same ones"
    )
    return (
        f"the mesh cannot be laid on whole dimensions of {pod}: they are {sizes}, and {fault}; "
        f"write axes of sizes {', '.join(map(str, sorted(products - {1})))}"
    )


def _products(lengths: Sequence[int]) -> set[int]:
    """The products of all subsets."""
    found = {1}
    for length in lengths:
        found |= {length * other for other in found}
    return found

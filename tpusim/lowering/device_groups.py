"""Device groups of collectives, as far as the compiler's choices depend on them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import TypeAlias

from tpusim.base.divisors import divisors
from tpusim.hardware import DIE, Chip, Placement, Slice, Span, Topology
from tpusim.network import dimension_sizes, is_ring, on_torus
from tpusim.plan import Axes

Places: TypeAlias = tuple[tuple[int, bool], ...]
"""How a group may lie: the dimensions that it spans, and whether it covers its slice."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices of a collective.

    dimensions: torus dimensions that the group spans.
    whole: True if it spans the whole slice.
    closes: says whether it is a ring; for groups of several dimensions that is found by laying one.
    bandwidth: of a bidirectional ring, nominal, in B/s; across slices that of a device on DCN.
    gathers_by: dimensions that a gather uses side by side, as the compiler counts them: all those
        of a group that cuts none, on a torus of three, otherwise one.
    slices: slices that the program runs on.
    tiled: weights are sharded over all axes of the mesh, see `weights_are_tiled`.
    """

    size: int
    dimensions: int
    whole: bool
    closes: Callable[[], bool]
    bandwidth: float
    gathers_by: int = 1
    slices: int = 1
    tiled: bool = False

    @property
    def ring(self) -> bool:
        """True if it is one whole dimension, or a ring through several loads no link twice.

        Programs for v5e 4x4 have collective matmuls without a wraparound.
        """
        return self.closes()


def group_of(
    axes: Axes, pod: Slice, placement: Placement, tiled: bool = False, spanned: int = 1
) -> DeviceGroup:
    """Return the group of a collective over `axes` under a placement.

    spanned: slices that the group spans; a group of several is no ring.
    """
    spans = tuple(span for axis in axes for span in placement.spans(axis))
    sizes, dims = dimension_sizes(spans), pod.topology.dims
    cuts_none = all(size == dims[dim] for dim, size in sizes.items())
    group = DeviceGroup(
        size=prod(span.size for span in spans),
        dimensions=len(sizes),
        whole=prod(sizes.values()) == pod.topology.chips,
        closes=partial(_is_ring, spans, pod.topology),
        bandwidth=2 * pod.chip.ici_bandwidth * _slowest_share(pod.chip, sizes),
        gathers_by=max(len(sizes), 1) if cuts_none and len(dims) == 3 else 1,
        slices=pod.num_slices,
        tiled=tiled,
    )
    if spanned == 1:
        return group
    bandwidth = pod.chip.dcn_bandwidth / pod.chip.devices
    return replace(group, size=group.size * spanned, closes=bool, bandwidth=bandwidth, gathers_by=1)


def places_of(pod: Slice, devices: int) -> Places:
    """Return how a group of so many devices of a slice may lie."""
    shapes = list(product(*map(divisors, pod.topology.dims)))
    found = {
        (sum(size > 1 for size in shape), prod(shape) == pod.topology.chips)
        for shape in shapes
        if devices in (prod(shape), prod(shape) * pod.chip.devices)
    }
    return tuple(sorted(found))


def _slowest_share(chip: Chip, dims: Iterable[int]) -> float:
    """Return the least share of its nominal bandwidth that ICI has along some dimensions."""
    shares = chip.ici_shares
    return min((shares[dim] for dim in dims if 0 <= dim < len(shares)), default=1.0)


def _is_ring(spans: tuple[Span, ...], topology: Topology) -> bool:
    sizes = dimension_sizes(spans)
    if any(span.dim == DIE for span in spans):
        return False
    if len(sizes) == 1:
        return all(size == topology.dims[dim] for dim, size in sizes.items())
    return bool(sizes) and is_ring(on_torus(spans), topology)

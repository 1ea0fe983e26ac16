"""Device groups of collectives, as far as the compiler's choices depend on them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from tpusim.hardware import DIE, Chip, Placement, Slice, Span, Topology
from tpusim.network import dimension_sizes, is_ring, on_torus
from tpusim.plan import Axes


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices of a collective.

    dimensions: torus dimensions that the group spans.
    whole: True if it spans the whole slice.
    ring: True if it is one whole dimension (programs for v5e 4x4 have rings without a wraparound).
    bandwidth: of a bidirectional ring, nominal, in B/s; across slices that of a device on DCN.
    gathers_by: dimensions that a gather uses side by side, as the compiler counts them: all those
        of a group that cuts none, on a torus of three, otherwise one.
    slices: slices that the program runs on.
    tiled: weights are sharded over all axes of the mesh, see `weights_are_tiled`.
    """

    size: int
    dimensions: int
    whole: bool
    ring: bool
    bandwidth: float
    gathers_by: int = 1
    slices: int = 1
    tiled: bool = False


def group_of(
    axes: Axes, pod: Slice, placement: Placement, tiled: bool = False, spanned: int = 1
) -> DeviceGroup:
    """Return the group of a collective over `axes` under a placement.

    spanned: slices that the group spans.

    It is a ring where it is one whole dimension (programs for v5e 4x4 have collective matmuls
    without a wraparound), and where a ring through several dimensions loads no link twice.
    """
    spans = tuple(span for axis in axes for span in placement.spans(axis))
    sizes, dims = dimension_sizes(spans), pod.topology.dims
    cuts_none = all(size == dims[dim] for dim, size in sizes.items())
    group = DeviceGroup(
        size=prod(span.size for span in spans),
        dimensions=len(sizes),
        whole=prod(sizes.values()) == pod.topology.chips,
        ring=all(span.dim != DIE for span in spans) and _is_ring(spans, sizes, pod.topology),
        bandwidth=2 * pod.chip.ici_bandwidth * _slowest_share(pod.chip, sizes),
        gathers_by=max(len(sizes), 1) if cuts_none and len(dims) == 3 else 1,
        slices=pod.num_slices,
        tiled=tiled,
    )
    if spanned == 1:
        return group
    bandwidth = pod.chip.dcn_bandwidth / pod.chip.devices
    return replace(group, size=group.size * spanned, ring=False, bandwidth=bandwidth, gathers_by=1)


def _slowest_share(chip: Chip, dims: Iterable[int]) -> float:
    """Return the least share of its nominal bandwidth that ICI has along some dimensions."""
    shares = chip.ici_shares
    return min((shares[dim] for dim in dims if 0 <= dim < len(shares)), default=1.0)


def _is_ring(spans: tuple[Span, ...], sizes: Mapping[int, int], topology: Topology) -> bool:
    if len(sizes) == 1:
        return all(size == topology.dims[dim] for dim, size in sizes.items())
    return bool(sizes) and is_ring(on_torus(spans), topology)

"""The device groups of collectives, as far as the lowering depends on where they lie."""

from collections.abc import Mapping
from math import prod

from tpusim.hardware import DIE, Placement, Slice, Span, Topology
from tpusim.network import Algorithm, dimension_sizes, on_torus, pattern
from tpusim.partition.layout import Axes
from tpusim.partition.lowering import Group
from tpusim.program import CollectiveKind

HALF = 0.5
"""What each link of a ring carries of a permute to both neighbours, where no other shares it."""


def group_of(axes: Axes, pod: Slice, placement: Placement) -> Group:
    """The group of a collective over `axes`, on its place of the torus.

    It is a ring where it is one whole dimension (programs for v5e 4x4 have collective matmuls
    without a wraparound), and where a ring through several loads no link twice.
    """
    spans = tuple(span for axis in axes for span in placement.spans(axis))
    sizes = dimension_sizes(spans)
    return Group(
        size=prod(span.size for span in spans),
        dimensions=len(sizes),
        whole=prod(sizes.values()) == pod.topology.chips,
        ring=all(span.dim != DIE for span in spans) and _is_ring(spans, sizes, pod.topology),
        bandwidth=2 * pod.chip.ici_bandwidth,
        slices=pod.num_slices,
    )


def _is_ring(spans: tuple[Span, ...], sizes: Mapping[int, int], topology: Topology) -> bool:
    if len(sizes) == 1:
        return all(size == topology.dims[dim] for dim, size in sizes.items())
    if not sizes:
        return False
    shifted = pattern(CollectiveKind.PERMUTE, Algorithm.NEIGHBOURS, on_torus(spans), topology)
    return max(load for _, load in shifted.links) == HALF

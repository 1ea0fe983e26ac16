"""The device groups of collectives, as far as the lowering depends on where they lie."""

from tpusim.hardware import DIE, Placement, Slice
from tpusim.partition.layout import Axes
from tpusim.partition.lowering import Group


def group_of(axes: Axes, pod: Slice, placement: Placement) -> Group:
    """The group of a collective over `axes`, on its place of the torus."""
    spans = tuple(span for axis in axes for span in placement.spans(axis))
    on_torus = [span for span in spans if span.dim != DIE]
    dims = pod.topology.dims
    size = 1
    for span in spans:
        size *= span.size
    one = on_torus[0] if len(on_torus) == 1 == len(spans) else None
    ring = one is not None and one.size == dims[one.dim]
    covered = 1
    for span in on_torus:
        covered *= span.size
    return Group(
        size=size,
        dimensions=len({span.dim for span in on_torus}),
        whole=covered == pod.topology.chips,
        ring=ring,
        bandwidth=2 * pod.chip.ici_bandwidth,
    )

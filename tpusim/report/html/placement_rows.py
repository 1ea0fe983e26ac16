"""The placement in words: for each mesh axis, which chips of the torus form a group."""

from math import prod
from typing import NamedTuple

from tpusim.hardware import DCN_PREFIX, DIE, Span, Topology
from tpusim.results import Result


class AxisRow(NamedTuple):
    """An axis of the mesh.

    where: its place on the torus.
    groups: how many groups its collectives run in, how they lie, and how to tell them apart.
    """

    axis: str
    size: int
    where: str
    groups: str


def axis_rows(result: Result) -> list[AxisRow]:
    """Return a row for each axis of the mesh that is larger than one."""
    written = result.placement.written
    rows = []
    for axis, size in result.program.axes:
        if size > 1:
            across = "across slices, over DCN" if axis.startswith(DCN_PREFIX) else "nowhere"
            where = ", ".join(written.get(axis, ())) or across
            rows.append(AxisRow(axis, size, where, _groups(axis, result)))
    return rows


def _groups(axis: str, result: Result) -> str:
    """Return the groups of an axis: those devices that are alike in the places of all others."""
    placement, topology = result.placement, result.pod.topology
    own = [span for span in dict(placement.axes).get(axis, ()) if span.size > 1]
    if not own:
        return ""
    size = prod(span.size for span in own)
    count = prod(span.size for _, spans in placement.axes for span in spans) // size
    lies = ", ".join(_lies(span, topology) for span in own)
    words = f"{count:,} group{'s' * (count != 1)} of {size:,}: {lies}"
    others = [each for name, of in placement.written.items() if name != axis for each in of]
    return f"{words}; one for each place on {', '.join(others)}" if others else words


def _lies(span: Span, topology: Topology) -> str:
    if span.dim == DIE:
        return "both devices of a chip"
    length = topology.dims[span.dim]
    if span.size == length:
        shape = "ring" if topology.wrap[span.dim] else "line"
        return f"a {shape} of {length} along {span}"
    if span.stride == 1:
        return f"{span.size} neighbours along {span}"
    return f"{span.size} chips along {span}, each {span.stride} from the next"

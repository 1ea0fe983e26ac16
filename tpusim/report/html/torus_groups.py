"""The placement as drawings: for each mesh axis, which chips of the torus form a group.

The torus is cut into planes, which stand side by side. A box is the chips of one group that are
neighbours in a plane; planes that are cut alike into the same groups are one picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import NamedTuple, TypeAlias

from tpusim.hardware import DIE, DIMENSION_NAMES, Span, Topology
from tpusim.results import Result

CHIP = 20
"""Side of a chip in a drawing, which a number of `CHIP_DIGITS` fits."""

CHIP_DIGITS = 3

MARGIN = 10
"""Space around a plane, into which the links that close a ring reach."""

TINTS = 4
"""Shades that the groups of an axis take in turn; numbers and edges tell them apart as well."""

MOST_BOXES = 700
"""Boxes drawn for an axis; the planes after them are cut alike into other groups."""

Spans: TypeAlias = Sequence[tuple[str, Span]]
"""Each span of the mesh, with its axis."""


class GroupBox(NamedTuple):
    """Chips of a group in a plane: where, how large, the group's number and its tint."""

    x: int
    y: int
    width: int
    height: int
    text: str
    tint: int
    first: bool


class GroupPlane(NamedTuple):
    """A plane of the torus, or several that are alike.

    links: path of the links between the chips of the first group.
    """

    title: str
    boxes: tuple[GroupBox, ...]
    links: str


@dataclass(frozen=True, slots=True)
class AxisGroups:
    """The groups of a mesh axis; width and height are those of a plane's drawing.

    about: how many groups, how they lie, and what is not drawn.
    planes: none where the axis lies within the chips.
    """

    axis: str
    about: str
    width: int
    height: int
    planes: tuple[GroupPlane, ...]


class _Frame(NamedTuple):
    """The dimensions of the planes: across, down, and that of their number (-1 for one plane)."""

    across: int
    down: int
    through: int

    @classmethod
    def of(cls, topology: Topology) -> "_Frame":
        """Number planes by the shortest dimension of three; the last dimension is across.

        So it is in the heat map of the links.
        """
        order = sorted(range(len(topology.dims)), key=lambda dim: topology.dims[dim])
        through = order[0] if len(order) > 2 else -1
        down, across = sorted(order[-2:])
        return cls(across, down, through)


def axis_groups(result: Result) -> list[AxisGroups]:
    """Return the groups of each mesh axis that is on the torus."""
    placement, topology = result.placement, result.pod.topology
    spans = [(axis, span) for axis, spans in placement.axes for span in spans]
    frame = _Frame.of(topology)
    return [
        _groups(axis, spans, topology, frame)
        for axis, own in placement.axes
        if own and prod(span.size for span in own) > 1
    ]


def _groups(axis: str, spans: Spans, topology: Topology, frame: _Frame) -> AxisGroups:
    own = [span for name, span in spans if name == axis]
    others = [span for name, span in spans if name != axis]
    wide, high = topology.dims[frame.across], topology.dims[frame.down]
    size = (wide * CHIP + 2 * MARGIN, high * CHIP + 2 * MARGIN)
    chips = [span for span in own if span.dim != DIE]
    if not chips:
        return AxisGroups(axis, "the two devices of each chip", *size, ())
    planes: list[GroupPlane] = []
    about, drawn = _about(own, others, topology, frame), 0
    for title, place in _alike(chips, others, topology, frame):
        boxes = tuple(_boxes(others, place, topology, frame))
        if planes and drawn + len(boxes) > MOST_BOXES:
            about += "; the other planes are cut alike, into the groups after these"
            break
        drawn += len(boxes)
        holds = all(
            place // span.stride % span.size == 0 for span in others if span.dim == frame.through
        )
        links = _links(chips, others, topology, frame) if holds else ""
        planes.append(GroupPlane(title, boxes, links))
    return AxisGroups(axis, about, *size, tuple(planes))


def _about(own: Sequence[Span], others: Sequence[Span], topology: Topology, frame: _Frame) -> str:
    size, count = prod(span.size for span in own), prod(span.size for span in others)
    lies = ", ".join(_lies(span, topology) for span in own)
    words = f"{count:,} group{'s' * (count != 1)} of {size:,}, {lies}"
    through = [span for span in own if span.dim == frame.through]
    if through:
        words += "; a group goes on through the planes"
    if any(span.dim == DIE for span in others):
        words += (
            "; the number is that of a chip's first device, the second is in a group of its own"
        )
    return words


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


def _alike(
    own: Sequence[Span], others: Sequence[Span], topology: Topology, frame: _Frame
) -> Iterator[tuple[str, int]]:
    """Yield planes that hold the same groups, in words, and the place of the first of them."""
    if frame.through < 0:
        yield f"{_name(frame.down)} down, {_name(frame.across)} across", 0
        return
    other = [span for span in others if span.dim == frame.through]
    length = topology.dims[frame.through]
    for _, group in groupby(range(length), key=lambda place: _digits(other, place)):
        places = list(group)
        last = f" to {places[-1]}" if len(places) > 1 else ""
        across = f"{_name(frame.down)} down, {_name(frame.across)} across"
        yield f"{_name(frame.through)} = {places[0]}{last}: {across}", places[0]


def _name(dim: int) -> str:
    return DIMENSION_NAMES[dim]


def _digits(spans: Sequence[Span], place: int) -> tuple[int, ...]:
    return tuple(place // span.stride % span.size for span in spans)


def _boxes(
    others: Sequence[Span], through: int, topology: Topology, frame: _Frame
) -> Iterator[GroupBox]:
    """Yield the boxes of a plane: runs of chips across, joined with those below them."""
    for top, high in _runs(others, frame.down, topology):
        for left, wide in _runs(others, frame.across, topology):
            at = {frame.across: left, frame.down: top, frame.through: through}
            number, tint = _number(others, at)
            yield GroupBox(
                MARGIN + left * CHIP,
                MARGIN + top * CHIP,
                wide * CHIP,
                high * CHIP,
                str(number) if len(str(number)) <= CHIP_DIGITS * wide else "",
                tint,
                number == 0,
            )


def _runs(others: Sequence[Span], dim: int, topology: Topology) -> Iterator[tuple[int, int]]:
    """Yield start and length of each run of neighbours along a dimension that are of one group."""
    spans = [span for span in others if span.dim == dim]
    for _, group in groupby(range(topology.dims[dim]), key=lambda place: _digits(spans, place)):
        places = list(group)
        yield places[0], len(places)


def _number(others: Sequence[Span], at: Mapping[int, int]) -> tuple[int, int]:
    """Return the number of a chip's group, and its tint: that of a neighbour is another one."""
    number = tint = 0
    for weight, span in enumerate(others, 1):
        digit = at.get(span.dim, 0) // span.stride % span.size
        number = number * span.size + digit
        tint += digit * (1 + weight % 2)
    return number, tint % TINTS


def _links(own: Sequence[Span], others: Sequence[Span], topology: Topology, frame: _Frame) -> str:
    """Return the path of the links of the first group; those of a ring reach over the edges."""
    across, down = (_lines(own, others, dim, topology) for dim in (frame.across, frame.down))
    parts = []
    for row in _members(others, frame.down, topology):
        parts += [f"M{_at(a)} {_at(row)}H{_at(b)}" for a, b in across]
    for column in _members(others, frame.across, topology):
        parts += [f"M{_at(column)} {_at(a)}V{_at(b)}" for a, b in down]
    return "".join(parts)


def _at(place: float) -> str:
    return f"{MARGIN + (place + 0.5) * CHIP:g}"


def _members(others: Sequence[Span], dim: int, topology: Topology) -> list[int]:
    """Return the places of the first group along a dimension."""
    spans = [span for span in others if span.dim == dim]
    return [place for place in range(topology.dims[dim]) if not any(_digits(spans, place))]


def _lines(
    own: Sequence[Span], others: Sequence[Span], dim: int, topology: Topology
) -> list[tuple[int, int]]:
    """Return where the links of the first group begin and end along a dimension."""
    if not any(span.dim == dim for span in own):
        return []
    places, length = _members(others, dim, topology), topology.dims[dim]
    closes = places[0] + length - places[-1] == places[1] - places[0]
    return [(-1, length)] if closes and topology.wrap[dim] else [(places[0], places[-1])]

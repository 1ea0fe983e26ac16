"""Positions of the labels of points such that they do not overlap."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLUSTER_DISTANCE = 7.0
LABEL_LETTER = 5.2
LOWER_SHIFTS = (-23, -34, -45, -56)
SIDE_SHIFTS = (8, 24)
LINE_BOXES = 12
"""Typographic points: the distance below which two points share a label, the width of a letter, and
the shifts of texts with no free position nearer, down and to the sides. Boxes that stand for the
line from a point to its text."""

MOST_STEPS = 20_000
"""Positions that are tried at most."""


def axes_positions(ax: "Axes", points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return positions in typographic points from the lower left of the axes, as they are laid out.

    Everything but the labels has to be drawn before.

    points: (x, y) in data coordinates.
    """
    figure = ax.figure.get_figure(root=True)
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
    inches = ax.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    wide, high = 72 * inches.width, 72 * inches.height
    fractions = (ax.transData + ax.transAxes.inverted()).transform(points)
    return [(float(x) * wide, float(y) * high) for x, y in fractions]


def cluster_points(where: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Return the numbers (from 1) of points, grouped where they are too close for own labels."""
    groups: list[list[int]] = []
    for number, (x, y) in enumerate(where, 1):
        for group in groups:
            near_x, near_y = where[group[0] - 1]
            if abs(x - near_x) < CLUSTER_DISTANCE and abs(y - near_y) < CLUSTER_DISTANCE:
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


LabelBox: TypeAlias = tuple[float, float, float, float]
"""Left, lower, right and upper edge in typographic points."""


@dataclass(frozen=True, slots=True)
class _Position:
    """A shift of a text's centre from its point, and all that the text and the line to it cover."""

    shift: tuple[float, float]
    boxes: tuple[LabelBox, ...]

    def is_apart(self, others: Iterable[LabelBox]) -> bool:
        return all(_apart(box, other) for other in others for box in self.boxes)


def place_labels(
    where: Sequence[tuple[float, float]], edge: float
) -> list[tuple[int, str, tuple[float, float]]]:
    """Return the first point of each cluster, its text and the shift of the text's centre.

    The text is below, right or left of the point, or lower, with a line to it, where it touches
    neither a point, another text nor its line, and does not cross `edge` to the right or the axis
    below. It is never above, where the roof is. Where no choice for all is free, texts that have
    none are below their points.
    """
    groups = cluster_points(where)
    texts = [number_ranges(group) for group in groups]
    choices: list[list[_Position]] = []
    for group, text in zip(groups, texts, strict=True):
        others = [point for number, point in enumerate(where, 1) if number not in group]
        points = [(x - 4, y - 4, x + 4, y + 4) for x, y in others]
        every = list(_positions(*where[group[0] - 1], text))
        free = [each for each in every if _is_inside(each, edge) and each.is_apart(points)]
        choices.append(free or every[:1])
    steps = iter(range(MOST_STEPS))
    chosen = _choose(choices, (), steps) or [free[0] for free in choices]
    first = (group[0] for group in groups)
    return [
        (number, text, position.shift)
        for number, text, position in zip(first, texts, chosen, strict=True)
    ]


def _positions(x: float, y: float, text: str) -> Iterator[_Position]:
    """Yield the positions of a text, the preferred first."""
    wide = LABEL_LETTER * len(text) / 2
    sides = [side * (wide + far) for far in SIDE_SHIFTS for side in (1, -1)]
    near = [(0.0, -12.0), *((side, 0.0) for side in sides[:2])]
    for shift in (*near, *((a, b) for b in LOWER_SHIFTS for a in (0.0, *sides))):
        (a, b) = (x + shift[0], y + shift[1])
        line = () if shift in near else _line((x, y), shift)
        yield _Position(shift, ((a - wide, b - 5, a + wide, b + 5), *line))


def _line(point: tuple[float, float], shift: tuple[float, float]) -> Iterator[LabelBox]:
    """Yield boxes along the line from a point to its label's centre."""
    for at in range(LINE_BOXES):
        x, y = (start + way * at / LINE_BOXES for start, way in zip(point, shift, strict=True))
        yield x - 1, y - 1, x + 1, y + 1


def _is_inside(position: _Position, edge: float) -> bool:
    return position.boxes[0][1] >= 0 and position.boxes[0][2] <= edge


def _choose(
    choices: Sequence[Sequence[_Position]], taken: tuple[LabelBox, ...], steps: Iterator[int]
) -> list[_Position] | None:
    """Return one position of each text such that none touches another; None if none was found."""
    if not choices:
        return []
    for position in choices[0]:
        if next(steps, None) is None:
            return None
        if position.is_apart(taken):
            rest = _choose(choices[1:], (*taken, *position.boxes), steps)
            if rest is not None:
                return [position, *rest]
    return None


def _apart(one: LabelBox, other: LabelBox) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def number_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in words, consecutive ones as a range.

    >>> number_ranges([1, 2, 3, 5, 7, 8])
    '1–3, 5, 7, 8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = (
        [f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(number) for number in run] for run in runs
    )
    return ", ".join(part for each in parts for part in each)

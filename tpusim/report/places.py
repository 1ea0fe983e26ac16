"""Labels of points that do not overlap."""

from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLOSE = 7.0
LETTER = 5.2
LOWER = (-23, -34, -45, -56)
NARROWER = 0.72
"""Typographic points: how close two points are labelled as one, the width of a letter, and where a
text stands that has no place nearer; and a share of the width of the axes."""


def places(ax: "Axes", points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where (x, y) of logarithmic axes stand on `ax`, in typographic points from its lower left.

    Before the layout is known, the axes are taken as narrower than they may become.
    """
    box = ax.get_position()
    wide, high = (72 * side for side in ax.figure.get_size_inches())  # type: ignore[union-attr]
    left, right = (log10(edge) for edge in ax.get_xlim())
    low, top = (log10(edge) for edge in ax.get_ylim())
    return [
        (
            (log10(x) - left) / (right - left) * box.width * wide * NARROWER,
            (log10(y) - low) / (top - low) * box.height * high,
        )
        for x, y in points
    ]


def clusters(where: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Numbers (from 1) of the points that stand too close together to be labelled one by one."""
    groups: list[list[int]] = []
    for number, (x, y) in enumerate(where, 1):
        for group in groups:
            near_x, near_y = where[group[0] - 1]
            if abs(x - near_x) < CLOSE and abs(y - near_y) < CLOSE:
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


Box: TypeAlias = tuple[float, float, float, float]


def _apart(one: Box, other: Box) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def labels(
    where: Sequence[tuple[float, float]], edge: float
) -> list[tuple[int, str, tuple[float, float]]]:
    """For each cluster its first point, its text and the text's centre relative to that point.

    The text stands below, right or left of the point, or lower: the first place where it touches
    neither a point nor another text, nor passes `edge` to the right or the axis below. Not above,
    where the roof is.
    """
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in where]
    found: list[tuple[int, str, tuple[float, float]]] = []
    for group in clusters(where):
        text, (x, y) = ranges(group), where[group[0] - 1]
        wide = LETTER * len(text) / 2
        beside = [(wide + 8, 0), (-wide - 8, 0)]
        lower = [(a, b) for b in LOWER for a in (0, wide + 8, -wide - 8)]
        shifts: list[tuple[float, float]] = [(0, -12), *beside, *lower]
        boxes = [(x + a - wide, y + b - 5, x + a + wide, y + b + 5) for a, b in shifts]
        free = (
            at for at, box in enumerate(boxes)
            if box[1] >= 0 and box[2] <= edge and all(_apart(box, other) for other in taken)
        )  # fmt: skip
        chosen = next(free, 0)
        taken.append(boxes[chosen])
        found.append((group[0], text, shifts[chosen]))
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow one another as a range.

    >>> ranges([1, 2, 3, 5, 7, 8])
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

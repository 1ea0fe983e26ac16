"""Positions of the labels of points such that they do not overlap."""

from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLUSTER_DISTANCE = 7.0
LABEL_LETTER = 5.2
LOWER_SHIFTS = (-23, -34, -45, -56)
NARROWED_WIDTH = 0.72
"""Typographic points: the distance below which two points share a label, the width of a letter, and
the shifts of texts with no free position nearer; and a fraction of the width of the axes."""


def axes_positions(ax: "Axes", points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return positions on logarithmic axes in typographic points from their lower left.

    Before the layout is known, the axes are assumed narrower than they may become.

    points: (x, y) in data coordinates.
    """
    box = ax.get_position()
    wide, high = (72 * side for side in ax.figure.get_size_inches())  # type: ignore[union-attr]
    left, right = (log10(edge) for edge in ax.get_xlim())
    low, top = (log10(edge) for edge in ax.get_ylim())
    return [
        (
            (log10(x) - left) / (right - left) * box.width * wide * NARROWED_WIDTH,
            (log10(y) - low) / (top - low) * box.height * high,
        )
        for x, y in points
    ]


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


def _apart(one: LabelBox, other: LabelBox) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def place_labels(
    where: Sequence[tuple[float, float]], edge: float
) -> list[tuple[int, str, tuple[float, float]]]:
    """Return the first point of each cluster, its text and the shift of the text's centre.

    The text is below, right or left of the point, or lower: in the first position where it touches
    neither a point nor another text, and does not cross `edge` to the right or the axis below. It
    is never above, where the roof is.
    """
    taken: list[LabelBox] = [(x - 4, y - 4, x + 4, y + 4) for x, y in where]
    found: list[tuple[int, str, tuple[float, float]]] = []
    for group in cluster_points(where):
        text, (x, y) = number_ranges(group), where[group[0] - 1]
        wide = LABEL_LETTER * len(text) / 2
        beside = [(wide + 8, 0), (-wide - 8, 0)]
        lower = [(a, b) for b in LOWER_SHIFTS for a in (0, wide + 8, -wide - 8)]
        shifts: list[tuple[float, float]] = [(0, -12), *beside, *lower]
        boxes = [(x + a - wide, y + b - 5, x + a + wide, y + b + 5) for a, b in shifts]
        free = (
            at
            for at, box in enumerate(boxes)
            if box[1] >= 0 and box[2] <= edge and all(_apart(box, other) for other in taken)
        )
        chosen = next(free, 0)
        taken.append(boxes[chosen])
        found.append((group[0], text, shifts[chosen]))
    return found


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

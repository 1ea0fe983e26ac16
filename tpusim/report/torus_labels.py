"""The numbers on a panel of the torus heat map: as few as say all, and only where there is room."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product
from math import isnan

import numpy as np

from tpusim.network.paths import Loads
from tpusim.report.canvas import DIGIT

NUMBERED = 64
"""Cells of a panel that are numbered one by one, at most."""

HIGH, APART = 0.8, 1.5
"""The height of a number over the size of the font, and points between two."""


@dataclass(frozen=True, slots=True)
class Label:
    """A number: its place in cells down and across, the share that it says, and if it stands up."""

    row: float
    column: float
    text: str
    share: float
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Points that a cell has down and across, and the size of the font."""

    down: float
    across: float
    font: float

    def lies(self, text: str, cells: int) -> bool:
        """Whether a number has room across so many cells."""
        return DIGIT * self.font * len(text) + APART <= cells * self.across

    def line(self, cells: int, each: float) -> bool:
        """Whether cells of `each` points are as many as a line of text is high."""
        return HIGH * self.font + APART <= cells * each


def labels(shares: Loads, room: Room) -> list[Label]:
    """The numbers of a panel, [row, column]: one for all neighbours that are alike.

    Rows, or columns, that are the same all along have one number each; else each cell has its own.
    Alike is what is the same to a tenth of a percent, as no number tells it apart.
    """
    shares = _as_read(shares)
    if (rows := _along(shares, 1)) is not None:
        return list(_of_rows(rows, _middle(shares, 0), room))
    if (columns := _along(shares, 0)) is not None:
        return list(_of_columns(columns, _middle(shares, 1), room))
    places = product(*map(range, shares.shape))
    cells = [_label(row + 0.5, column + 0.5, shares[row, column])
             for row, column in places if not isnan(shares[row, column])]  # fmt: skip
    fits = room.line(1, room.down) and all(room.lies(cell.text, 1) for cell in cells)
    return cells if fits and shares.size <= NUMBERED else []


def _as_read(shares: Loads) -> Loads:
    """Each share as the largest of those that are alike; nothing and next to nothing are not."""
    tenths = np.where(shares == 0, -1.0, np.round(shares, 3))
    read = shares.copy()
    for tenth in np.unique(tenths[~np.isnan(tenths)]):
        read[tenths == tenth] = shares[tenths == tenth].max()
    return read


def _along(shares: Loads, axis: int) -> Loads | None:
    """The share of each line along a dimension, where all of its links are alike in each."""
    most: Loads = np.fmax.reduce(shares, axis=axis)
    return most if np.array_equal(np.fmin.reduce(shares, axis=axis), most, equal_nan=True) else None


def _of_rows(rows: Loads, middle: float, room: Room) -> Iterator[Label]:
    runs = list(_runs(rows))
    for start, stop, share in runs:
        if room.line(stop - start, room.down):
            yield _label((start + stop) / 2, middle, share, alone=len(runs) == 1)


def _of_columns(columns: Loads, middle: float, room: Room) -> Iterator[Label]:
    """Where a number is wider than its columns it stands up."""
    for start, stop, share in _runs(columns):
        label = _label(middle, (start + stop) / 2, share)
        upright = not room.lies(label.text, stop - start)
        if not upright or room.line(stop - start, room.across):
            yield Label(label.row, label.column, label.text, share, upright)


def _runs(line: Loads) -> Iterator[tuple[int, int, float]]:
    """Neighbours that are alike: the first, the one behind the last, and their share."""
    start = 0
    for share, alike in groupby(line.tolist()):
        stop = start + len(list(alike))
        if not isnan(share):
            yield start, stop, share
        start = stop


def _middle(shares: Loads, axis: int) -> float:
    """The middle of the places beside a dimension that have links."""
    places = np.flatnonzero(~np.isnan(np.fmax.reduce(shares, axis=axis)))
    return float(places[0] + places[-1] + 1) / 2


def _label(row: float, column: float, share: float, alone: bool = False) -> Label:
    """In percent, with two digits; one that stands for all has its sign."""
    digits = 0 if share == 0 or (share >= 0.0995 and not alone) else 1
    return Label(row, column, f"{100 * share:.{digits}f}{'%' * alone}", share)

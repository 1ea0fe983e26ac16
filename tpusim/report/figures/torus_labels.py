"""The numbers on a panel of the torus heat map: as few as say all, and only where they fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product
from math import isnan

import numpy as np

from tpusim.network.paths import Loads
from tpusim.report.figures.palette import DIGIT

MOST_NUMBERED = 64
"""Cells of a panel that are numbered individually, at most."""

NUMBER_HEIGHT, NUMBER_GAP = 0.8, 1.5
"""The height of a number relative to the font size, and points between two numbers."""


@dataclass(frozen=True, slots=True)
class TorusLabel:
    """A number for a share: its position in cells down and across, and True if it is upright."""

    row: float
    column: float
    text: str
    share: float
    upright: bool = False


@dataclass(frozen=True, slots=True)
class LabelSpace:
    """The points of a cell down and across, and the font size."""

    down: float
    across: float
    font: float

    def fits_across(self, text: str, cells: int) -> bool:
        """Return True if a number fits across a number of cells."""
        return DIGIT * self.font * len(text) + NUMBER_GAP <= cells * self.across

    def fits_line(self, cells: int, each: float) -> bool:
        """Return True if a number of cells, `each` points high, hold a line of text."""
        return NUMBER_HEIGHT * self.font + NUMBER_GAP <= cells * each


def panel_labels(shares: Loads, space: LabelSpace) -> list[TorusLabel]:
    """Return the numbers of a panel, one for all neighbours that are equal.

    Rows, or columns, that are constant have one number each; otherwise each cell has its own.
    Shares are equal to a tenth of a percent, as numbers do not show more.

    shares: [row, column].
    """
    shares = _as_shown(shares)
    if (rows := _along(shares, 1)) is not None:
        return list(_of_rows(rows, _middle(shares, 0), space))
    if (columns := _along(shares, 0)) is not None:
        return list(_of_columns(columns, _middle(shares, 1), space))
    cells = [
        _label(row + 0.5, column + 0.5, shares[row, column])
        for row, column in product(*map(range, shares.shape))
        if not isnan(shares[row, column])
    ]
    fits = space.fits_line(1, space.down) and all(space.fits_across(cell.text, 1) for cell in cells)
    return cells if fits and shares.size <= MOST_NUMBERED else []


def in_tenths(shares: Loads) -> Loads:
    """Return shares to a tenth of a percent; zero is -1, as next to zero is not equal to it."""
    tenths: Loads = np.where(shares == 0, -1.0, np.round(shares, 3))
    return tenths


def _as_shown(shares: Loads) -> Loads:
    """Return each share as the largest of its equals."""
    tenths = in_tenths(shares)
    read = shares.copy()
    for tenth in np.unique(tenths[~np.isnan(tenths)]):
        read[tenths == tenth] = shares[tenths == tenth].max()
    return read


def _along(shares: Loads, axis: int) -> Loads | None:
    """Return the share of each line along an axis of the panel; None if one is not constant."""
    most: Loads = np.fmax.reduce(shares, axis=axis)
    return most if np.array_equal(np.fmin.reduce(shares, axis=axis), most, equal_nan=True) else None


def _of_rows(rows: Loads, middle: float, space: LabelSpace) -> Iterator[TorusLabel]:
    runs = list(_runs(rows))
    for start, stop, share in runs:
        if space.fits_line(stop - start, space.down):
            yield _label((start + stop) / 2, middle, share, alone=len(runs) == 1)


def _of_columns(columns: Loads, middle: float, space: LabelSpace) -> Iterator[TorusLabel]:
    """Yield the numbers of columns, upright where they are wider than their columns."""
    for start, stop, share in _runs(columns):
        label = _label(middle, (start + stop) / 2, share)
        upright = not space.fits_across(label.text, stop - start)
        if not upright or space.fits_line(stop - start, space.across):
            yield TorusLabel(label.row, label.column, label.text, share, upright)


def _runs(line: Loads) -> Iterator[tuple[int, int, float]]:
    """Yield neighbours that are equal: the first, the one after the last, and their share."""
    start = 0
    for share, alike in groupby(line.tolist()):
        stop = start + len(list(alike))
        if not isnan(share):
            yield start, stop, share
        start = stop


def _middle(shares: Loads, axis: int) -> float:
    """Return the middle of the rows (axis 1) or columns (axis 0) that have links."""
    places = np.flatnonzero(~np.isnan(np.fmax.reduce(shares, axis=axis)))
    return float(places[0] + places[-1] + 1) / 2


def _label(row: float, column: float, share: float, alone: bool = False) -> TorusLabel:
    """Return a number in percent, to a tenth; one that stands for all has the sign."""
    digits = 0 if share == 0 else 1
    return TorusLabel(row, column, f"{100 * share:.{digits}f}{'%' * alone}", share)

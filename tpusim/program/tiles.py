"""Tiles of memory: how many elements the lanes and sublanes of an array take."""

import numpy as np

from tpusim.program.grouped_matmul import LANES, SUBLANES
from tpusim.program.numeric import Number, round_up, smallest


def sublane_tiles(count: Number) -> Number:
    """Return a dimension in sublanes as it is stored: 2, 4 or whole multiples of 8.

    >>> [sublane_tiles(count) for count in (1, 3, 12, 16)]
    [2, 4, 16, 16]
    """
    few = 2 + 2 * at_least(count, 3)
    return few + at_least(count, 5) * (round_up(count, SUBLANES) - few)


def at_least(count: Number, bound: int) -> Number:
    """Return 1 where a count is the bound or more, else 0.

    >>> at_least(3, 4), at_least(4, 4)
    (0, 1)
    """
    if isinstance(count, np.ndarray):
        return (count >= bound).astype(np.float64)
    return int(count >= bound)


def matrix_elements(rows: Number, columns: Number) -> Number:
    """Return the elements of memory for a matrix, the side in the lanes that takes less.

    >>> matrix_elements(197, 64), matrix_elements(64, 64), matrix_elements(512, 64)
    (16384, 8192, 32768)
    """
    return smallest(
        round_up(rows, LANES) * sublane_tiles(columns),
        round_up(columns, LANES) * sublane_tiles(rows),
    )


def stored_elements(batch: Number, channels: Number) -> Number:
    """Return the elements of memory for one position of an activation: lanes x sublanes.

    The lanes hold the channels or the batch, whichever takes less. A batch of less than a tile has
    positions beside it in the sublanes, and wastes none.
    """
    deep = batch + at_least(batch, SUBLANES) * (round_up(batch, SUBLANES) - batch)
    return smallest(
        round_up(channels, LANES) * deep, round_up(batch, LANES) * sublane_tiles(channels)
    )

"""Memory tiles whose elements change row or lane: what only the cross-lane unit can do.

An array lies in memory in tiles, such as 8 rows of 128 lanes, and a vector register holds one tile
at a time. Copies that keep the two minor dimensions together move whole tiles. All else passes each
tile through the cross-lane unit: transposes, reshapes of minor dimensions, cuts and joins within a
tile, sums over lanes, and broadcasts over them.

The weights are those of a transpose of lanes, from 40 relayouts and fusions on 7x (see
`experiments/operations`): 2.6 to 3.5 cycles a tile over lanes, 1.6 to 2.6 over rows, and 0.3 to 1.7
for whole tiles.
"""

import re
from collections.abc import Sequence
from math import ceil, prod

from tpusim.compiler.hlo.module import Instruction
from tpusim.compiler.hlo.shapes import HBM_SPACE, Shape, integers

LANES, ROWS = 128, 8
ROWS_WEIGHT = 0.75
"""Cost of a tile whose rows are rearranged, in tiles whose lanes are."""
MOVED_WEIGHT = 0.33
"""Cost of a tile that is moved as a whole."""
SPREAD_WEIGHT = 2.5
"""Cost of a tile whose rows are each one number, of an array that has them along its lanes."""

_DIMENSIONS = re.compile(r"(?:^|[ ,])dimensions=\{([\d,]*)\}")
_STARTS = re.compile(r"(?:\[|padding=|(?<=\d)x)(-?\d+)(?=[:_])")
"""Of each dimension, in `slice={[0:8], [64:128]}` or `padding=0_0x64_0`."""


def tile_count(shape: Shape) -> float:
    """Return the tiles of an array; those without a layout have whole registers as tiles."""
    tile = prod(shape.tiles[0]) if shape.tiles else ROWS * LANES
    return shape.padded_elements / tile


def crossing_tiles(instruction: Instruction, operands: Sequence[Instruction]) -> float:
    """Return the tiles of an instruction that change lanes or rows, weighted; 0 for most opcodes.

    Tiles that a copy reads in HBM arrive in any order, so that only those of the result count.
    """
    shapes = [shape for each in operands[:1] for shape in each.arrays]
    if not shapes or not shapes[0].dims or not instruction.arrays or not instruction.arrays[0].dims:
        return 0.0
    given, made = shapes[0], instruction.arrays[0]
    op, dims = instruction.opcode, _dimensions(instruction)
    finest = max(tile_count(given), tile_count(made))
    if op in ("copy", "transpose", "reshape"):
        arrived = op == "copy" and given.space == HBM_SPACE
        return _change(op, given, made, dims) * (tile_count(made) if arrived else finest)
    if op in ("slice", "pad") and _starts_within_tile(instruction, given, made):
        return tile_count(made)
    if op == "reduce" and len(made.dims) > 1 and _rows(given) != _rows(made):
        return ROWS_WEIGHT * finest
    if op == "reduce" and (lanes := _order(given)[0]) in dims:
        return tile_count(given) / ceil(given.dims[lanes] / LANES)
    return _spread(made, dims) if op == "broadcast" else 0.0


def _spread(made: Shape, dims: Sequence[int]) -> float:
    """Return the weighted tiles of a broadcast over lanes, or over the rows of a tile.

    Numbers that lie along lanes have to be turned into rows first, and then spread; a row is spread
    while it is loaded. Of tiles that are alike one is made.
    """
    lanes, rows = (*_longest(made), -1, -1)[:2]
    extents = {lanes: LANES, rows: _rows(made)}
    known = [dim for dim in dims if dim < len(made.dims)]
    unlike = prod(ceil(made.dims[dim] / extents.get(dim, 1)) for dim in known)
    if lanes not in dims:
        return SPREAD_WEIGHT * unlike
    return 0.0 if rows in dims or rows < 0 else MOVED_WEIGHT * unlike


def _dimensions(instruction: Instruction) -> tuple[int, ...]:
    found = _DIMENSIONS.search(instruction.attributes)
    return integers(found[1]) if found else ()


def _order(shape: Shape) -> tuple[int, ...]:
    return shape.order or tuple(range(len(shape.dims)))[::-1]


def _rows(shape: Shape) -> int:
    """Return the rows of a tile; all that fill registers are alike."""
    tile = shape.tiles[0] if shape.tiles else ()
    return min(tile[-2], ROWS) if len(tile) > 1 else ROWS


def _change(op: str, given: Shape, made: Shape, dims: Sequence[int]) -> float:
    """Return the weight of a rearrangement: of lanes, of rows, or 0 if tiles stay whole.

    A reshape keeps tiles if the lanes are as many and the rows fill whole tiles, cut or joined.
    """
    before, after = _longest(given), _longest(made)
    if op == "reshape":
        sizes = [given.dims[dim] for dim in before], [made.dims[dim] for dim in after]
        whole = all(len(each) > 1 and each[1] % _rows(made) == 0 for each in sizes)
        kept = sizes[0] == sizes[1] or (sizes[0][:1] == sizes[1][:1] and whole)
    else:
        named = [dims[dim] for dim in after] if op == "transpose" and dims else after
        if before[:1] != named[:1]:
            return 1.0
        kept = before == named
    return 0.0 if kept and _rows(given) == _rows(made) else ROWS_WEIGHT


def _longest(shape: Shape) -> list[int]:
    """Return the dimensions of lanes and of rows, without those of size 1."""
    return [dim for dim in _order(shape) if shape.dims[dim] > 1][:2]


def _starts_within_tile(instruction: Instruction, given: Shape, made: Shape) -> bool:
    """Return True if lanes are cut or padded other than from the start of a tile."""
    lanes = _order(made)[0]
    if len(given.dims) != len(made.dims) or given.dims[lanes] == made.dims[lanes]:
        return False
    starts = [int(start) for start in _STARTS.findall(instruction.attributes)]
    return len(starts) > lanes and starts[lanes] % LANES != 0

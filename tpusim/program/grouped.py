"""Products of groups of rows, each with its own matrix, as one kernel in tiles.

The kernel is megablox (jax 0.10.2, `jax/experimental/pallas/ops/tpu/megablox/gmm.py`: `gmm`, and
`tgmm` for weight gradients), with MaxText's tiles where nobody tunes them (its base.yml,
`tile_batch_seq`, `tile_embed_dim` and `tile_mlp_dim`).
"""

from tpusim.program.numeric import round_up, smallest
from tpusim.program.work import Matmul, Number

ROW_TILE = 512
SIDE_TILE = 1024
SUBLANES = 8


def rows_worked(groups: Number, rows: Number) -> Number:
    """Rows that the kernel works on, for groups of `rows` rows each on average.

    Groups follow one another in tiles of t rows, and a tile that several share is computed for each
    of them: `(ceil(groups rows / t) + groups - 1) t` where no group ends with its tile
    (`make_group_metadata`: at most `m // tm + num_groups - 1` tiles). Where all groups together are
    less than a tile, the tile is as small.
    """
    whole = groups * rows
    tile = _row_tile(whole)
    return round_up(whole, tile) + (groups - 1) * tile


def side_worked(size: Number) -> Number:
    """A side of the matrices, rounded up to whole tiles: 2048 for a width of 1536.

    What the last tile lacks is masked, and multiplied (`mask_k_rem`).
    """
    return round_up(size, _side_tile(size))


def as_worked(work: Matmul) -> tuple[Number, Number, Number, Number]:
    """batch, m, k, n of the one product that takes the array as long as the kernel does."""
    if work.ragged == "m":
        return 1, rows_worked(work.batch, work.m), side_worked(work.k), side_worked(work.n)
    if work.ragged == "k":
        return 1, side_worked(work.m), rows_worked(work.batch, work.k), side_worked(work.n)
    return work.batch, work.m, work.k, work.n


def bytes_read(
    batch: Number, m: Number, k: Number, n: Number, ragged: str, item: float
) -> Number:  # fmt: skip
    """Bytes of the operands that pass from HBM, each as often as its tiles are read.

    `gmm` reads the rows for each tile of columns, and a group's matrix for each tile of rows:
    `item (rows k tiles(n) + tiles(rows) k n)`; `tgmm` reads both operands' rows for each tile of
    the other's columns (their `bytes_accessed`).
    """
    if ragged == "m":
        whole = batch * m
        visits = rows_worked(batch, m) / _row_tile(whole)
        return item * k * (whole * _tiles(n) + visits * n)
    return item * batch * k * (m * _tiles(n) + n * _tiles(m))


def _tiles(size: Number) -> Number:
    return side_worked(size) / _side_tile(size)


def _row_tile(rows: Number) -> Number:
    return smallest(ROW_TILE, round_up(rows, SUBLANES))


def _side_tile(size: Number) -> Number:
    return smallest(SIDE_TILE, size)

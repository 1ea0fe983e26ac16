"""Grouped matmuls: groups of rows, each with its own matrix, as one kernel in tiles.

The kernel is megablox (jax 0.10.2, `jax/experimental/pallas/ops/tpu/megablox/gmm.py`: `gmm`, and
`tgmm` for weight gradients), with MaxText's default tiles (its base.yml,
`tile_batch_seq`, `tile_embed_dim` and `tile_mlp_dim`).
"""

from tpusim.program.numeric import Number, round_up, smallest
from tpusim.program.work import MatmulWork

ROW_TILE = 512
SIDE_TILE = 1024
SUBLANES = 8


def kernel_rows(groups: Number, rows: Number) -> Number:
    """Return the rows that the kernel works on, for groups of `rows` rows each on average.

    Groups follow one another in tiles of t rows, and a tile that several share is computed for each
    of them: `(ceil(groups rows / t) + groups - 1) t` if no group ends with its tile
    (`make_group_metadata`: at most `m // tm + num_groups - 1` tiles). If all groups together are
    less than a tile, the tile is as small.
    """
    whole = groups * rows
    tile = _row_tile(whole)
    return round_up(whole, tile) + (groups - 1) * tile


def kernel_side(size: Number) -> Number:
    """Return a side of the matrices, rounded up to whole tiles: 2048 for a width of 1536.

    The rest of the last tile is masked, and multiplied (`mask_k_rem`).
    """
    return round_up(size, _side_tile(size))


def equivalent_matmul(work: MatmulWork) -> tuple[Number, Number, Number, Number]:
    """Return batch, m, k, n of the plain matmul that occupies the array as long as the kernel."""
    if work.ragged == "m":
        return 1, kernel_rows(work.batch, work.m), kernel_side(work.k), kernel_side(work.n)
    if work.ragged == "k":
        return 1, kernel_side(work.m), kernel_rows(work.batch, work.k), kernel_side(work.n)
    return work.batch, work.m, work.k, work.n


def grouped_bytes_read(
    batch: Number, m: Number, k: Number, n: Number, ragged: str, item: float
) -> Number:
    """Return the operand bytes that pass from HBM, each as often as its tiles are read.

    `gmm` reads the rows for each tile of columns, and a group's matrix for each tile of rows:
    `item (rows k tiles(n) + tiles(rows) k n)`; `tgmm` reads both operands' rows for each tile of
    the other's columns (their `bytes_accessed`).
    """
    if ragged == "m":
        whole = batch * m
        visits = kernel_rows(batch, m) / _row_tile(whole)
        return item * k * (whole * _tiles(n) + visits * n)
    return item * batch * k * (m * _tiles(n) + n * _tiles(m))


def _tiles(size: Number) -> Number:
    return kernel_side(size) / _side_tile(size)


def _row_tile(rows: Number) -> Number:
    return smallest(ROW_TILE, round_up(rows, SUBLANES))


def _side_tile(size: Number) -> Number:
    return smallest(SIDE_TILE, size)

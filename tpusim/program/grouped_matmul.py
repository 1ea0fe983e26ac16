"""Grouped matmuls: groups of rows, each with its own matrix, as one kernel in tiles.

The kernel is megablox (jax 0.10.2, `jax/experimental/pallas/ops/tpu/megablox/gmm.py`: `gmm`, and
`tgmm` for weight gradients). Its tiles are those of the work, or else MaxText's defaults (its
base.yml, `tile_batch_seq`, `tile_embed_dim` and `tile_mlp_dim`).
"""

from tpusim.program.numeric import Number, round_up, smallest
from tpusim.program.work import MatmulWork

ROW_TILE = 512
SIDE_TILE = 1024
SUBLANES, LANES = 8, 128
"""Rows and elements of a row of a memory tile, of which blocks of a kernel are made (JAX's
`tpu_info`)."""


def kernel_rows(groups: Number, rows: Number, tile: Number = ROW_TILE) -> Number:
    """Return the rows that the kernel works on, for groups of `rows` rows each on average.

    Groups follow one another in tiles of t rows, and a tile that several share is computed for each
    of them: `(ceil(groups rows / t) + groups - 1) t` if no group ends with its tile
    (`make_group_metadata`: at most `m // tm + num_groups - 1` tiles). If all groups together are
    less than a tile, the tile is as small.
    """
    whole = groups * rows
    tile_rows = _row_tile(whole, tile)
    return round_up(whole, tile_rows) + (groups - 1) * tile_rows


def kernel_side(size: Number, tile: Number = SIDE_TILE, cores: int = 1) -> Number:
    """Return a side of the matrices in whole tiles: 2048 for a width of 1536 in tiles of 1024.

    cores: of the device, among which the tiles are divided; each takes as many as the busiest.

    The rest of the last tile is masked, and multiplied (`mask_k_rem`), and so is that of a memory
    tile: 704 are 768.
    """
    return round_up(size, cores * _side_tile(size, tile))


def equivalent_matmul(work: MatmulWork, cores: int = 1) -> tuple[Number, Number, Number, Number]:
    """Return batch, m, k, n of the plain matmul that occupies the array as long as the kernel.

    cores: TensorCores of the device. Pallas divides the tiles of columns among them, as only that
        dimension of the kernel's grid is parallel (`dimension_semantics`), so an odd number of
        tiles leaves one of two cores idle for a tile: three tiles of 512 take as long as four.
    """
    if not work.ragged:
        return work.batch, work.m, work.k, work.n
    m_tile, k_tile, n_tile = _tiles_of(work.ragged, work.tiles)
    n = kernel_side(work.n, n_tile, cores)
    if work.ragged == "m":
        return 1, kernel_rows(work.batch, work.m, m_tile), kernel_side(work.k, k_tile), n
    return 1, kernel_side(work.m, m_tile), kernel_rows(work.batch, work.k, k_tile), n


def grid_steps(work: MatmulWork, cores: int = 1) -> Number:
    """Return the steps of the kernel's grid on the busiest of the device's cores.

    A step multiplies a tile of rows, of what is summed and of columns; a plain matmul has none.
    """
    if not work.ragged:
        return 0
    m_tile, k_tile, n_tile = _tiles_of(work.ragged, work.tiles)
    across = kernel_side(work.n, n_tile, cores) / (cores * _side_tile(work.n, n_tile))
    if work.ragged == "m":
        return _visits(work.batch, work.m, m_tile) * _count(work.k, k_tile) * across
    return _visits(work.batch, work.k, k_tile) * _count(work.m, m_tile) * across


def grouped_bytes_read(
    batch: Number,
    m: Number,
    k: Number,
    n: Number,
    ragged: str,
    item: float,
    tiles: tuple[Number, ...] = (),
    matrix_item: float = 0.0,
) -> Number:
    """Return the operand bytes that pass from HBM, each as often as its tiles are read.

    item: bytes of an element.
    tiles: of m, k and n; empty for the defaults.
    matrix_item: bytes of an element of the groups' matrices, if it is another.

    `gmm` reads the rows for each tile of columns, and a group's matrix for each tile of rows:
    `item (rows k tiles(n) + tiles(rows) k n)`; `tgmm` reads both operands' rows for each tile of
    the other's columns (their `bytes_accessed`). If one tile has all of k, the tiles of rows of a
    group follow one another on the same block of its matrix, which Pallas then keeps (a block is
    copied where its index changes): the matrix is read once.
    """
    m_tile, k_tile, n_tile = _tiles_of(ragged, tiles)
    if ragged == "m":
        again = smallest(_count(k, k_tile) - 1, 1)
        times = 1 + again * (_visits(batch, m, m_tile) / batch - 1)
        matrix = times * n * ((matrix_item or item) / item)
        return item * k * batch * (m * _count(n, n_tile) + matrix)
    return item * batch * k * (m * _count(n, n_tile) + n * _count(m, m_tile))


def _tiles_of(ragged: str, tiles: tuple[Number, ...]) -> tuple[Number, Number, Number]:
    """Return the tiles of m, k and n: those given, or the defaults."""
    if tiles:
        m, k, n = tiles
        return m, k, n
    return (ROW_TILE, SIDE_TILE, SIDE_TILE) if ragged == "m" else (SIDE_TILE, ROW_TILE, SIDE_TILE)


def _visits(groups: Number, rows: Number, tile: Number) -> Number:
    """Return the tiles of rows that are computed, those that groups share once for each."""
    return kernel_rows(groups, rows, tile) / _row_tile(groups * rows, tile)


def _count(size: Number, tile: Number) -> Number:
    return kernel_side(size, tile) / _side_tile(size, tile)


def _side_tile(size: Number, tile: Number) -> Number:
    return round_up(smallest(tile, size), LANES)


def _row_tile(rows: Number, tile: Number) -> Number:
    return smallest(tile, round_up(rows, SUBLANES))

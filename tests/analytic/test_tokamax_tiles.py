"""Tiles that Tokamax's grouped kernels choose, against those that its own function returns."""

import numpy as np
import pytest

from tpusim.program import tokamax_tiles

CHOSEN = [
    ((262144, 7168, 2048), (128, 7168, 512), (128, 512, 7168), (1024, 896, 2048)),
    ((262144, 2048, 7168), (128, 2048, 1792), (128, 1792, 2048), (1024, 128, 3584)),
    ((524288, 4096, 1536), (128, 4096, 768), (128, 768, 4096), (1024, 1024, 1536)),
    ((524288, 1536, 4096), (128, 1536, 2048), (128, 2048, 1536), (1024, 128, 4096)),
    ((327680, 2880, 2880), (128, 2880, 1408), (128, 1408, 2880), (1024, 256, 2880)),
    ((512, 2816, 704), (512, 2816, 704), (512, 704, 2816), (512, 2816, 704)),
    ((65536, 4096, 14336), (128, 4096, 896), (128, 896, 4096), (1024, 128, 3584)),
]
"""Rows, k and n of the forward kernel; tiles of m, k and n of it, of the gradient of the rows and
of that of the matrices (`_get_heuristics_config` of tokamax 0.0.17, called with 7x's VMEM)."""


@pytest.mark.parametrize(("shape", "forward", "rows", "weights"), CHOSEN)
def test_sides_are_halved_until_the_blocks_fit(
    shape: tuple[int, int, int],
    forward: tuple[int, ...],
    rows: tuple[int, ...],
    weights: tuple[int, ...],
) -> None:
    m, k, n = shape
    assert tokamax_tiles(m, k, n) == forward
    assert tokamax_tiles(m, n, k, "rows") == rows
    assert tokamax_tiles(m, k, n, "weights") == weights


def test_arrays_of_shapes_have_the_tiles_of_each() -> None:
    shapes = np.array([shape for shape, *_ in CHOSEN], float)
    m, k, n = shapes.T
    found = np.array(tokamax_tiles(m, k, n))
    assert found.T.tolist() == [list(forward) for _, forward, *_ in CHOSEN]


def test_known_shapes_have_the_tiles_of_the_library_s_table() -> None:
    """Searched tiles, for as many groups and operands as wide; any other shape has none of them."""
    assert tokamax_tiles(262144, 7168, 2048, groups=256) == (256, 7168, 512)
    assert tokamax_tiles(262144, 7168, 2048, groups=256, eight_bit=True) == (128, 7168, 2048)
    assert tokamax_tiles(262144, 2048, 7168, "rows", groups=256) == (256, 2048, 1792)
    assert tokamax_tiles(262144, 2048, 7168, "weights", groups=256) == (256, 2048, 1024)
    assert tokamax_tiles(262144, 7168, 2048, groups=128) == (128, 7168, 512)
    assert tokamax_tiles(262152, 7168, 2048, groups=256) == (128, 7168, 512)

"""JAX of nets of images: functions against their definitions."""

import jax.numpy as jnp
import numpy as np
import pytest

from tpusim.export.jax_library import images as library
from tpusim.export.jax_library import regions as of_regions


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("first", [True, False])
def test_an_lstm_of_positions(first: bool) -> None:
    gates, before = drawn(2, 3, 3, 20), drawn(2, 3, 3, 5)
    enter, forget, leave, made = np.split(gates, 4, axis=-1)
    kept = 0.0 if first else sigmoid(forget) * before
    wanted = sigmoid(enter) * np.tanh(made) + kept
    given = () if first else (jnp.asarray(before),)
    cell = library.cell_of_positions(jnp.asarray(gates), *given)
    assert np.allclose(cell, wanted, atol=1e-6)
    state = library.state_of_positions(jnp.asarray(gates), cell)
    assert np.allclose(state, sigmoid(leave) * np.tanh(wanted), atol=1e-6)


def test_channels_are_scaled_and_shifted_by_example() -> None:
    x, scale, shift = drawn(2, 3, 4, 5), drawn(2, 5), drawn(2, 5) + 1
    made = library.film(*map(jnp.asarray, (x, scale, shift)))
    for example in range(2):
        assert np.allclose(made[example], x[example] * scale[example] + shift[example], atol=1e-6)


def test_the_middle_of_images() -> None:
    x = jnp.arange(2 * 8 * 6 * 1).reshape(2, 8, 6, 1)
    assert np.array_equal(library.centre(x, 4, 2), x[:, 2:6, 2:4])


def test_places_count_through_the_levels_of_a_pyramid() -> None:
    levels = [jnp.asarray(drawn(2, side, side, 3)) for side in (4, 2)]
    places = jnp.asarray([[0, 5, 16], [15, 17, 19]])
    found = of_regions.positions_of_regions(*levels, places)
    assert np.array_equal(found[0], [levels[0][0, 0, 0], levels[0][0, 1, 1], levels[1][0, 0, 0]])
    assert np.array_equal(found[1], [levels[0][1, 3, 3], levels[1][1, 0, 1], levels[1][1, 1, 1]])


def test_a_cell_between_positions_of_a_plane_has_the_value_of_the_plane() -> None:
    """Four corners with bilinear shares are exact for a x + b y."""
    rows, columns = jnp.meshgrid(jnp.arange(4.0), jnp.arange(4.0), indexing="ij")
    level = (2 * rows + 3 * columns)[None, :, :, None]
    y, x = 1.25, 2.5
    places = jnp.asarray([[[4 * 1 + 2, 4 * 1 + 3, 4 * 2 + 2, 4 * 2 + 3]]])
    shares = jnp.asarray([[[0.75 * 0.5, 0.75 * 0.5, 0.25 * 0.5, 0.25 * 0.5]]])
    cell = of_regions.cells_of_regions(of_regions.positions_of_regions(level, places), shares)
    assert float(cell[0, 0, 0]) == pytest.approx(2 * y + 3 * x)


def test_shares_of_positions_are_of_their_own_level_and_linear() -> None:
    """A box of 224 pixels is of level 4; shares of rows find the middle of each cell of a plane."""
    boxes = jnp.asarray([[[16.0, 32.0, 240.0, 256.0], [0.0, 0.0, 56.0, 56.0]]])
    rows = of_regions.shares_of_positions(boxes, 7, 20, 2, 4, 6)
    assert rows.shape == (1, 2, 7, 20)
    assert np.allclose(rows[0, 0].sum(-1), 1)
    assert np.allclose(rows[0, 0] @ np.arange(20.0), 1 + (np.arange(7) + 0.5) * 2, atol=1e-5)
    assert not rows[0, 1].any()
    columns = of_regions.shares_of_positions(boxes, 7, 20, 2, 4, 6, along=1)
    assert np.allclose(columns[0, 0] @ np.arange(20.0), 2 + (np.arange(7) + 0.5) * 2, atol=1e-5)


def test_multiplied_cells_are_those_that_are_gathered() -> None:
    """One sample a cell: both read four positions with bilinear shares."""
    level = jnp.asarray(drawn(1, 16, 16, 3))
    boxes = jnp.asarray([[[20.0, 30.0, 250.0, 260.0]]])
    given = (of_regions.shares_of_positions(boxes, 2, 16, 1, 4, 4, along=at) for at in (0, 1))
    made = jnp.einsum("bhwc,bnyh,bnxw->bnyxc", level, *given)
    for y in range(2):
        for x in range(2):
            at = (20 + (y + 0.5) * 115) / 16, (30 + (x + 0.5) * 115) / 16
            low = [int(one) for one in at]
            shares = [(1 - one + n, one - n) for one, n in zip(at, low, strict=True)]
            wanted = sum(
                shares[0][i] * shares[1][j] * level[0, low[0] + i, low[1] + j]
                for i in range(2)
                for j in range(2)
            )
            assert np.allclose(made[0, 0, y, x], wanted, atol=1e-4)

"""JAX of nets of images: functions against their definitions."""

import jax.numpy as jnp
import numpy as np
import pytest

from tpusim.export.jax_library import encoders
from tpusim.export.jax_library import images as library


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


def test_norms_of_positions_are_shifted_and_scaled_by_example() -> None:
    x, rows = drawn(2, 3, 4, 5), drawn(2, 10)
    made = encoders.modulated_norm(jnp.asarray(x), jnp.asarray(rows))
    normed = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    for example, (shift, scale) in enumerate(rows.reshape(2, 2, 5)):
        assert np.allclose(made[example], normed[example] * (1 + scale) + shift, atol=1e-4)


def test_the_middle_of_images() -> None:
    x = jnp.arange(2 * 8 * 6 * 1).reshape(2, 8, 6, 1)
    assert np.array_equal(library.centre(x, 4, 2), x[:, 2:6, 2:4])


def test_places_count_through_the_levels_of_a_pyramid() -> None:
    levels = [jnp.asarray(drawn(2, side, side, 3)) for side in (4, 2)]
    places = jnp.asarray([[0, 5, 16], [15, 17, 19]])
    found = library.positions_of_regions(*levels, places)
    assert np.array_equal(found[0], [levels[0][0, 0, 0], levels[0][0, 1, 1], levels[1][0, 0, 0]])
    assert np.array_equal(found[1], [levels[0][1, 3, 3], levels[1][1, 0, 1], levels[1][1, 1, 1]])


def test_a_cell_between_positions_of_a_plane_has_the_value_of_the_plane() -> None:
    """Four corners with bilinear shares are exact for a x + b y."""
    rows, columns = jnp.meshgrid(jnp.arange(4.0), jnp.arange(4.0), indexing="ij")
    level = (2 * rows + 3 * columns)[None, :, :, None]
    y, x = 1.25, 2.5
    places = jnp.asarray([[[4 * 1 + 2, 4 * 1 + 3, 4 * 2 + 2, 4 * 2 + 3]]])
    shares = jnp.asarray([[[0.75 * 0.5, 0.75 * 0.5, 0.25 * 0.5, 0.25 * 0.5]]])
    cell = library.cells_of_regions(library.positions_of_regions(level, places), shares)
    assert float(cell[0, 0, 0]) == pytest.approx(2 * y + 3 * x)

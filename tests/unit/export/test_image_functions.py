"""JAX of nets of images: functions against their definitions."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from extent import thorough

from tpusim.export.jax_library import boxes as of_boxes
from tpusim.export.jax_library import encoders
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def boxes_in_order(count: int) -> np.ndarray:
    """Corners and scores of boxes of 40 pixels about a few places, the best score first."""
    random = np.random.default_rng(count)
    low = random.choice([0.0, 30.0, 90.0], (count, 2)) + random.uniform(0, 8, (count, 2))
    scores = np.linspace(1, 0.1, count)[:, None]
    return np.concatenate([low, low + 40, scores], axis=1).astype(np.float32)


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    both = np.prod(
        np.clip(np.minimum(one[2:4], other[2:4]) - np.maximum(one[:2], other[:2]), 0, 99)
    )
    return float(both / (2 * 40 * 40 - both))


@pytest.mark.parametrize("count", [13, thorough(7), thorough(21)])
def test_tiles_keep_the_boxes_that_no_better_one_suppresses(count: int) -> None:
    """As if each box were compared with all kept ones before it, in the order of their scores."""
    best, kept = boxes_in_order(count), list[np.ndarray]()
    for box in best:
        if all(overlap(box, other) < of_regions.SUPPRESSED for other in kept):
            kept.append(box)
    made: list[Any] = []
    for place in range(-(-count // 8)):
        one = of_regions.unlike_before(jnp.asarray(best[None]), *made, jnp.asarray(8), place=place)
        found = of_regions.overlaps_in_tile(one)
        for _ in range(8):
            found = of_regions.suppress(found)
        made.append(of_regions.unsuppressed(one, found))
    assert 1 < len(kept) < count
    found = of_regions.first_boxes(*made, jnp.asarray(len(kept)))
    assert np.allclose(found[0], kept)


def test_the_best_boxes_of_a_level_are_about_their_positions() -> None:
    """Three boxes at each of 2 x 3 positions, 4 pixels apart; the best is moved and grows."""
    scores, moves = np.zeros((1, 18), np.float32), np.zeros((1, 18, 4), np.float32)
    scores[0, [13, 2]] = 2, 1
    moves[0, 13] = 0.25, 0, np.log(2), 0
    found = of_regions.best_boxes(jnp.asarray(scores), jnp.asarray(moves), 2, 3, 2)
    assert np.allclose(found[0, 0, :4], [4 + 8 - 32, 4 - 16, 4 + 8 + 32, 4 + 16])
    assert np.allclose(found[0, 1, :4], [-16, -16, 16, 16])
    assert np.allclose(found[0, :, 4], 1 / (1 + np.exp([-2, -1])))


def test_regions_are_those_that_match_labelled_boxes_best() -> None:
    boxes = jnp.asarray(boxes_in_order(6)[None])
    labelled = boxes[:, 3:5, :4]
    found = of_regions.matched_regions(boxes[:, :2], boxes[:, 2:], labelled, jnp.asarray(4))
    assert found.shape == (1, 4, 4)
    for row in np.asarray(labelled[0]):
        assert sum(np.allclose(one, row) for one in np.asarray(found[0])) == 2
    assert np.array_equal(of_regions.first_regions(found, 2), found[:, :2])


@pytest.mark.thorough
def test_places_of_corners_are_beside_their_points() -> None:
    """A region of level 3 on a pyramid of levels 2 and 3: the places begin after level 2's."""
    region = jnp.asarray([[[8.0, 16.0, 128.0, 144.0]]])
    places = of_regions.places_of_corners(region, 1, 40, 32, 1, 3)
    at = (8 + 60) // 8, (16 + 64) // 8
    first = 40 * 32
    wanted = [first + (at[0] + i) * 20 + at[1] + j for i in range(2) for j in range(2)]
    assert places.ravel().tolist() == wanted
    shares = of_regions.shares_of_corners(region, 1, 40, 32, 1, 3)
    assert np.allclose(shares.ravel(), [0.5, 0, 0.5, 0])


def test_the_last_hard_negative_is_found_bit_by_bit() -> None:
    """Three boxes without an object for each with one, by the order of their losses."""
    entropy = np.abs(drawn(4, 60)).astype(np.float32)
    labels = (np.arange(60) % 12 == 0).astype(np.int32) * np.ones((4, 1), np.int32)
    matched = np.full(4, 5.0, np.float32)
    scores = of_boxes.negative_scores(jnp.asarray(entropy), jnp.asarray(labels))
    limit: tuple[Any, ...] = ()
    for bit in range(30, -1, -1):
        limit = (of_boxes.limit_with_bit(scores, jnp.asarray(matched), *limit, bit=bit),)
    negatives = np.where(labels > 0, 0.0, entropy)
    hardest = np.sort(negatives, axis=1)[:, -15:]
    assert np.allclose(np.sum(negatives >= np.asarray(limit[0])[:, None], axis=1), 15, atol=1)
    made = of_boxes.loss_of_classes(entropy, labels, limit[0], matched)
    positive = np.sum(entropy * (labels > 0), axis=1)
    chosen = np.where(negatives >= np.asarray(limit[0])[:, None], negatives, 0.0)
    assert np.allclose(made, (positive + chosen.sum(1)) / 5, atol=1e-5)
    assert np.all(chosen.sum(1) >= hardest.sum(1) - hardest[:, 0] - 1e-5)


def test_the_cross_entropy_of_boxes() -> None:
    logits, labels = drawn(2, 7, 5), np.arange(14).reshape(2, 7) % 5
    highest = of_boxes.highest_of_boxes(jnp.asarray(logits))
    made = of_boxes.entropy_of_boxes(jnp.asarray(logits), jnp.asarray(labels), highest)
    every = np.log(np.exp(logits).sum(-1))
    wanted = every - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    assert np.allclose(made, wanted, atol=1e-5)


def test_the_loss_of_moves_is_square_when_small_and_linear_when_large() -> None:
    moves = jnp.asarray([[[0.5, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]]])
    labels, matched = jnp.asarray([[1, 4, 0]]), jnp.asarray([2.0])
    made = of_boxes.loss_of_moves(moves, jnp.zeros_like(moves), labels, matched)
    assert np.allclose(made, [(0.125 + 2.5) / 2])


def test_boxes_of_a_level_are_before_its_positions() -> None:
    x = jnp.asarray(drawn(2, 2, 3, 8))
    made = of_boxes.boxes_before_positions(of_boxes.each_box(x, 4))
    assert np.array_equal(made[:, 6], x[:, 0, 0, 4:])
    assert np.array_equal(of_boxes.moves_of_levels(x, x)[:, 12:], made)
    assert np.array_equal(of_boxes.losses_of_levels(x)[:, 1], x[:, 0, 0, 1])

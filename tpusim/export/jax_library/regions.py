"""Regions of images: their proposal, suppression and labels, and the features of their cells."""

import jax
import jax.numpy as jnp
from jax import lax

from tpusim.export.jax_library.layers import Array
from tpusim.export.jax_library.step_constants import COMPUTE

ANCHOR = 8.0
"""Side of the boxes that a position proposes, over the distance of positions."""


SUPPRESSED = 0.7
"""Overlap at which the better of two boxes suppresses the other (`rpn_nms_threshold`)."""


def rows_at(x: Array, places: Array) -> Array:
    """Return the rows of each example, [batch, count, ...], at places [batch, count]."""
    return jax.vmap(lambda rows, at: rows[at])(x, places)


def overlaps(boxes: Array, others: Array) -> Array:
    """Return intersection over union of all pairs, [batch, boxes, others]."""
    one, other = boxes[:, :, None], others[:, None]
    low = jnp.maximum(one[..., :2], other[..., :2])
    high = jnp.minimum(one[..., 2:4], other[..., 2:4])
    both = jnp.prod(jnp.maximum(high - low, 0), axis=-1)
    areas = (jnp.prod(each[..., 2:4] - each[..., :2], axis=-1) for each in (one, other))
    return both / (sum(areas) - both + 1e-8)


def best_boxes(scores: Array, moves: Array, count: int, columns: int, level: int) -> Array:
    """Return corners and scores of the boxes of a level with the best scores, [batch, count, 5].

    scores: [batch, anchors], three a position; moves: of the middle and of the log of the sides,
    [batch, anchors, 4].
    """
    best, at = lax.top_k(jax.nn.sigmoid(scores.astype(jnp.float32)), count)
    moves = rows_at(moves, at).astype(jnp.float32)
    stride = 2.0**level
    middle = jnp.stack([at // 3 // columns, at // 3 % columns], axis=-1) * stride
    middle += moves[..., :2] * ANCHOR * stride
    half = jnp.exp(jnp.minimum(moves[..., 2:], 4.0)) * ANCHOR * stride / 2
    return jnp.concatenate([middle - half, middle + half, best[..., None]], axis=-1)


def unlike_before(best: Array, *given: Array, place: int = 0) -> Array:
    """Return a tile of boxes, [batch, tile, 5]; those that overlap with earlier ones are zeros.

    best: corners and scores of all boxes, [batch, boxes, 5], the best first.
    given: the tiles before it, and its size; place: the number of them.
    """
    *before, tile = given
    size = int(tile)
    one = best[:, place * size : (place + 1) * size]
    one = jnp.pad(one, ((0, 0), (0, size - one.shape[1]), (0, 0)))
    for other in before:
        one *= jnp.all(overlaps(other, one) < SUPPRESSED, axis=1)[..., None]
    return one


def overlaps_in_tile(boxes: Array) -> Array:
    """Return the overlaps of boxes with those after them, [batch, tile, tile], if they suppress."""
    found, places = overlaps(boxes, boxes), jnp.arange(boxes.shape[1])
    return found * ((places[:, None] < places) & (found >= SUPPRESSED))


def suppress(found: Array) -> Array:
    """Return the overlaps without those of boxes that unsuppressed ones suppress."""
    free = (jnp.max(found, axis=1) <= SUPPRESSED).astype(found.dtype)
    left = jnp.max(free[..., None] * found, axis=1) <= SUPPRESSED
    return left.astype(found.dtype)[..., None] * found


def unsuppressed(boxes: Array, found: Array) -> Array:
    """Return the boxes of a tile; those that overlap with an earlier one are zeros."""
    return boxes * (jnp.sum(found, axis=1) <= 0)[..., None]


def first_boxes(*given: Array) -> Array:
    """Return the boxes of tiles, [batch, tile, 5], with the best scores: so many, given last."""
    *tiles, count = given
    boxes = jnp.concatenate(tiles, axis=1)
    return rows_at(boxes, lax.top_k(boxes[..., 4], int(count))[1])


def matched_regions(*given: Array) -> Array:
    """Return the corners of the regions to train on, [batch, count, 4].

    given: corners and scores of each level, [batch, boxes, 5]; labelled boxes, [batch, objects, 4];
        the count.

    The best 1000 boxes of all levels, and the labelled ones, in the order of their best overlap
    with a labelled one.
    """
    *levels, labelled, count = given
    boxes = jnp.concatenate(levels, axis=1)
    best = lax.top_k(boxes[..., 4], min(1000, boxes.shape[1]))[1]
    boxes = jnp.concatenate([rows_at(boxes, best)[..., :4], labelled], axis=1)
    matched = jnp.max(overlaps(boxes, labelled), axis=-1)
    return rows_at(boxes, lax.top_k(matched, int(count))[1])


def first_regions(regions: Array, count: int) -> Array:
    """Return the first regions of each example."""
    return regions[:, :count]


def levels_of_regions(regions: Array, last: int) -> Array:
    """Return the level of each region: 4 and log2 of its side over 224 (arXiv:1612.03144).

    regions: the lower and the upper corner in pixels, [batch, regions, 4]: y, x, y, x.
    last: the coarsest level.
    """
    sides = regions[..., 2:] - regions[..., :2]
    side = jnp.sqrt(jnp.maximum(jnp.prod(sides, axis=-1), 1.0))
    return jnp.clip(jnp.floor(jnp.log2(side / 224)) + 4, 2, last)


def points_of_regions(regions: Array, count: int) -> Array:
    """Return so many points along both directions of each region, [batch, regions, 2, count]."""
    low, sides = regions[..., :2], regions[..., 2:] - regions[..., :2]
    return low[..., None] + sides[..., None] * (jnp.arange(count) + 0.5) / count


def corners_of_points(regions: Array, count: int, level: Array) -> tuple[Array, Array]:
    """Return the positions beside each point, and their shares, [batch, regions, 2, count, 2]."""
    points = points_of_regions(regions, count) / 2.0 ** level[..., None, None]
    low = jnp.maximum(jnp.floor(points), 0)
    share = points - low
    return jnp.stack([low, low + 1], axis=-1), jnp.stack([1 - share, share], axis=-1)


def of_corners(rows: Array, columns: Array, cells: int) -> tuple[Array, Array]:
    """Return what rows and columns, [batch, regions, points, 2], give each corner of each cell.

    Both are [batch, regions, cells, cells, corners], which varies with one of them.
    """
    rows, columns = (x.reshape(*x.shape[:2], cells, -1) for x in (rows, columns))
    shape = (*rows.shape[:2], cells, cells, rows.shape[-1], columns.shape[-1])
    down = jnp.broadcast_to(rows[:, :, :, None, :, None], shape)
    across = jnp.broadcast_to(columns[:, :, None, :, None, :], shape)
    return down.reshape(*shape[:4], -1), across.reshape(*shape[:4], -1)


def places_of_corners(
    regions: Array, cells: int, columns: int, rows: int, samples: int, last: int
) -> Array:
    """Return the places of the corners of each cell, [batch, regions, cells, cells, corners].

    columns, rows: of the first level. Places count through the positions of all levels.
    """
    level = levels_of_regions(regions, last)
    near, _ = corners_of_points(regions, cells * samples, level)
    sizes = [(rows >> n, columns >> n) for n in range(last - 1)]
    firsts = jnp.cumsum(jnp.asarray([0, *(high * wide for high, wide in sizes)]))
    own = (level - 2).astype(jnp.int32)
    high, wide = (jnp.asarray(x)[own][..., None, None] for x in zip(*sizes, strict=True))
    down, across = of_corners(
        jnp.minimum(near[:, :, 0], high - 1), jnp.minimum(near[:, :, 1], wide - 1), cells
    )
    places = down * wide[..., None] + across
    return firsts[own][..., None, None, None] + places.astype(jnp.int32)


def shares_of_corners(
    regions: Array, cells: int, columns: int, rows: int, samples: int, last: int
) -> Array:
    """Return the shares of the corners of each cell, see `places_of_corners`."""
    level = levels_of_regions(regions, last)
    _, shares = corners_of_points(regions, cells * samples, level)
    down, across = of_corners(shares[:, :, 0], shares[:, :, 1], cells)
    return (down * across / samples**2).astype(COMPUTE)


def positions_of_regions(*given: Array) -> Array:
    """Return the features at places of all levels of a pyramid, which are counted through.

    given: levels, [batch, height, width, channels], and places, [batch, ...].
    """
    *levels, places = given
    parts = [level.reshape(len(level), -1, level.shape[-1]) for level in levels]
    return jax.vmap(lambda x, at: x[at])(jnp.concatenate(parts, axis=1), places)


def cells_of_regions(samples: Array, shares: Array) -> Array:
    """Return the sum of samples, [..., corners, channels], by the shares of the corners."""
    return jnp.einsum("...nc,...n->...c", samples, shares)


def shares_of_positions(
    regions: Array, cells: int, positions: int, samples: int, level: int, last: int, along: int = 0
) -> Array:
    """Return the share of each position of a level in each cell of each region.

    regions: [batch, regions, 4], see `levels_of_regions`.
    along: 0 for rows, 1 for columns.
    last: the coarsest level; the shares of regions that another level has are zero.

    A cell is the mean of its samples, of which each is linear between two positions.
    """
    own = levels_of_regions(regions, last) == level
    points = points_of_regions(regions, cells * samples)[..., along, :] / 2.0**level
    near = 1 - jnp.abs(points[..., None] - jnp.arange(positions))
    shares = jnp.maximum(near, 0.0).reshape(*points.shape[:-1], cells, samples, positions)
    return (jnp.mean(shares, axis=-2) * own[..., None, None]).astype(COMPUTE)

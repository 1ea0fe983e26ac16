"""Regions of an image: their proposal by a detector, and RoIAlign, which reads their features.

As MLPerf Training's Mask R-CNN has them (mlcommons/training_results_v0.6 and v0.7,
Google/benchmarks/mask and maskrcnn, mask_rcnn_architecture.py and non_max_suppression.py).
"""

from collections.abc import Sequence
from math import ceil, log2

from tpusim.graph import GraphWriter, Tensor, function

COORDINATES = 4
"""Numbers of a box."""

FIRST_LEVEL = 2
"""The finest level of a pyramid: positions are 2^2 pixels apart."""

GATHER = "gather"
ROI_ALIGN = (GATHER, "matmuls")
"""How RoIAlign reads positions: by their index, or as a product with their shares."""

CANDIDATES, PROPOSALS, OBJECTS = 2000, 1000, 100
"""Boxes of a level that are compared, boxes that are proposed, of a level and of all, and boxes of
an image that it is labelled with (mask_rcnn_params.py)."""

TILE = 512
"""Boxes that suppress each other at once (`_NMS_TILE_SIZE`)."""

ROUNDS = 4
"""Rounds in which the boxes of a tile suppress each other. Assumed: the published loop ends when
nothing changes."""

SORT_FLOPS = 4.0
"""Vector operations per element and round of a bitonic sort of scores with their indices."""

OVERLAP_FLOPS, COMPARE_FLOPS, ROUND_FLOPS = 14.0, 2.0, 8.0
"""Vector operations of the overlap of two boxes, of its comparison, and of a round of suppression:
two products and two maxima over all pairs of a tile. Counted from the formulas."""

SHARE_FLOPS = 5.0
"""Vector operations per position and sample of its share in a cell: the distance of both, one
minus it, at least zero, and the sum; and the choice of the level. Counted from the formula."""


def regions_of(w: GraphWriter, proposed: Sequence[tuple[Tensor, Tensor]], rois: str) -> Tensor:
    """Write the choice of regions to train on; return their corners, [batch, rois, coordinates].

    proposed: scores [batch, height, width, boxes] and boxes [batch, height, width, 4 x boxes] of
        each level.

    Of each level the best are kept, and of these all that overlap with a better one dropped. The
    best of all levels and the labelled boxes are then matched. No gradient passes through any.
    """
    w.size(coordinates=COORDINATES, numbers=COORDINATES + 1, objects=OBJECTS)
    batch = proposed[0][0].dims[0]
    kept = [_kept(w.scope(f"level{n}"), n, *pair) for n, pair in enumerate(proposed, FIRST_LEVEL)]
    labelled = w.input("labelled", (batch, "objects", "coordinates"), "f32")
    pairs = (PROPOSALS + OBJECTS) * OBJECTS * (OVERLAP_FLOPS + COMPARE_FLOPS)
    made = w.tensor("chosen", (batch, rois, "coordinates"), "f32")
    most = max(w.extent(*tensor.dims[1:]) for tensor in (*kept, made))
    return w.pointwise(
        "chosen", (*kept, labelled), made, pairs / most, keeps="", alone=True,
        function=function("matched_regions", count=rois),
    )  # fmt: skip


def _kept(w: GraphWriter, level: int, scores: Tensor, boxes: Tensor) -> Tensor:
    """Write the candidates of a level, [batch, proposals, numbers]: corners and score."""
    batch, height, width, each = scores.dims
    anchors = w.extent(height, width, each)
    count = min(CANDIDATES, anchors)
    names = {"anchors": anchors, "candidates": count, "proposals": min(PROPOSALS, count)}
    dims = {short: f"{level}.{short}" for short in names}
    w.sizes.update({dims[short]: size for short, size in names.items()})
    flat = w.reshape("scores", w.stop(scores), (batch, dims["anchors"]))
    apart = w.reshape("boxes", w.stop(boxes), (batch, dims["anchors"], "coordinates"))
    best = w.tensor("best", (batch, dims["candidates"], "numbers"), "f32")
    w.pointwise(
        "best", (flat, apart), best, _sort_flops(anchors) / COORDINATES, keeps="", alone=True,
        function=function("best_boxes", count=dims["candidates"], columns=width, level=level),
    )  # fmt: skip
    kept = w.tensor("kept", (batch, dims["proposals"], "numbers"), "f32")
    return w.pointwise(
        "kept", tuple(_unsuppressed(w, best)), kept,
        _sort_flops(count) * count / w.extent(*kept.dims[1:]), keeps="", alone=True,
        function=function("first_boxes", count=dims["proposals"]),
    )  # fmt: skip


def _sort_flops(count: int) -> float:
    """Return the vector operations per element of a bitonic sort: log n (log n + 1) / 2 rounds."""
    rounds = log2(count)
    return SORT_FLOPS * rounds * (rounds + 1) / 2


def _unsuppressed(w: GraphWriter, best: Tensor) -> list[Tensor]:
    """Write the tiles of boxes, [batch, tile, numbers], without those that better ones suppress.

    Each is compared with the tiles before it and then, in rounds, with itself: in a round, boxes
    that nothing suppresses suppress others.
    """
    batch, boxes, numbers = best.dims
    w.size(tile=TILE, later=TILE)
    made: list[Tensor] = []
    for place in range(ceil(w.extent(boxes) / TILE)):
        inner = w.scope(f"tile{place}")
        one = inner.tensor("left", (batch, "tile", numbers), "f32")
        pairs = len(made) * TILE * (OVERLAP_FLOPS + COMPARE_FLOPS) / w.extent(numbers)
        inner.pointwise(
            "left", (best, *made), one, pairs * TILE / max(w.extent(boxes), TILE), keeps="",
            alone=True, function=function("unlike_before", tile="tile", place=place),
        )  # fmt: skip
        found = inner.tensor("overlaps", (batch, "tile", "later"), "f32")
        inner.pointwise(
            "overlaps", (one,), found, OVERLAP_FLOPS + COMPARE_FLOPS, keeps="", alone=True,
            function=function("overlaps_in_tile"),
        )  # fmt: skip
        for number in range(ROUNDS):
            left = inner.tensor(f"round{number}", found.dims, "f32")
            found = inner.pointwise(
                f"round{number}", (found,), left, ROUND_FLOPS, over=("tile",), keeps="",
                function=function("suppress"),
            )  # fmt: skip
        kept = inner.tensor("kept", one.dims, "f32")
        made.append(
            inner.pointwise(
                "kept",
                (one, found),
                kept,
                COMPARE_FLOPS,
                over=("later",),
                keeps="",
                function=function("unsuppressed"),
            )
        )
    return made


def first_regions(w: GraphWriter, regions: Tensor, rois: str) -> Tensor:
    """Write the first regions, which have objects."""
    made = w.tensor("regions", (regions.dims[0], rois, regions.dims[-1]), "f32")
    return w.pointwise(
        "regions", (regions,), made, 0.0, keeps="", alone=True,
        function=function("first_regions", count=rois),
    )  # fmt: skip


def _cell_dims(w: GraphWriter, regions: Tensor, side: int) -> tuple[str, ...]:
    """Declare the cells of regions, and return their dimensions."""
    batch, rois, _ = regions.dims
    sides = {f"{rois}_height": side, f"{rois}_width": side}
    w.size(**sides)
    return (batch, rois, *sides)


def gathered_cells(
    w: GraphWriter, levels: Sequence[Tensor], regions: Tensor, side: int, samples: int
) -> Tensor:
    """Write cells as sums of gathered positions, all of which pass through HBM.

    levels: of a pyramid, [batch, height, width, channels].
    regions: corners in pixels, [batch, rois, coordinates].
    side: cells of a region in each direction; samples: of a cell, each between four positions.

    The shares and the places of positions follow from the regions.
    """
    w.size(corners=4 * samples**2)
    cells = _cell_dims(w, regions, side)
    corners, channels = (*cells, "corners"), levels[0].dims[-1]
    places, shares = (
        w.stop(
            w.pointwise(
                name, (regions,), w.tensor(name, corners, dtype), SHARE_FLOPS, keeps="",
                function=function(
                    f"{name}_of_corners", cells=cells[-1], columns=levels[0].dims[2],
                    rows=levels[0].dims[1], samples=samples, last=FIRST_LEVEL + len(levels) - 1,
                ),
            )
        )
        for name, dtype in (("places", "s32"), ("shares", "compute"))
    )  # fmt: skip
    gathered = w.pointwise(
        "samples", (*levels, places), (*corners, channels), 0.0, keeps="", alone=True,
        function=function("positions_of_regions"),
    )  # fmt: skip
    return w.pointwise(
        "cells", (gathered, shares), (*cells, channels), 2.0, over=("corners",), keeps="",
        function=function("cells_of_regions"),
    )  # fmt: skip


def multiplied_cells(
    w: GraphWriter, levels: Sequence[Tensor], regions: Tensor, side: int, samples: int
) -> Tensor:
    """Write cells as products with the shares that rows and columns of positions have in them.

    Arguments as those of `gathered_cells`. Bilinear interpolation and the mean of the samples of a
    cell are products of what is along the height and along the width, so one matmul sums rows, and
    another columns (`multilevel_crop_and_resize` of v0.7 and v1.0). All regions are read from all
    levels; the shares in levels that are not theirs are zero.
    """
    batch, rois, height, width = _cell_dims(w, regions, side)
    last, made = FIRST_LEVEL + len(levels) - 1, []
    for number, level in enumerate(levels, start=FIRST_LEVEL):
        inner = w.scope(f"level{number}")
        _, rows, columns, channels = level.dims
        shares = [
            w.stop(
                inner.pointwise(
                    name, (regions,), (batch, rois, cell, positions), SHARE_FLOPS * samples,
                    keeps="", generated=True,
                    function=function(
                        "shares_of_positions", cells=cell, positions=positions, samples=samples,
                        level=number, last=last, along=along,
                    ),
                )
            )
            for name, cell, positions, along in (
                ("rows", height, rows, 0), ("columns", width, columns, 1)
            )
        ]  # fmt: skip
        lines = inner.einsum("lines", level, shares[0], (batch, rois, height, columns, channels))
        made.append(inner.einsum("cells", lines, shares[1], (batch, rois, height, width, channels)))
    return w.add("cells", *made)

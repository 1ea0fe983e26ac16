"""The loss of SSD: classes of default boxes with a search for hard negatives, and their moves.

As MLPerf Training's SSD has it (mlcommons/training_results_v0.7, Google/benchmarks/ssd,
ssd_model.py: `concat_outputs`, `_softmax_cross_entropy`, `_topk_mask`, `_localization_loss`).
"""

from collections.abc import Sequence

from tpusim.graph import GraphWriter, Reshape, Tensor, function

COORDINATES = 4
"""Numbers of a box."""

ROUNDS = 31
"""Rounds of the search for the least loss of a hard negative: one for each bit of a positive number
in f32 (`_topk_mask`)."""

ENTROPY_FLOPS, MOVE_FLOPS = 12.0, 8.0
"""Vector operations per logit of a softmax cross entropy, and per number of a Huber loss. Counted
from the formulas."""

CAST_FLOPS, SCORE_FLOPS, ROUND_FLOPS, CHOICE_FLOPS = 1.0, 3.0, 3.0, 5.0
"""Vector operations per element: to convert logits; per box, to leave positives out of the scores,
of a round (comparison, conversion and sum), and of the choice of negatives with the sum of their
losses. Counted from the formulas."""


def loss_of_boxes(
    w: GraphWriter,
    levels: Sequence[tuple[Tensor, Tensor]],
    boxes: Sequence[int],
    classes: int,
    *,
    joined: bool,
) -> Tensor:
    """Write the loss of each example, [batch], in f32.

    levels: moves [batch, height, width, 4 x boxes] and logits [batch, height, width, classes x
        boxes] of each level; boxes: default boxes of a position of each.
    joined: the boxes of all levels are one array; else there is one of each level.
    """
    w.size(box_classes=classes, coordinates=COORDINATES)
    moves, logits = ([level[place] for level in levels] for place in range(2))
    grouped = _joined if joined else _apart
    found = grouped(w, "moves", moves, boxes, "coordinates")
    scored = grouped(w, "logits", logits, boxes, "box_classes")
    labels = [w.input(f"{t.short}_labels", t.dims[:-1]) for t in scored]
    entropies = [
        w.pointwise(
            f"{t.short}_entropy", (t, label), w.tensor(f"{t.short}_entropy", label.dims, "f32"),
            ENTROPY_FLOPS, over=("box_classes",), function=function("entropy_of_boxes"),
        )
        for t, label in zip(scored, labels, strict=True)
    ]  # fmt: skip
    matched = w.input("matched", scored[0].dims[:1], "f32")
    limit = _least_of_negatives(w, entropies, labels, matched)
    losses = []
    for move, entropy, label in zip(found, entropies, labels, strict=True):
        losses += [
            _summed(w, f"{entropy.short}_sum", (entropy, label, limit, matched), CHOICE_FLOPS,
                    "loss_of_classes"),
            _summed(w, f"{move.short}_sum",
                    (move, w.input(f"{move.short}_wanted", move.dims, "f32"), label, matched),
                    MOVE_FLOPS, "loss_of_moves"),
        ]  # fmt: skip
    return w.add("loss", *losses, out=w.tensor("loss", losses[0].dims, "f32"))


def _joined(
    w: GraphWriter, name: str, levels: Sequence[Tensor], boxes: Sequence[int], last: str
) -> list[Tensor]:
    """Write the numbers of the boxes of all levels, [batch, boxes, last]."""
    positions = [w.extent(*level.dims[1:3]) for level in levels]
    w.size(default_boxes=sum(n * each for n, each in zip(positions, boxes, strict=True)))
    made = w.tensor(name, (levels[0].dims[0], "default_boxes", last), "f32")
    w.pointwise(
        name, levels, made, CAST_FLOPS, keeps="", alone=True,
        function=function("boxes_of_levels", count=last),
    )  # fmt: skip
    return [made]


def _apart(
    w: GraphWriter, name: str, levels: Sequence[Tensor], boxes: Sequence[int], last: str
) -> list[Tensor]:
    """Write the numbers of the boxes of each level, [batch, height, width, boxes, last]."""
    made = []
    for number, (level, each) in enumerate(zip(levels, boxes, strict=True)):
        w.sizes[(own := f"{each}.boxes")] = each
        dims = (*level.dims[:3], own, last)
        wide = w.tensor(f"{name}{number}_wide", level.dims, "f32")
        w.pointwise(
            wide.short, (level,), wide, CAST_FLOPS, keeps="", function=function("in_f32")
        )
        made.append(w.tensor(f"{name}{number}", dims, "f32"))
        w.write(Reshape(f"{w.prefix}{name}{number}", wide, made[-1]))
    return made


def _least_of_negatives(
    w: GraphWriter, entropies: Sequence[Tensor], labels: Sequence[Tensor], matched: Tensor
) -> Tensor:
    """Write the loss of the last hard negative of each example, [batch]: three for each positive.

    A search bit by bit: each round counts the boxes whose loss is above a limit. No gradient passes
    through it.
    """
    scores = [
        w.pointwise(
            f"{t.short}_negative", (w.stop(t), label), w.tensor(f"{t.short}_negative", t.dims, "f32"),
            SCORE_FLOPS, keeps="", function=function("negative_scores"),
        )
        for t, label in zip(entropies, labels, strict=True)
    ]  # fmt: skip
    over = tuple(dict.fromkeys(dim for score in scores for dim in score.dims[1:]))
    limit = None
    for place in range(ROUNDS):
        given = (*scores, matched, *((limit,) if limit else ()))
        made = w.tensor(f"limit{place}", matched.dims, "f32")
        limit = w.pointwise(
            made.short, given, made, ROUND_FLOPS, over=over, keeps="",
            function=function("limit_with_bit", bit=ROUNDS - 1 - place),
        )  # fmt: skip
    assert limit is not None
    return w.stop(limit)


def _summed(
    w: GraphWriter, name: str, given: tuple[Tensor, ...], flops: float, named: str
) -> Tensor:
    """Write the sum of a loss over the boxes of each example, over its positives."""
    made = w.tensor(name, given[0].dims[:1], "f32")
    return w.pointwise(
        name, given, made, flops, over=given[0].dims[1:], function=function(named)
    )

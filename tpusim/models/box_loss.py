"""The loss of SSD: classes of default boxes with a search for hard negatives, and their moves.

As MLPerf Training's SSD has it (mlcommons/training_results_v0.6 and v0.7, Google/benchmarks/ssd,
ssd_model.py: `concat_outputs`, `_softmax_cross_entropy`, `_topk_mask`, `_localization_loss`). It
converts logits to f32 before it turns and joins them; the compiler does so after (v3 and v4, 4 and
32 images, libtpu 0.0.42.1), so here they are in the compute dtype until their entropy.
"""

from collections.abc import Sequence

from tpusim.graph import COMPUTE, GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.regions import COORDINATES

ROUNDS = 31
"""Rounds of the search for the least loss of a hard negative: one for each bit of a positive number
in f32 (`_topk_mask`)."""

MAXIMUM_FLOPS, ENTROPY_FLOPS, MOVE_FLOPS = 1.0, 11.0, 8.0
"""Vector operations per logit of the highest of a box and of its softmax cross entropy, and per
number of a Huber loss. Counted from the formulas."""

SCORE_FLOPS, ROUND_FLOPS, CHOICE_FLOPS = 3.0, 3.0, 5.0
"""Vector operations per box: to leave positives out of the scores, of a round (comparison,
conversion and sum), and of the choice of negatives with the sum of their losses. Counted from the
formulas."""


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
    joined: moves and logits of all levels are one array; else only the losses of boxes are, so that
        positions of logits stay divided (v0.6).
    """
    w.size(coordinates=COORDINATES)
    of_classes = pieces.channels(w, classes)
    for each in boxes:
        w.sizes[f"{each}.boxes"] = each
    moves = [level[0] for level in levels]
    logits = [
        _apart(w, f"logits{number}", level[1], each, of_classes)
        for number, (level, each) in enumerate(zip(levels, boxes, strict=True))
    ]
    w.size(default_boxes=sum(w.extent(*each.dims[1:4]) for each in logits))
    if joined:
        turned = [_boxes_first(w, f"turned{number}", each) for number, each in enumerate(logits)]
        logits = [_joined(w, "logits", turned, "one_after_another", of_classes)]
        moves = [_joined(w, "moves", moves, "moves_of_levels", "coordinates")]
    else:
        moves = [
            w.reshape(f"moves{number}", move, (*logit.dims[:4], "coordinates"))
            for number, (move, logit) in enumerate(zip(moves, logits, strict=True))
        ]
    return _losses(w, moves, logits)


def _losses(w: GraphWriter, moves: Sequence[Tensor], logits: Sequence[Tensor]) -> Tensor:
    """Write the loss of each example.

    moves: arrays [batch, boxes..., 4]; logits: arrays [batch, boxes..., classes].
    """
    batch = logits[0].dims[0]
    matched = w.input("matched", (batch,), "f32")
    labels = [w.input(f"{each.short}_labels", each.dims[:-1]) for each in logits]
    entropies = [_entropy(w, *pair) for pair in zip(logits, labels, strict=True)]
    entropy, label = entropies[0], labels[0]
    if len(entropies) > 1:
        entropy = _joined(w, "entropies", entropies, "losses_of_levels", dtype="f32")
        label = w.input("labels", entropy.dims)
    limit = _least_of_negatives(w, entropy, label, matched)
    of_classes = (entropy, label, limit, matched)
    losses = [_summed(w, "class_loss", of_classes, CHOICE_FLOPS, "loss_of_classes")]
    for move, own in zip(moves, labels, strict=True):
        wanted = w.input(f"{move.short}_wanted", move.dims, "f32")
        given = (move, wanted, own, matched)
        losses.append(_summed(w, f"{move.short}_loss", given, MOVE_FLOPS, "loss_of_moves"))
    return w.add("loss", *losses, out=w.tensor("loss", (batch,), "f32"))


def _apart(w: GraphWriter, name: str, x: Tensor, boxes: int, last: str) -> Tensor:
    """Write the numbers of each box, [batch, height, width, boxes, last].

    A copy: channels of all boxes fill lanes, as those of each box do.
    """
    dims = (*x.dims[:3], f"{boxes}.boxes", last)
    return w.pointwise(
        name, (x,), dims, 0.0, keeps="", alone=True, function=function("each_box", count=last)
    )


def _boxes_first(w: GraphWriter, name: str, x: Tensor) -> Tensor:
    """Write the boxes of a level, [batch, boxes, last]; those of a position are the outer ones."""
    batch, *places, last = x.dims
    own = f"{name}.default_boxes"
    w.sizes[own] = w.extent(*places)
    return w.pointwise(
        name, (x,), (batch, own, last), 0.0, keeps="", alone=True,
        function=function("boxes_before_positions"),
    )  # fmt: skip


def _joined(
    w: GraphWriter,
    name: str,
    levels: Sequence[Tensor],
    named: str,
    last: str = "",
    dtype: str = COMPUTE,
) -> Tensor:
    """Write the numbers of the boxes of all levels, [batch, boxes], or [batch, boxes, last]."""
    dims = (levels[0].dims[0], "default_boxes", *filter(None, (last,)))
    made = w.tensor(name, dims, dtype)
    return w.pointwise(name, levels, made, 0.0, keeps="", alone=True, function=function(named))


def _entropy(w: GraphWriter, logits: Tensor, label: Tensor) -> Tensor:
    """Write the cross entropy of each box in f32; a pass before it finds the highest logits."""
    highest = w.pointwise(
        f"{logits.short}_highest", (w.stop(logits),),
        w.tensor(f"{logits.short}_highest", label.dims, "f32"), MAXIMUM_FLOPS,
        over=logits.dims[-1:], keeps="", function=function("highest_of_boxes"),
    )  # fmt: skip
    return w.pointwise(
        f"{logits.short}_entropy", (logits, label, w.stop(highest)),
        w.tensor(f"{logits.short}_entropy", label.dims, "f32"), ENTROPY_FLOPS,
        over=logits.dims[-1:], function=function("entropy_of_boxes"),
    )  # fmt: skip


def _least_of_negatives(w: GraphWriter, entropy: Tensor, label: Tensor, matched: Tensor) -> Tensor:
    """Write the loss of the last hard negative of each example, [batch]: three for each positive.

    A search bit by bit: each round counts the boxes whose loss is above a limit. No gradient passes
    through it.
    """
    scores = w.tensor("negatives", entropy.dims, "f32")
    w.pointwise(
        "negatives", (w.stop(entropy), label), scores, SCORE_FLOPS, keeps="",
        function=function("negative_scores"),
    )  # fmt: skip
    given = [scores, matched]
    for place in range(ROUNDS):
        limit = w.tensor(f"limit{place}", matched.dims, "f32")
        w.pointwise(
            limit.short, given, limit, ROUND_FLOPS, over=scores.dims[1:], keeps="",
            function=function("limit_with_bit", bit=ROUNDS - 1 - place),
        )  # fmt: skip
        given = [scores, matched, limit]
    return w.stop(limit)


def _summed(
    w: GraphWriter, name: str, given: tuple[Tensor, ...], flops: float, named: str
) -> Tensor:
    """Write the sum of a loss over the boxes of each example, over its positives."""
    made = w.tensor(name, given[0].dims[:1], "f32")
    return w.pointwise(name, given, made, flops, over=given[0].dims[1:], function=function(named))

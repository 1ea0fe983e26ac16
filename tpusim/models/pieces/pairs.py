"""Losses of pairs: the embeddings of images and of texts are compared across the batch."""

from tpusim.graph import COMPUTE, Features, GraphWriter, Tensor, checked_piece, function
from tpusim.models.pieces.attention import SOFTMAX_FLOPS

SIGMOID_FLOPS, NORMALISE_FLOPS = 20.0, 4.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`."""


@checked_piece
def unit_length(w: GraphWriter, name: str, x: Features) -> Tensor:
    """Write `x`, [batch, width], divided by the length of each of its rows."""
    of = function("unit_length")
    return w.pointwise(name, (x,), x.dims, NORMALISE_FLOPS, over=x.dims[1:], function=of)


@checked_piece
def pair_logits(
    w: GraphWriter, images: Features, texts: Features, *, dtype: str = COMPUTE
) -> Tensor:
    """Write the products of all images with all texts, [batch, other batch].

    Each device compares its own images with all texts, which are gathered.

    images, texts: [batch, width], of one width.
    dtype: of the products in HBM.
    """
    width = images.dims[1]
    dims = (w.dim("batch"), w.twin("other_", "batch"))
    one, other = (t.view((dim, width)) for t, dim in zip((images, texts), dims, strict=True))
    return w.einsum("logits", one, other, w.tensor("logits", dims, dtype))


@checked_piece
def softmax_pairs(w: GraphWriter, logits: Tensor) -> Tensor:
    """Write the mean of the cross entropies along rows and along columns; return [batch].

    CLIP, arXiv:2103.00020, figure 3.
    """
    w.size(scalar=1)
    scaled = w.pointwise(
        "scaled",
        (logits, w.weight("temperature", "scalar")),
        w.tensor("scaled", logits.dims, logits.dtype),
        1.0,
        function=function("scale_by_exp"),
    )
    rows, columns = (
        w.pointwise(
            name,
            (scaled,),
            w.tensor(name, (logits.dims[1 - axis],), "f32"),
            SOFTMAX_FLOPS,
            over=(logits.dims[axis],),
            function=function("own_cross_entropy", axis=axis),
        )
        for name, axis in (("loss_of_images", 1), ("loss_of_texts", 0))
    )
    return w.add("loss_of_pairs", rows, columns.view(rows.dims))


@checked_piece
def sigmoid_pairs(w: GraphWriter, logits: Tensor) -> Tensor:
    """Write the sum of the binary cross entropies of each image with all texts; return [batch].

    SigLIP, arXiv:2303.15343.
    """
    w.size(scalar=1)
    learnt = (w.weight("temperature", "scalar"), w.weight("offset", "scalar"))
    return w.pointwise(
        "loss_of_pairs",
        (logits, *learnt),
        w.tensor("loss_of_pairs", logits.dims[:1], "f32"),
        SIGMOID_FLOPS,
        over=(logits.dims[1],),
        function=function("own_sigmoid"),
    )

"""Losses: the logits of a language model or a classifier, and their cross entropy with labels."""

from dataclasses import dataclass, replace

from tpusim.base.divisors import divisor_from
from tpusim.base.errors import PlanError
from tpusim.graph import (
    COMPUTE,
    Count,
    Features,
    GraphWriter,
    Scan,
    Table,
    Tensor,
    Vectors,
    checked_piece,
    function,
    part_of,
)
from tpusim.models.checks import check_types, check_values
from tpusim.models.pieces.attention import SOFTMAX_FLOPS
from tpusim.models.pieces.bias import biased

CAP_FLOPS, CAP_GRADIENT_FLOPS = 10.0, 13.0
"""Vector operations per logit of its soft cap, a hyperbolic tangent and two multiplications, and of
its gradient, which computes the tangent t again and multiplies by 1 - t^2; see
`mlp.ACTIVATION_FLOPS`."""

LOSS_FLOPS, LOSS_GRADIENT_FLOPS = 11.0, 11.0
"""Vector operations per logit of the sum of exponentials with the label's logit, whose maximum the
matmul has found, and of its gradient, without conversions (see `lowering/softmax_passes.py`)."""

MASK, INDEX, TAKE = "mask", "index", "take"
"""How a loss finds the logits of the labels, see `LossForm`."""

VOCAB_BLOCKS = "vocab_blocks"
"""The name of the scan over blocks of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossForm:
    """How the loss is computed.

    blocks: blocks of the vocabulary, which divide it. Logits of one block at a time are in memory,
        with a running sum of exponentials; the backward pass computes them again.
    labels: how it finds the logits of the labels: by a `mask`, or from logits in f32 by `index` or
        `take`. The gradient of `index` is a scatter, that of the others a mask.
    cap: the logits are `cap tanh(logits / cap)`; 0 for none.
    """

    blocks: int = 1
    labels: str = MASK
    cap: float = 0.0

    def __post_init__(self) -> None:
        check_types(self, "LossForm.")
        check_values(self, {"labels": (MASK, INDEX, TAKE)}, "LossForm.")


WHOLE_LOSS = LossForm()

_FUNCTIONS = {
    MASK: "cross_entropy",
    INDEX: "cross_entropy_by_index",
    TAKE: "cross_entropy_by_take",
}


@checked_piece
def language_model_loss(
    w: GraphWriter,
    x: Vectors,
    ids: Tensor,
    *,
    table: Table | None = None,
    bias: bool = False,
    form: LossForm = WHOLE_LOSS,
    dtype: str = COMPUTE,
) -> Tensor:
    """Write the logits and their cross entropy; return the loss of each token.

    x: [batch, sequence, embed], normed.
    ids: [batch, sequence], the tokens.
    table: the embedding, [vocab, embed], if the head is tied to it.
    bias: logits have one.
    dtype: of the logits in HBM.

    Raise PlanError for blocks of the vocabulary that do not divide it, or of a tied head.
    """
    if form.blocks == 1:
        return _cross_entropy(w, x, ids, _Head("vocab", table, bias), "loss", form, dtype)
    _check_blocks(w, form.blocks, table)
    loss = w.tensor("loss", x.dims[:-1], "f32")
    vocab = part_of(w.dim("vocab"), form.blocks)
    w.sizes[vocab] = w.extent("vocab") // form.blocks
    inner = replace(w, ops=[])
    made = _cross_entropy(inner, x, ids, _Head(vocab, None, bias), "block_loss", form, dtype)
    w.write(
        Scan(
            f"{w.prefix}{VOCAB_BLOCKS}",
            form.blocks,
            tuple(inner.ops),
            shared=(x, ids),
            sums=((made, loss),),
            recomputed=True,
        )
    )
    return loss


@checked_piece
def classification_loss(w: GraphWriter, x: Features, classes: Count) -> Tensor:
    """Write a classifier, with a bias, and its cross entropy; return the loss of each example.

    x: [batch, channels].
    """
    w.size(classes=classes)
    labels = w.input("labels", x.dims[:1])
    logits = w.output("logits", biased(w, "head", w.dense("head", x, "classes", out="logits")))
    return w.pointwise(
        "loss",
        (logits, labels),
        w.tensor("loss", x.dims[:1], "f32"),
        SOFTMAX_FLOPS,
        over=("classes",),
        function=function("cross_entropy"),
    )


@dataclass(frozen=True, slots=True)
class _Head:
    """What makes logits over the dimension `vocab`: a weight, or the embedding, and a bias."""

    vocab: str
    table: Tensor | None
    bias: bool


def _cross_entropy(
    w: GraphWriter,
    x: Tensor,
    ids: Tensor,
    head: _Head,
    out: str,
    form: LossForm,
    dtype: str,
) -> Tensor:
    vocab = head.vocab
    dims = (*x.dims[:-1], vocab)
    weight = head.table or w.weight("head", x.dims[-1], vocab)
    logits = w.einsum("logits", x, weight, w.tensor("logits", dims, dtype, narrow=COMPUTE))
    if head.bias:
        made = w.tensor("logits_biased", dims, dtype, narrow=COMPUTE)
        logits = w.add("logits_biased", logits, w.weight("logits_bias", vocab), out=made)
    if form.blocks == 1:
        w.output("logits", logits)
    return w.pointwise(
        "loss",
        (logits, ids),
        w.tensor(out, x.dims[:-1], "f32"),
        LOSS_FLOPS + (CAP_FLOPS if form.cap else 0.0),
        gradient_flops=LOSS_GRADIENT_FLOPS + (CAP_GRADIENT_FLOPS if form.cap else 0.0),
        over=(vocab,),
        picks="" if form.labels == MASK else w.dim(vocab),
        scatters_back=form.labels == INDEX,
        function=function(_FUNCTIONS[form.labels], **({"cap": form.cap} if form.cap else {})),
    )


def _check_blocks(w: GraphWriter, blocks: int, table: Tensor | None) -> None:
    """Raise PlanError for blocks that the head cannot have."""
    where, vocab = f"plan.vocab_blocks is {blocks}", w.extent("vocab")
    if table is not None:
        raise PlanError(
            f"{where}, and the head of {w.name} is its embedding; write vocab_tiles instead, or "
            "tied_embeddings = false where the model has it"
        )
    if vocab % blocks:
        fits = divisor_from(vocab, blocks)
        raise PlanError(f"{where}, which does not divide model.vocab, {vocab}; write {fits}")

"""The head of a masked language model, which predicts some positions of a sequence only."""

from tpusim.graph import (
    COMPUTE,
    Gather,
    GraphWriter,
    Ids,
    Table,
    Tensor,
    Tokens,
    Vectors,
    checked_piece,
    function,
)
from tpusim.models.pieces.bias import biased
from tpusim.models.pieces.loss import WHOLE_LOSS, LossForm, language_model_loss
from tpusim.models.pieces.mlp import activate
from tpusim.models.pieces.norms import norm_of_kind


@checked_piece
def chosen_positions(w: GraphWriter, x: Tokens, ids: Ids) -> Tensor:
    """Write the gather of some positions of each example; return [batch, count, embed].

    Its transpose adds the gradients of the rows into zeros of the size of `x`.

    x: [batch, sequence, embed].
    ids: [batch, count], the positions.
    """
    made = w.tensor("chosen", (*ids.dims, x.dims[-1]))
    w.write(Gather(f"{w.prefix}choose", x, ids, made, x.dims[1]))
    return made


@checked_piece
def transformed(
    w: GraphWriter, x: Vectors, *, activation: str = "gelu", norm: str = "layer", bias: bool = True
) -> Tensor:
    """Write the layer before the head: a matrix, an activation function and a norm.

    norm: of the kinds in `NORM_KINDS`.
    """
    hidden = w.dense("transform", x, x.dims[-1])
    hidden = biased(w, "transform", hidden) if bias else hidden
    hidden = activate(w, activation, (hidden,), "transformed")
    return norm_of_kind(w, norm, "transform_norm", hidden, x.dims[-1])


@checked_piece
def masked_language_model_loss(
    w: GraphWriter,
    x: Tokens,
    labels: Ids,
    table: Table,
    *,
    form: LossForm = WHOLE_LOSS,
    dtype: str = COMPUTE,
) -> Tensor:
    """Write a layer with GELU and a norm, the logits and their loss; return that of each example.

    Devlin et al., arXiv:1810.04805, and google-research/bert, `run_pretraining.py`,
    `get_masked_lm_output`: the head is the embedding, with a bias of its own.

    x: [batch, count, embed], the positions that are predicted.
    labels: [batch, count], their tokens.
    table: the embedding, [vocab, embed].
    form, dtype: see `language_model_loss`.
    """
    hidden = transformed(w, x)
    losses = language_model_loss(w, hidden, labels, table=table, bias=True, form=form, dtype=dtype)
    return w.pointwise(
        "loss_of_example",
        (losses,),
        w.tensor("loss_of_example", losses.dims[:1], "f32"),
        1.0,
        over=losses.dims[1:],
        keeps="",
        function=function("mean_of_example"),
    )

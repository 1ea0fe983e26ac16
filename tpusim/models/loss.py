"""The loss of a language model: the logits, and the cross entropy with the labels."""

from dataclasses import dataclass

from tpusim.graph import Einsum, Op, Pointwise, Scan, Tensor, TensorRole, function, part_of
from tpusim.models.block import SOFTMAX_FLOPS
from tpusim.models.parts import TOKEN

LOSS = Tensor("loss", TOKEN, dtype="f32")
"""The loss of each token."""

VOCAB_BLOCKS = "vocab_blocks"
"""The name of the scan over blocks of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossForm:
    """How the loss is computed.

    blocks: blocks of the vocabulary, which divide it. Logits of one block at a time are in memory,
        with a running sum of exponentials; the backward pass computes them again.
    indexed: the logits of the labels are read by index, not with a mask.
    """

    blocks: int = 1
    indexed: bool = False


WHOLE_LOSS = LossForm()


def loss_ops(
    form: LossForm, x: Tensor, ids: Tensor, table: Tensor | None, dtype: str
) -> tuple[Op, ...]:
    """Return the operations from the normed activations to the loss.

    x: [batch, seq, embed].
    ids: [batch, seq], the tokens.
    table: the embedding, [vocab, embed], if the head is tied to it.
    dtype: of the logits in HBM.
    """
    vocab = part_of("vocab", form.blocks)
    head = table or Tensor("head", ("embed", vocab), TensorRole.PARAM)
    logits = Tensor("logits", (*TOKEN, vocab), dtype=dtype)
    made = LOSS if form.blocks == 1 else Tensor("block_loss", TOKEN, dtype="f32")
    ops = (
        Einsum("logits", x, head, logits),
        Pointwise(
            "loss",
            (logits, ids),
            (made,),
            SOFTMAX_FLOPS,
            over=(vocab,),
            picks=vocab if form.indexed else "",
            function=function("cross_entropy"),
        ),
    )
    if form.blocks == 1:
        return ops
    return (
        Scan(
            VOCAB_BLOCKS,
            form.blocks,
            ops,
            shared=(x, ids),
            sums=((made, LOSS),),
            recomputed=True,
        ),
    )

"""The Evolved Transformer (So et al., arXiv:1901.11117, figure 3), of which Meena is made."""

from dataclasses import dataclass

from tpusim.base.errors import blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.pieces import AttentionForm

GLU_FLOPS = 9.0
"""Vector operations per element: a logistic function and a product; see `ACTIVATION_FLOPS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvedTransformer(Architecture):
    """An encoder and a decoder of Evolved Transformer blocks, by default those of Meena.

    The source has the plan's `seq_len`. The first self-attention of a decoder's block, which has
    twice the heads of half the width, is taken as the others, with the same FLOPs.

    name: the model's name, as results print it.
    encoder_blocks, decoder_blocks: blocks, each about two layers of a transformer.
    embed: width of the residual stream; MLPs and the first convolution are four times as wide.
    heads: heads of each attention.
    vocab: tokens of the vocabulary, whose embedding is the head too.
    target_len: tokens of the target; 0 for as many as the source has.
    """

    name: str = "meena"
    encoder_blocks: int = 1
    decoder_blocks: int = 13
    embed: int = 2560
    heads: int = 32
    vocab: int = 8192
    target_len: int = 0

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, {})
            instead = f"write a multiple of {2 * self.heads}"
            check_heads(self.embed, self.heads, halves=True, instead=instead)

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each token of the target."""
        w.size(
            target_seq=self.target_len or w.extent("seq"),
            embed=self.embed,
            half=self.embed // 2,
            double=2 * self.embed,
            mlp=4 * self.embed,
            heads=self.heads,
            head_dim=self.embed // self.heads,
            vocab=self.vocab,
        )
        ids = w.input("ids", ("batch", "seq"))
        x, table = pieces.embedding(w, ids)
        x = w.layers("encoder", self.encoder_blocks, x, _encoder_block)
        memory = pieces.norm(w, "encoder_norm", x)
        target = w.input("target_ids", ("batch", "target_seq"))
        y, _ = pieces.embedding(w.marked("target_"), target, table)

        def block(w: GraphWriter, y: Tensor) -> Tensor:
            return _decoder_block(w, y, memory)

        y = w.layers("decoder", self.decoder_blocks, y, block)
        y = pieces.norm(w, "decoder_norm", y)
        dtype = choices.logits_dtype
        return pieces.language_model_loss(w, y, target, table=table, form=choices.loss, dtype=dtype)


def _encoder_block(w: GraphWriter, x: Tensor) -> Tensor:
    """Write a gated linear unit, a branched convolution, self-attention and an MLP."""
    normed = pieces.norm(w, "glu_norm", x)
    halves = tuple(w.dense(f"glu_{n}", normed, "embed") for n in range(2))
    x = w.add(
        "glu_sum",
        x,
        w.pointwise("glu", halves, x.dims, GLU_FLOPS, function=function("gated_linear")),
    )
    normed = pieces.norm(w, "conv_norm", x)
    left = _relu(w, "left", w.dense("conv_left", normed, "mlp"))
    right = _relu(w, "right", _convolution(w, "conv_right", normed, 3, "half"))
    both = pieces.norm(w, "branch_norm", _branches(w, left, right), left.dims[-1])
    x = _branches(w, x, _separable(w, "conv_out", both, 9, "half"), "conv_sum")
    x = w.add("mid", x, pieces.attention(w, pieces.norm(w, "attn_norm", x), _form()))
    return w.add("layer_out", x, pieces.mlp(w, pieces.norm(w, "mlp_norm", x), activation="relu"))


def _decoder_block(w: GraphWriter, y: Tensor, memory: Tensor) -> Tensor:
    """Write two attentions side by side, a branched convolution, two attentions and an MLP."""
    normed = pieces.norm(w, "both_norm", y)
    own = pieces.attention(w.marked("first_"), normed, _form(causal=True))
    seen = pieces.attention(w.marked("first_cross_"), normed, _form(), memory=memory)
    y = w.add("both_sum", y, own, seen)
    normed = pieces.norm(w, "conv_norm", y)
    left = _relu(w, "left", _separable(w, "conv_left", normed, 11, "double"))
    right = _separable(w, "conv_right", normed, 7, "half")
    both = pieces.norm(w, "branch_norm", _branches(w, left, right), left.dims[-1])
    y = w.add("conv_sum", y, _separable(w, "conv_out", both, 7, "embed"))
    y = w.add("mid", y, pieces.attention(w, pieces.norm(w, "attn_norm", y), _form(causal=True)))
    cross = w.marked("cross_")
    seen = pieces.attention(cross, pieces.norm(cross, "norm", y), _form(), memory=memory)
    y = w.add("cross_mid", y, seen)
    return w.add("layer_out", y, pieces.mlp(w, pieces.norm(w, "mlp_norm", y), activation="silu"))


def _form(*, causal: bool = False) -> AttentionForm:
    return AttentionForm(causal=causal, fused=False)


def _relu(w: GraphWriter, name: str, x: Tensor) -> Tensor:
    return pieces.activate(w.marked(f"{name}_"), "relu", (x,), "hidden")


def _branches(w: GraphWriter, wide: Tensor, narrow: Tensor, name: str = "branches") -> Tensor:
    """Write the sum of two branches, the narrow one padded with zeros."""
    padded = function("padded_sum")
    return w.pointwise(name, (wide, narrow), wide.dims, 1.0, keeps="", function=padded)


def _convolution(w: GraphWriter, name: str, x: Tensor, taps: int, width: str) -> Tensor:
    made = pieces.convolution(w, name, _in_channels(w, x), w.extent(width), (taps,))
    return made.view((*made.dims[:-1], w.dim(width)))


def _separable(w: GraphWriter, name: str, x: Tensor, taps: int, width: str) -> Tensor:
    """Write a convolution of each channel, and a product over channels."""
    size = w.extent(x.dims[-1])
    deep = pieces.convolution(w, f"{name}_depth", _in_channels(w, x), size, (taps,), groups=size)
    return w.dense(name, deep.view(x.dims), width)


def _in_channels(w: GraphWriter, x: Tensor) -> Tensor:
    """Return a tensor with the name that convolutions have for channels."""
    return x.view((*x.dims[:-1], pieces.channels(w, w.extent(x.dims[-1]))))

"""Layers of encoders with pre-norms, biases and GELU, and what reads their result."""

from dataclasses import dataclass

from tpusim.graph import Count, Features, GraphWriter, Tensor, Tokens, checked_piece, function
from tpusim.models.checks import check_types
from tpusim.models.pieces.attention import AttentionForm, attention
from tpusim.models.pieces.bias import biased
from tpusim.models.pieces.mlp import mlp
from tpusim.models.pieces.norms import layer_norm, norm

BIASED = AttentionForm(bias=True, out_bias=True)
"""Attention to all positions, with a bias in each projection."""

TANH_FLOPS = 10.0
"""Vector operations per element, taken as those of `silu`; see `mlp.ACTIVATION_FLOPS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderForm:
    """The layers of an encoder.

    parallel: attention and MLP read the same norm and are added together.
    attention: how they attend.
    rms: norms divide by the root mean square, without a mean and a shift.
    scanned: layers are iterations of one scan; otherwise they are written one after another, as in
        code with a loop in Python, where no checkpoint and no pipeline applies.
    """

    parallel: bool = False
    attention: AttentionForm = BIASED
    rms: bool = False
    scanned: bool = True

    def __post_init__(self) -> None:
        check_types(self, "EncoderForm.")


@checked_piece
def encoder(w: GraphWriter, x: Tokens, layers: Count, form: EncoderForm) -> Tensor:
    """Write layers of attention and MLP, each after a norm, and return their result.

    Dosovitskiy et al., arXiv:2010.11929, equations 2 and 3; parallel layers are those of Dehghani
    et al., arXiv:2302.05442, section 2.

    x: [batch, sequence, embed].
    """

    normalise = norm if form.rms else layer_norm

    def layer(w: GraphWriter, x: Tensor) -> Tensor:
        normed = normalise(w, "attn_norm", x, x.dims[-1])
        attended = attention(w, normed, form.attention)
        if form.parallel:
            return w.add("layer_out", x, attended, mlp(w, normed, activation="gelu", bias=True))
        mid = w.add("mid", x, attended)
        normed = normalise(w, "mlp_norm", mid, x.dims[-1])
        return w.add("layer_out", mid, mlp(w, normed, activation="gelu", bias=True))

    if form.scanned:
        return w.layers("layer", layers, x, layer)
    for number in range(layers):
        x = layer(w.scope(f"layer_{number}"), x)
    return x


@checked_piece
def position(w: GraphWriter, name: str, x: Tokens, *, last: bool = False) -> Tensor:
    """Write the choice of the first or last position of [batch, sequence, embed]."""
    of = function("position", index=-1 if last else 0)
    return w.pointwise(name, (x,), (x.dims[0], x.dims[-1]), 0.0, keeps="", alone=True, function=of)


@checked_piece
def representation(w: GraphWriter, x: Features) -> Tensor:
    """Write a layer with tanh, as between the features of an example and its classifier.

    x: [batch, embed].
    """
    made = biased(w, "pre_logits", w.dense("pre_logits", x, x.dims[-1]))
    tanh = function("tanh")
    return w.pointwise(
        "representation", (made,), x.dims, TANH_FLOPS, keeps="outputs", function=tanh
    )


@checked_piece
def probe_pool(w: GraphWriter, x: Tokens) -> Tensor:
    """Write attention with one learnt query, and an MLP; return [batch, embed].

    The head of Zhai et al., arXiv:2106.04560, section 3.2: `MAPHead` of big_vision's `vit.py`.
    """
    w = w.scope("map")
    embed = x.dims[-1]
    pooled = queried(w, x, "probe", 1)
    made = mlp(w, layer_norm(w, "pool_norm", pooled, embed), activation="gelu", bias=True)
    return position(w, "pooled", w.add("pool_out", pooled, made))


@checked_piece
def queried(w: GraphWriter, x: Tokens, dim: str, count: Count) -> Tensor:
    """Write attention of learnt queries to `x`; return [batch, dim, embed].

    dim: the queries, of which there are `count`.
    """
    w.size(**{dim: count})
    embed = x.dims[-1]
    spread = function("broadcast", examples=x.dims[0])
    query = w.pointwise(
        "queries",
        (w.weight(f"{dim}_row", dim, embed),),
        (x.dims[0], dim, embed),
        0.0,
        keeps="",
        function=spread,
    )
    return attention(w, query, AttentionForm(fused=False, bias=True, out_bias=True), memory=x)

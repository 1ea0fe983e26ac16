"""Attention with relative positions, of Transformer-XL and the Conformer."""

from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models.pieces.attention import SOFTMAX_FLOPS, AttentionForm, over_keys, projections
from tpusim.models.pieces.bias import biased

SINUSOID_FLOPS = 8.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`."""


def relative_attention(w: GraphWriter, x: Tensor, form: AttentionForm) -> Tensor:
    """Write attention whose scores are of contents and of distances; return [..., embed].

    Dai et al., arXiv:1901.02860, section 3.3: a second matmul of the queries, with a projection of
    the sinusoids of all 2 n - 1 distances, makes scores that are shifted to the keys. They cross
    HBM, as no fused kernel has them.

    x: [batch, sequence, embed].
    """
    batch, seq, embed = x.dims
    q, k, v = projections(w, x, x, form)
    contents, distances = (biased(w, name, q, *q.dims[2:]) for name in ("content", "distance"))
    k, v = (over_keys(w, t) for t in (k, v))
    keys = k.dims[1]
    dims = (batch, q.dims[2], seq, keys)
    scores = w.einsum("scores", contents, k, dims)
    apart = w.einsum("far_scores", distances, _distances(w, seq, embed), (*dims[:3], "distance"))
    shift = function("relative_shift")
    apart = w.pointwise("shifted", (apart,), dims, 0.0, keeps="", alone=True, function=shift)
    scores = w.add("all_scores", scores, apart)
    of = function("softmax", width=q.dims[3])
    probs = w.pointwise(
        "softmax", (scores,), w.tensor("probs", dims), SOFTMAX_FLOPS,
        over=(keys,), keeps="outputs", function=of,
    )  # fmt: skip
    context = w.einsum("context", probs, v, q.dims)
    made = w.einsum("wo", context, w.weight("wo", *q.dims[2:], embed), w.tensor("out", x.dims))
    return biased(w, "wo", made) if form.out_bias else made


def _distances(w: GraphWriter, seq: str, embed: str) -> Tensor:
    """Return the projected sinusoids of all distances: [distance, heads, head_dim]."""
    w.size(distance=2 * w.extent(seq) - 1)
    of = function("sinusoids", count="distance", width=embed)
    waves = w.pointwise("sinusoids", (), ("distance", embed), SINUSOID_FLOPS, keeps="", function=of)
    return w.dense("wr", w.stop(waves), "heads", "head_dim", out="r")

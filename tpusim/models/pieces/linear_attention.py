"""Layers of linear attention: projections, short convolutions, gates, the kernel and its norm."""

from typing import Annotated

from tpusim.graph import (
    COPY,
    PAST,
    TAPS,
    GraphWriter,
    LinearAttention,
    Natural,
    OneOf,
    Pointwise,
    Tensor,
    Tokens,
    checked_piece,
)
from tpusim.models.pieces.attention import AttentionForm, key_heads, projected, rotary
from tpusim.models.pieces.mlp import ACTIVATION_FLOPS
from tpusim.models.pieces.norms import NORM_FLOPS, norm
from tpusim.models.self_attention import GATED_DELTA, KIMI_DELTA, LIGHTNING, LINEAR_KINDS

SIGMOID_FLOPS = 10.0
DECAY_FLOPS = 20.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`. A decay is the product of a learnt
rate and the softplus of a sum, an exponential and a logarithm."""


@checked_piece
def linear_attention(
    w: GraphWriter,
    x: Tokens,
    kind: Annotated[str, OneOf(LINEAR_KINDS)],
    *,
    taps: Natural = 0,
    out: str = "out",
) -> Tensor:
    """Write linear attention with its projections; return its result, [..., embed].

    The heads are `heads` of width `v_head_dim`, those of queries and keys `kv_heads` where there
    are fewer, of width `head_dim`. The low rank of the gates of Kimi Delta Attention is
    `gate_rank`.

    x: [batch, sequence, embed].
    taps: of the short convolutions of queries, keys and values; 0 for none.
    """
    own = key_heads(w)
    q, k = (_given(w, name, w.dense(f"w{name}", x, own, "head_dim", out=name), kind, taps)
            for name in "qk")  # fmt: skip
    v = w.dense("wv", x, "heads", "v_head_dim", out="v")
    v = _convolved(w, "v", v, taps) if taps else v
    attended = _kernel(w, (q, k, v), *_gates(w, x, kind))
    if kind == KIMI_DELTA:
        gate = w.dense("wg_b", w.dense("wg_a", x, "gate_rank"), "heads", "v_head_dim", out="gate")
    else:
        gate = w.dense("wg", x, "heads", "v_head_dim", out="gate")
    scale = w.weight("out_norm_scale", *attended.dims[2 if kind == LIGHTNING else 3 :])
    activation = ACTIVATION_FLOPS["silu"] if kind == GATED_DELTA else SIGMOID_FLOPS
    flops = NORM_FLOPS + activation + 1
    over = attended.dims[3:]
    normed = w.pointwise("out_norm", (attended, gate, scale), attended.dims, flops, over=over)
    return projected(w, normed, x.dims[-1], AttentionForm(), out)


def _given(w: GraphWriter, name: str, made: Tensor, kind: str, taps: int) -> Tensor:
    """Return queries or keys as the kernel takes them; with the delta rule it norms them itself."""
    made = _convolved(w, name, made, taps) if taps else made
    if kind != LIGHTNING:
        return made
    return rotary(w, f"{name}_rotary", norm(w, f"{name}_norm", made, "head_dim"), "head_dim")


def _convolved(w: GraphWriter, name: str, x: Tensor, taps: int) -> Tensor:
    """Write a convolution over the tokens before, of each channel, and `silu` of its result.

    One group of the vector unit, as the kernels of engines are (`causal_conv1d` of tpu-inference).
    Of sharded tokens, those of the device before are not exchanged: they are few.
    """
    w.size(**{TAPS: taps, PAST: max(taps - 1, 1)})
    weight = w.weight(f"{name}_conv", TAPS, *x.dims[2:])
    flops = 2 * taps + ACTIVATION_FLOPS["silu"]
    return w.pointwise(f"{name}_convolved", (x, weight), x.dims, flops, alone=True)


def _gates(w: GraphWriter, x: Tensor, kind: str) -> tuple[Tensor | None, Tensor | None]:
    """Return the decays and the strengths of the delta rule; those of Lightning are constants."""
    if kind == LIGHTNING:
        return None, None
    if kind == KIMI_DELTA:
        given = w.dense("wf_b", w.dense("wf_a", x, "gate_rank"), "heads", "head_dim")
    else:
        given = w.dense("wa", x, "heads")
    rate, bias = w.weight("decay_rate", "heads"), w.weight("decay_bias", *given.dims[2:])
    made = w.tensor("decay", given.dims, "f32")
    decay = w.pointwise("decay", (given, rate, bias), made, DECAY_FLOPS)
    strength = w.tensor("strength", (*x.dims[:2], "heads"), "f32")
    strength = w.pointwise("strength", (w.dense("wb", x, "heads"),), strength, SIGMOID_FLOPS)
    return decay, strength


def _kernel(
    w: GraphWriter,
    given: tuple[Tensor, Tensor, Tensor],
    decay: Tensor | None,
    strength: Tensor | None,
) -> Tensor:
    """Write the kernel, which takes heads before tokens: operands and result are copied."""
    q, k, v = (w.tensor(f"{name}_kernel", t.dims) for name, t in zip("qkv", given, strict=True))
    context, attended = (w.tensor(name, given[2].dims) for name in ("context", "attended"))
    w.write(
        _copy(f"{w.prefix}kernel_in", given, (q, k, v)),
        LinearAttention(f"{w.prefix}linear_attention", q, k, v, context, decay, strength),
        _copy(f"{w.prefix}kernel_out", (context,), (attended,)),
    )
    return attended


def _copy(name: str, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> Pointwise:
    return Pointwise(name, given, made, 0.0, keeps="", alone=True, function=COPY)

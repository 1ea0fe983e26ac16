"""One layer of a transformer: attention and MLP, serial or parallel."""

from dataclasses import dataclass
from fractions import Fraction

from tpusim.graph import (
    ADD,
    COMPUTE,
    COPY,
    REPEAT,
    Attention,
    Einsum,
    Op,
    Pointwise,
    Tensor,
    function,
)
from tpusim.models import latent
from tpusim.models.experts import SLOTS, RoutedTokens, combine, dispatch, router
from tpusim.models.parts import RESIDUAL, ROTARY_FLOPS, TOKEN, norm, weight

SOFTMAX_FLOPS = 10.0
ACTIVATION_FLOPS = {"relu": 1.0, "gelu": 14.0, "silu": 10.0}
"""Vector operations per element, transcendental functions at eight each. Assumed: counted from the
formulas (a norm squares, adds, scales twice and converts; a softmax subtracts, exponentiates,
adds and divides); halving or doubling them moves the flagship's step by less than 1 %."""

_LINEARISATION = {
    "relu": ((("positive", "pred"),), False),
    "gelu": ((("cube_slope", COMPUTE), ("tanh", COMPUTE), ("tanh_slope", COMPUTE),
              ("share", COMPUTE)), True),
    "silu": ((("sigmoid", COMPUTE), ("sigmoid_slope", COMPUTE)), True),
}  # fmt: skip
"""Arrays that reverse mode reads of an activation function besides its operand, with their dtypes,
and True if it reads the operand: the residuals of `jax.vjp` of `jax.nn.relu`, `gelu` (3 x^2, tanh,
1 - tanh and (1 + tanh)/2) and `silu` in jax 0.10.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """The structure of one layer; sizes belong to the graph. See `Transformer` for the rest.

    name: prefix of its tensors' names.
    kv_head: the dimension of the K/V heads; `heads` where each query head has its own.
    repeated: the K/V heads are fewer than the query heads, but more than one.
    fused: attention is one kernel.
    window: keys that a query sees, 0 for all.
    share: the fraction of whole scores that the model needs.
    softmax_dtype: of the scores, where attention is not a kernel.
    latent: attention is latent.
    low_rank_queries: the queries of latent attention come from a latent too.
    routed: the routing of its experts; None where the MLP is dense.
    """

    name: str
    kv_head: str
    repeated: bool
    gated: bool
    activation: str
    parallel: bool
    post_norms: bool
    qk_norm: bool
    rotary: bool
    fused: bool
    causal: bool
    window: int
    share: float
    softmax_dtype: str
    latent: bool = False
    low_rank_queries: bool = False
    routed: RoutedTokens | None = None


def block_ops(b: LayerBlock, x: Tensor, out: Tensor) -> tuple[Op, ...]:
    """Return the operations of one layer: attention and MLP, serial or parallel."""
    attn_in, projected = Tensor(f"{b.name}/attn_norm", RESIDUAL), Tensor(f"{b.name}/out", RESIDUAL)
    after_attn, attended = _post_norm(b, "attn", projected)
    attention = (
        norm(f"{b.name}/attn_norm", x, attn_in),
        *_attention(b, attn_in, projected),
        *after_attn,
    )
    if b.parallel:
        mlp, terms = _feed_forward(b, attn_in)
        return (*attention, *mlp, _add(f"{b.name}/layer_out", (x, attended, *terms), out))
    mid, mlp_in = Tensor(f"{b.name}/mid", RESIDUAL), Tensor(f"{b.name}/mlp_norm", RESIDUAL)
    mlp, terms = _feed_forward(b, mlp_in)
    return (
        *attention,
        _add(f"{b.name}/mid", (x, attended), mid),
        norm(f"{b.name}/mlp_norm", mid, mlp_in),
        *mlp,
        _add(f"{b.name}/layer_out", (mid, *terms), out),
    )


def _post_norm(b: LayerBlock, name: str, made: Tensor) -> tuple[tuple[Op, ...], Tensor]:
    """Return the norm after attention or MLP, where there is one, and the tensor to add up."""
    if not b.post_norms:
        return (), made
    normed = Tensor(f"{b.name}/post_{name}_norm", RESIDUAL)
    return (norm(normed.name, made, normed),), normed


def _attention(b: LayerBlock, x: Tensor, out: Tensor) -> tuple[Op, ...]:
    if b.latent:
        ops, q, k, v = latent.projections(b.name, x, b.low_rank_queries)
    else:
        ops, q, k, v = _projections(b, x)
    context = Tensor(f"{b.name}/context", (*q.dims[:-1], v.dims[-1]))
    core = (_flash if b.fused else _dot)(b, q, k, v, context)
    (attended,) = core[-1].outputs
    return (
        *ops,
        *core,
        Einsum(f"{b.name}/wo", attended, weight(b.name, "wo", *context.dims[2:], "embed"), out),
    )


def _projections(b: LayerBlock, x: Tensor) -> tuple[tuple[Op, ...], Tensor, Tensor, Tensor]:
    """Return the operations that make queries, keys and values for the kernel, and those three."""
    q = Tensor(f"{b.name}/q", (*TOKEN, "heads", "head_dim"))
    k, v = (Tensor(f"{b.name}/{name}", (*TOKEN, b.kv_head, "head_dim")) for name in "kv")
    projections = tuple(
        Einsum(f"{b.name}/w{t.short}", x, weight(b.name, f"w{t.short}", "embed", *t.dims[2:]), t)
        for t in (q, k, v)
    )
    (q_ops, q), (k_ops, k) = _prepared(b, "q", q), _prepared(b, "k", k)
    return (*projections, *q_ops, *k_ops), q, k, v


def _prepared(b: LayerBlock, name: str, t: Tensor) -> tuple[tuple[Op, ...], Tensor]:
    """Return queries or keys, normed per head and rotated by position if the model does so."""
    ops: list[Op] = []
    if b.qk_norm:
        given, t = t, Tensor(f"{b.name}/{name}_norm", t.dims)
        ops.append(norm(t.name, given, t, "head_dim"))
    if b.rotary:
        given, t = t, Tensor(f"{b.name}/{name}_rotary", t.dims)
        ops.append(
            Pointwise(
                t.name,
                (given,),
                (t,),
                ROTARY_FLOPS,
                keeps="",
                alone=True,
                function=function("rotary", width="head_dim"),
            )
        )
    return tuple(ops), t


def _keys(t: Tensor) -> Tensor:
    """Return the tensor with its sequence named `kv_seq`."""
    return t.view(("batch", "kv_seq", *t.dims[2:]))


def _flash(b: LayerBlock, q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> tuple[Op, ...]:
    """Return a fused kernel, which takes heads before tokens: operands and result are copied.

    Compiled programs spend 0.9 to 3.5 % of their cycles on these copies (MaxText on v5e, v5p and
    v6e, libtpu 0.0.11.1).
    """
    given = tuple(
        Tensor(f"{b.name}/{name}_kernel", t.dims) for name, t in zip("qkv", (q, k, v), strict=True)
    )
    attended = Tensor(f"{b.name}/attended", context.dims)
    q_in, k_in, v_in = given
    return (
        _copy(f"{b.name}/kernel_in", (q, k, v), given),
        Attention(
            f"{b.name}/attention", q_in, _keys(k_in), _keys(v_in), context, b.causal, b.window
        ),
        _copy(f"{b.name}/kernel_out", (context,), (attended,)),
    )


def _copy(name: str, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> Op:
    return Pointwise(name, given, made, 0.0, keeps="", alone=True, function=COPY)


def _dot(b: LayerBlock, q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> tuple[Op, ...]:
    """Return attention as XLA runs it: all scores, softmax and weighted sum through HBM.

    Causal scores are computed whole.

    Where the softmax is in f32, so are the scores in HBM, but not their gradient; the backward pass
    recomputes the softmax from the scores (plain models on v4 and v5e, libtpu 0.0.42.1).
    """
    repeats: tuple[Op, ...] = ()
    if b.repeated:
        wide = tuple(Tensor(f"{t.name}_repeated", (*TOKEN, "heads", "head_dim")) for t in (k, v))
        repeats = tuple(
            Pointwise(
                f"{b.name}/{t.short}_repeat",
                (t,),
                (w,),
                1.0,
                keeps="",
                repeats=(("kv_heads", "heads"),),
                function=REPEAT,
            )
            for t, w in zip((k, v), wide, strict=True)
        )
        k, v = wide
    dims = ("batch", "heads", "seq", "kv_seq")
    in_f32 = b.softmax_dtype != COMPUTE
    scores = Tensor(f"{b.name}/scores", dims, dtype=b.softmax_dtype, narrow=COMPUTE)
    probs = Tensor(f"{b.name}/probs", dims)
    exponentials = Tensor(f"{b.name}/exponentials", dims, dtype=b.softmax_dtype)
    return (
        *repeats,
        Einsum(f"{b.name}/scores", q, _keys(k), scores, b.share),
        Pointwise(
            f"{b.name}/softmax",
            (scores,),
            (probs,),
            SOFTMAX_FLOPS,
            over=("kv_seq",),
            keeps="inputs" if in_f32 else "outputs",
            residuals=(exponentials,),
            function=function("softmax", causal=b.causal, window=b.window, width=q.dims[-1]),
        ),
        Einsum(f"{b.name}/context", probs, _keys(v), context, b.share),
    )


def _feed_forward(b: LayerBlock, x: Tensor) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return the MLP or the experts of a layer, and the terms that they add to it."""
    out = Tensor(f"{b.name}/mlp_out", RESIDUAL)
    ops, terms = (
        ((*_mlp(b, x, out),), (out,)) if b.routed is None else _experts(b, b.routed, x, out)
    )
    if not b.post_norms:
        return ops, terms
    if len(terms) > 1:
        whole = Tensor(f"{b.name}/mlp_sum", RESIDUAL)
        ops, out = (*ops, _add(whole.name, terms, whole)), whole
    after, term = _post_norm(b, "mlp", out)
    return (*ops, *after), (term,)


def _experts(
    b: LayerBlock, r: RoutedTokens, x: Tensor, out: Tensor
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return the experts, and the MLP of all tokens beside them where there is one."""
    routing, (there, back) = router(b.name, r, x)
    sent, slots = dispatch(b.name, r, x, there)
    filled = Tensor(f"{b.name}/expert_out", slots.dims)
    own = Mlp(
        prefix="expert_",
        tokens=SLOTS,
        outer=("expert",),
        share=r.share,
        ragged=not r.routing.capacity_factor,
    )
    ops = (*routing, sent, *_mlp(b, slots, filled, own), combine(b.name, r, filled, back, out))
    if not r.shared:
        return ops, (out,)
    for_all = Tensor(f"{b.name}/shared_out", RESIDUAL)
    return (*ops, *_mlp(b, x, for_all, Mlp(prefix="shared_"))), (out, for_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """An MLP of a layer.

    prefix: prefix of its tensors' names.
    tokens: dimensions of its tokens.
    outer: dimensions that have weights of their own for each index.
    share, ragged: see `Einsum`.
    """

    prefix: str = ""
    tokens: tuple[str, ...] = TOKEN
    outer: tuple[str, ...] = ()
    share: float | Fraction = 1.0
    ragged: bool = False


def _mlp(b: LayerBlock, x: Tensor, out: Tensor, mlp: Mlp | None = None) -> tuple[Op, ...]:
    m = mlp or Mlp()
    start, width = f"{b.name}/{m.prefix}", f"{m.prefix}mlp"
    hidden_dims = (*m.tokens, width)
    names = ("mlp_in_0", "mlp_in_1") if b.gated else ("mlp_in",)
    ins = tuple(Tensor(f"{start}{name}", hidden_dims) for name in names)
    hidden = Tensor(f"{start}mlp_hidden", hidden_dims)
    weights = ("wi_0", "wi_1") if b.gated else ("wi",)

    def matmul(name: str, given: Tensor, dims: tuple[str, str], made: Tensor) -> Einsum:
        own = weight(b.name, f"{m.prefix}{name}", *m.outer, *dims)
        return Einsum(own.name, given, own, made, m.share, ragged=m.ragged)

    return (
        *(matmul(w, x, ("embed", width), t) for w, t in zip(weights, ins, strict=True)),
        Pointwise(
            f"{start}{b.activation}",
            ins,
            (hidden,),
            ACTIVATION_FLOPS[b.activation] + len(ins) - 1,
            residuals=_residuals(b, ins, m.prefix),
            function=function(b.activation),
        ),
        matmul("wo_mlp", hidden, (width, "embed"), out),
    )


def _residuals(b: LayerBlock, ins: tuple[Tensor, ...], prefix: str) -> tuple[Tensor, ...]:
    """Return the residuals of the activation function, and of its multiplication by a gate."""
    of, *gate = ins
    start = f"{b.name}/{prefix}{b.activation}"
    arrays, reads_operand = _LINEARISATION[b.activation]
    made = (Tensor(f"{start}_{name}", of.dims, dtype=dtype) for name, dtype in arrays)
    activated = (Tensor(f"{start}_out", of.dims),) if gate else ()
    return (*((of,) if reads_operand else ()), *made, *gate, *activated)


def _add(name: str, terms: tuple[Tensor, ...], out: Tensor) -> Op:
    flops = float(len(terms) - 1)
    return Pointwise(name, terms, (out,), flops, linear=True, keeps="", function=ADD)

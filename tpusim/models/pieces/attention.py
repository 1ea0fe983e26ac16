"""Attention of tokens to those of their own sequence, or of another one."""

from dataclasses import dataclass, replace

from tpusim.graph import (
    COMPUTE,
    COPY,
    KEYS,
    PART_DOT,
    PARTS,
    REPEAT,
    Attention,
    GraphWriter,
    Heads,
    Pointwise,
    Tensor,
    Tokens,
    checked_piece,
    function,
    renamed,
)
from tpusim.models.checks import check_types, check_values
from tpusim.models.pieces.bias import biased
from tpusim.models.pieces.dropout import dropout
from tpusim.models.pieces.norms import NORM_KINDS, norm_of_kind

SOFTMAX_FLOPS = 10.0
ROTARY_FLOPS = 6.0
SINUSOID_FLOPS = 8.0
GATE_FLOPS = 11.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`."""


_CHOICES = {"norm": NORM_KINDS, "qk_norm_heads": ("", "each", "all")}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionForm:
    """How attention is computed.

    causal: a query sees no later keys.
    fused: it is one kernel; otherwise the scores cross HBM.
    window: keys that a query sees, 0 for all.
    rotary: queries and keys are rotated by their position.
    qk_norm: queries and keys are normed over `head_dim`.
    qk_norm_heads: `all` or `each`, see `norm_of_kind`.
    norm: the kind of those norms, of `NORM_KINDS`.
    softmax_dtype: of the scores, where attention is not a kernel.
    bias: projections of queries, keys and values have one.
    out_bias: so has the projection of the result.
    keys_as_values: one projection makes keys and values.
    fused_qkv: one projection makes queries, keys and values.
    values: dimension of the width of the values.
    out_gate: the result is multiplied by the sigmoid of a projection of the tokens.
    dropout: probabilities are dropped, where attention is not a kernel (kernels have none).
    """

    causal: bool = False
    fused: bool = True
    window: int = 0
    rotary: bool = False
    qk_norm: bool = False
    qk_norm_heads: str = ""
    norm: str = "rms"
    softmax_dtype: str = COMPUTE
    bias: bool = False
    out_bias: bool = False
    keys_as_values: bool = False
    fused_qkv: bool = False
    values: str = "head_dim"
    out_gate: bool = False
    dropout: bool = False

    def __post_init__(self) -> None:
        check_types(self, "AttentionForm.")
        check_values(self, _CHOICES, "AttentionForm.")


@checked_piece
def attention(
    w: GraphWriter,
    x: Tokens,
    form: AttentionForm | None = None,
    *,
    memory: Tokens | None = None,
    out: str = "out",
) -> Tensor:
    """Write multi-head attention with its four projections; return its result, [..., embed].

    The heads are `heads`, and `kv_heads` for keys and values where that dimension has another size;
    their width is `head_dim`.

    x: [batch, sequence, embed], which makes the queries.
    memory: [batch, other sequence, embed], which makes keys and values; `x` where it is not given.
    out: name of the result.
    """
    form = form or AttentionForm()
    if form.fused_qkv:
        made = _seen_of_one(w, x, form)
    else:
        made = seen(w, *projections(w, x, x if memory is None else memory, form), form)
    if form.out_gate:
        gate = w.dense("wg", x, *made.dims[2:], out="out_gate")
        gated = function("gated_by_sigmoid")
        made = w.pointwise("out_gated", (made, gate), made.dims, GATE_FLOPS, function=gated)
    return projected(w, made, x.dims[-1], form, out)


@checked_piece
def attend(
    w: GraphWriter, q: Heads, k: Heads, v: Heads, form: AttentionForm, embed: str, out: str
) -> Tensor:
    """Write attention of given queries, keys and values, and its output projection to `embed`."""
    return projected(w, seen(w, q, k, v, form), embed, form, out)


@checked_piece
def seen(w: GraphWriter, q: Heads, k: Heads, v: Heads, form: AttentionForm) -> Tensor:
    """Write what each head of the queries sees of the values, [batch, sequence, heads, width]."""
    return (_flash if form.fused else _dot)(w, q, k, v, form)


@checked_piece
def projected(w: GraphWriter, x: Heads, embed: str, form: AttentionForm, out: str) -> Tensor:
    """Write the output projection of all heads to `embed`."""
    weight = w.weight("wo", *x.dims[2:], embed)
    made = w.einsum("wo", x, weight, w.tensor(out, (*x.dims[:2], embed)))
    return biased(w, "wo", made) if form.out_bias else made


@checked_piece
def projections(
    w: GraphWriter, x: Tokens, memory: Tokens, form: AttentionForm
) -> tuple[Tensor, Tensor, Tensor]:
    """Write what makes queries, keys and values for the kernel, and return those three."""
    kv_heads = key_heads(w)

    def made_of(name: str, given: Tensor, heads: str, width: str = "head_dim") -> Tensor:
        made = w.dense(f"w{name}", given, heads, width, out=name)
        return biased(w, f"w{name}", made, *made.dims[-2:]) if form.bias else made

    q, k = made_of("q", x, "heads"), made_of("k", memory, kv_heads)
    v = k if form.keys_as_values else made_of("v", memory, kv_heads, form.values)
    return _prepared(w, "q", q, form), _prepared(w, "k", k, form), v


def _seen_of_one(w: GraphWriter, x: Tensor, form: AttentionForm) -> Tensor:
    """Write the one projection of queries, keys and values, and attention of its parts.

    A kernel's operands are copied out of the product; whatever else reads a part takes a slice.
    """
    if key_heads(w) != w.dim("heads"):
        q, k, v = _grouped_parts(w, x, key_heads(w), form)
        return seen(w, _prepared(w, "q", q, form), _prepared(w, "k", k, form), v, form)
    w.size(qkv=len("qkv"))
    made = w.dense("wqkv", x, "qkv", "heads", "head_dim", out="qkv")
    if form.bias:
        made = biased(w, "wqkv", made, *made.dims[-3:])
    dims = (*made.dims[:2], *made.dims[3:])
    if form.fused and not (form.rotary or form.qk_norm):
        given = tuple(w.tensor(f"{name}_kernel", dims) for name in "qkv")
        w.write(replace(_copy(f"{w.prefix}kernel_in", (made,), given), function=PARTS))
        return _kernel(w, given, form)
    q, k, v = parts = tuple(w.tensor(name, dims) for name in "qkv")
    w.write(Pointwise(f"{w.prefix}qkv_parts", (made,), parts, 0.0, keeps="", function=PARTS))
    return seen(w, _prepared(w, "q", q, form), _prepared(w, "k", k, form), v, form)


def _grouped_parts(
    w: GraphWriter, x: Tensor, kv_heads: str, form: AttentionForm
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the one projection of grouped queries, and return queries, keys and values.

    Each head of keys and values lies behind the queries that share it, so a device that has whole
    groups takes its parts of the product where they are.
    """
    group = w.extent("heads") // w.extent(kv_heads)
    w.size(q_group=group, qkv_group=group + 2)
    made = w.dense("wqkv", x, kv_heads, "qkv_group", "head_dim", out="qkv")
    if form.bias:
        made = biased(w, "wqkv", made, *made.dims[-3:])
    *tokens, width = made.dims[:3] + made.dims[4:]
    parts = (
        w.tensor("q_groups", (*tokens, "q_group", width)),
        *(w.tensor(name, (*tokens, width)) for name in "kv"),
    )
    of = function("group_parts")
    w.write(Pointwise(f"{w.prefix}qkv_parts", (made,), parts, 0.0, keeps="", function=of))
    q = w.reshape("q", parts[0], (*made.dims[:2], "heads", "head_dim"))
    return q, parts[1], parts[2]


def key_heads(w: GraphWriter) -> str:
    """Return the dimension of the heads of keys and values: `heads` where there are as many.

    A part with `heads` of its own has its own `kv_heads` too, or none: not the model's.
    """
    heads = w.dim("heads")
    named = (f"{w.within}{PART_DOT}kv_heads", renamed(KEYS, heads))
    found = next((dim for dim in named if dim in w.sizes), heads)
    return heads if w.sizes[found] == w.sizes[heads] else found


def _prepared(w: GraphWriter, name: str, t: Tensor, form: AttentionForm) -> Tensor:
    """Return queries or keys, normed per head and rotated by position if the model does so."""
    if form.qk_norm:
        t = norm_of_kind(w, form.norm, f"{name}_norm", t, "head_dim", heads=form.qk_norm_heads)
    return rotary(w, f"{name}_rotary", t, "head_dim") if form.rotary else t


@checked_piece
def rotary(w: GraphWriter, name: str, t: Tensor, width: str) -> Tensor:
    """Write the rotation of queries or keys by their position, over the dimension `width`."""
    turn = function("rotary", width=w.dim(width))
    return w.pointwise(name, (t,), t.dims, ROTARY_FLOPS, keeps="", alone=True, function=turn)


def _flash(w: GraphWriter, q: Tensor, k: Tensor, v: Tensor, form: AttentionForm) -> Tensor:
    """Write a fused kernel, which takes heads before tokens: operands and result are copied.

    Compiled programs spend 0.9 to 3.5 % of their cycles on these copies (MaxText on v5e, v5p and
    v6e, libtpu 0.0.11.1).
    """
    given = tuple(
        w.tensor(f"{name}_kernel", t.dims) for name, t in zip("qkv", (q, k, v), strict=True)
    )
    w.write(_copy(f"{w.prefix}kernel_in", (q, k, v), given))
    return _kernel(w, given, form)


def _kernel(w: GraphWriter, given: tuple[Tensor, ...], form: AttentionForm) -> Tensor:
    """Write a fused kernel of copied queries, keys and values; return its result, copied back."""
    queries, keys, values = given
    context = _context(w, queries, values)
    attended = w.tensor("attended", context.dims)
    w.write(
        Attention(
            f"{w.prefix}attention",
            queries,
            over_keys(w, keys),
            over_keys(w, values),
            context,
            form.causal,
            form.window,
        ),
        _copy(f"{w.prefix}kernel_out", (context,), (attended,)),
    )
    return attended


def _copy(name: str, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> Pointwise:
    return Pointwise(name, given, made, 0.0, keeps="", alone=True, function=COPY)


def _context(w: GraphWriter, q: Tensor, v: Tensor) -> Tensor:
    """Return the result of attention: values of each head, for each query."""
    return w.tensor("context", (*q.dims[:-1], v.dims[-1]))


def over_keys(w: GraphWriter, t: Tensor) -> Tensor:
    """Return keys or values with a name of its own for their sequence: `kv_seq`."""
    return t.view((t.dims[0], w.twin(KEYS, t.dims[1]), *t.dims[2:]))


def _dot(w: GraphWriter, q: Tensor, k: Tensor, v: Tensor, form: AttentionForm) -> Tensor:
    """Write attention as XLA runs it: all scores, softmax and weighted sum through HBM.

    Causal scores are computed whole.

    Where the softmax is in f32, so are the scores in HBM, but not their gradient; the backward pass
    recomputes the softmax from the scores (plain models on v4 and v5e, libtpu 0.0.42.1).
    """
    k, v = (over_keys(w, _repeated(w, q, t)) for t in (k, v))
    batch, seq, heads, width = q.dims
    keys = k.dims[1]
    dims = (batch, heads, seq, keys)
    share = form.window / w.sizes[keys] if form.window else 0.5 if form.causal else 1.0
    scores = w.tensor("scores", dims, form.softmax_dtype, narrow=COMPUTE)
    exponentials = w.tensor("exponentials", dims, form.softmax_dtype)
    w.einsum("scores", q, k, scores, share=share)
    probs = w.pointwise(
        "softmax",
        (scores,),
        w.tensor("probs", dims),
        SOFTMAX_FLOPS,
        over=(keys,),
        residuals=(exponentials,),
        function=function("softmax", causal=form.causal, window=form.window, width=width),
    )
    if form.dropout:
        probs = dropout(w, "probs", probs)
    return w.einsum("context", probs, v, _context(w, q, v), share=share)


def _repeated(w: GraphWriter, q: Tensor, t: Tensor) -> Tensor:
    """Return keys or values, repeated to all heads if they have more than one head, but fewer."""
    heads, own = q.dims[2], t.dims[2]
    if own == heads or w.sizes[own] == 1:
        return t
    return w.pointwise(
        f"{t.short}_repeat",
        (t,),
        w.tensor(f"{t.short}_repeated", (*t.dims[:2], heads, t.dims[3])),
        1.0,
        keeps="",
        repeats=((own, heads),),
        function=REPEAT,
    )


@checked_piece
def relative_attention(w: GraphWriter, x: Tokens, form: AttentionForm) -> Tensor:
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
    exponentials = w.tensor("exponentials", dims)
    probs = w.pointwise(
        "softmax", (scores,), w.tensor("probs", dims), SOFTMAX_FLOPS,
        over=(keys,), residuals=(exponentials,), function=of,
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

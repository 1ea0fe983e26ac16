"""The transformer, decoder or encoder: one builder for every dense one.

Written forward only, over named dimensions. The gradient, the recomputation, the sharding and the
memory follow from it.
"""

from dataclasses import dataclass, fields

from tpusim.errors import ModelError
from tpusim.graph import (
    COMPUTE,
    Attention,
    Einsum,
    Gather,
    Graph,
    Op,
    Pointwise,
    Role,
    Scan,
    Tensor,
)

NORM_FLOPS = 6.0
ROTARY_FLOPS = 6.0
SOFTMAX_FLOPS = 10.0
ACTIVATION_FLOPS = {"relu": 1.0, "gelu": 14.0, "silu": 10.0}
"""Vector operations an element, transcendental functions at eight each. Assumed: counted from the
formulas (a norm squares, adds, scales twice and converts; a softmax subtracts, exponentiates,
adds and divides); halving or doubling them moves the flagship's step by less than 1 %."""

_CHOICES = {
    "kind": ("decoder", "encoder"),
    "activation": tuple(ACTIVATION_FLOPS),
    "attention": ("flash", "dot"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The dimensions of a dense transformer.

    kv_heads: fewer than `heads` for grouped-query attention, 1 for multi-query.
    gated: the MLP has two input matrices, the product of which goes on.
    parallel: attention and MLP read the same norm and are added together (PaLM, GPT-J).
    attention: `flash` is a fused kernel, `dot` writes the scores to HBM.
    """

    name: str = "transformer"
    kind: str = "decoder"
    layers: int
    embed: int
    mlp: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int
    gated: bool = True
    activation: str = "silu"
    parallel: bool = False
    tied_embeddings: bool = False
    rotary: bool = True
    attention: str = "flash"

    def __post_init__(self) -> None:
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self._derived_head_dim())
        for field in fields(self):
            self._check(field.name, getattr(self, field.name))
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{self.name}: {self.heads} heads cannot share {self.kv_heads} K/V heads evenly; "
                f"write a kv_heads that divides {self.heads}"
            )

    def _derived_head_dim(self) -> int:
        if self.heads < 1 or self.embed % self.heads:
            raise ModelError(
                f"{self.name}: embed {self.embed} does not divide into {self.heads} heads; "
                "give head_dim"
            )
        return self.embed // self.heads

    def _check(self, key: str, value: object) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ModelError(f"{self.name}: {key} is {value}; it must be at least 1")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise ModelError(
                f"{self.name}: {key} is {value!r}; write one of {', '.join(_CHOICES[key])}"
            )

    @property
    def causal(self) -> bool:
        """A decoder's query sees the keys before it only."""
        return self.kind == "decoder"

    @property
    def parameter_count(self) -> int:
        """How many weights the model has."""
        return self.graph(batch=1, seq_len=1).parameter_count

    def graph(self, *, batch: int, seq_len: int) -> Graph:
        """The forward pass and the loss, for `batch` sequences of `seq_len` tokens."""
        dims = {
            "batch": batch, "seq": seq_len, "kv_seq": seq_len, "embed": self.embed,
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "mlp": self.mlp, "vocab": self.vocab,
        }  # fmt: skip
        return Graph(self.name, tuple(dims.items()), _model_ops(self), _LOSS)


_TOKEN = ("batch", "seq")
_RESIDUAL = (*_TOKEN, "embed")
_LOSS = Tensor("loss", _TOKEN, dtype="f32")


def _model_ops(m: Transformer) -> tuple[Op, ...]:
    ids = Tensor("ids", _TOKEN, Role.INPUT, "s32")
    table = Tensor("embedding", ("vocab", "embed"), Role.PARAM)
    head = table if m.tied_embeddings else Tensor("head", ("embed", "vocab"), Role.PARAM)
    first, last = Tensor("embedded", _RESIDUAL), Tensor("layers_out", _RESIDUAL)
    layer_in, layer_out = Tensor("layer/layer_in", _RESIDUAL), Tensor("layer/layer_out", _RESIDUAL)
    logits = Tensor("logits", (*_TOKEN, "vocab"))
    normed = Tensor("final_norm", _RESIDUAL)
    return (
        Gather("embed", table, ids, first, "vocab"),
        Scan("layers", m.layers, _layer(m, layer_in, layer_out),
             ((first, layer_in, layer_out, last),)),
        _norm("final_norm", last, normed),
        Einsum("logits", normed, head, logits),
        Pointwise("loss", (logits, ids), (_LOSS,), SOFTMAX_FLOPS, over=("vocab",)),
    )  # fmt: skip


def _layer(m: Transformer, x: Tensor, out: Tensor) -> tuple[Op, ...]:
    """One layer: attention and MLP, one after the other or side by side."""
    attn_in, projected = Tensor("layer/attn_norm", _RESIDUAL), Tensor("layer/out", _RESIDUAL)
    mlp_out = Tensor("layer/mlp_out", _RESIDUAL)
    attention = (_norm("layer/attn_norm", x, attn_in), *_attention(m, attn_in, projected))
    if m.parallel:
        return (*attention, *_mlp(m, attn_in, mlp_out),
                _add("layer/layer_out", (x, projected, mlp_out), out))  # fmt: skip
    mid, mlp_in = Tensor("layer/mid", _RESIDUAL), Tensor("layer/mlp_norm", _RESIDUAL)
    return (
        *attention,
        _add("layer/mid", (x, projected), mid),
        _norm("layer/mlp_norm", mid, mlp_in),
        *_mlp(m, mlp_in, mlp_out),
        _add("layer/layer_out", (mid, mlp_out), out),
    )


def _attention(m: Transformer, x: Tensor, out: Tensor) -> tuple[Op, ...]:
    kv_head = "heads" if m.kv_heads == m.heads else "kv_heads"
    q = Tensor("layer/q", (*_TOKEN, "heads", "head_dim"))
    k, v = (Tensor(f"layer/{name}", (*_TOKEN, kv_head, "head_dim")) for name in "kv")
    projections = tuple(
        Einsum(f"layer/w{tensor.short}", x, _weight(f"w{tensor.short}", "embed", *tensor.dims[2:]),
               tensor)
        for tensor in (q, k, v)
    )  # fmt: skip
    rotations: tuple[Op, ...] = ()
    if m.rotary:
        q_turned, k_turned = (Tensor(f"{t.name}_rotary", t.dims) for t in (q, k))
        rotations = tuple(
            Pointwise(
                f"layer/{t.short}_rotary", (t,), (turned,), ROTARY_FLOPS, keeps="", alone=True
            )
            for t, turned in ((q, q_turned), (k, k_turned))
        )
        q, k = q_turned, k_turned
    context = Tensor("layer/context", (*_TOKEN, "heads", "head_dim"))
    core = (_flash if m.attention == "flash" else _dot)(m, q, k, v, context)
    (attended,) = core[-1].outputs
    return (
        *projections, *rotations, *core,
        Einsum("layer/wo", attended, _weight("wo", "heads", "head_dim", "embed"), out),
    )  # fmt: skip


def _keys(t: Tensor) -> Tensor:
    """The tensor with its sequence called `kv_seq`."""
    return t.view(("batch", "kv_seq", *t.dims[2:]))


def _flash(m: Transformer, q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> tuple[Op, ...]:
    """A fused kernel; it wants heads before tokens, so its operands and its result are copied.

    Compiled programs spend 0.9 to 3.5 % of their cycles on these copies (MaxText on v5e, v5p and
    v6e, libtpu 0.0.11.1).
    """
    given = tuple(
        Tensor(f"layer/{name}_kernel", t.dims) for name, t in zip("qkv", (q, k, v), strict=True)
    )
    attended = Tensor("layer/attended", context.dims)
    q_in, k_in, v_in = given
    return (
        _copy("layer/kernel_in", (q, k, v), given),
        Attention("layer/attention", q_in, _keys(k_in), _keys(v_in), context, m.causal),
        _copy("layer/kernel_out", (context,), (attended,)),
    )


def _copy(name: str, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> Op:
    return Pointwise(name, given, made, 0.0, keeps="", alone=True)


def _dot(m: Transformer, q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> tuple[Op, ...]:
    """Attention as XLA runs it: scores, softmax and weighted sum through HBM, causal ones whole."""
    repeats: tuple[Op, ...] = ()
    if 1 < m.kv_heads < m.heads:
        wide = tuple(Tensor(f"{t.name}_repeated", (*_TOKEN, "heads", "head_dim")) for t in (k, v))
        repeats = tuple(
            Pointwise(f"layer/{t.short}_repeat", (t,), (w,), 1.0, keeps="",
                      repeats=(("kv_heads", "heads"),))
            for t, w in zip((k, v), wide, strict=True)
        )  # fmt: skip
        k, v = wide
    share = 0.5 if m.causal else 1.0
    scores, probs = (
        Tensor(f"layer/{name}", ("batch", "heads", "seq", "kv_seq")) for name in ("scores", "probs")
    )
    return (
        *repeats,
        Einsum("layer/scores", q, _keys(k), scores, share),
        Pointwise("layer/softmax", (scores,), (probs,), SOFTMAX_FLOPS, over=("kv_seq",),
                  keeps="outputs"),
        Einsum("layer/context", probs, _keys(v), context, share),
    )  # fmt: skip


def _mlp(m: Transformer, x: Tensor, out: Tensor) -> tuple[Op, ...]:
    hidden_dims = (*_TOKEN, "mlp")
    names = ("mlp_in_0", "mlp_in_1") if m.gated else ("mlp_in",)
    ins = tuple(Tensor(f"layer/{name}", hidden_dims) for name in names)
    hidden = Tensor("layer/mlp_hidden", hidden_dims)
    weights = ("wi_0", "wi_1") if m.gated else ("wi",)
    return (
        *(Einsum(f"layer/{w}", x, _weight(w, "embed", "mlp"), t)
          for w, t in zip(weights, ins, strict=True)),
        Pointwise(f"layer/{m.activation}", ins, (hidden,),
                  ACTIVATION_FLOPS[m.activation] + len(ins) - 1),
        Einsum("layer/wo_mlp", hidden, _weight("wo_mlp", "mlp", "embed"), out),
    )  # fmt: skip


def _norm(name: str, x: Tensor, out: Tensor) -> Op:
    scale = Tensor(f"{name}_scale", ("embed",), Role.PARAM)
    return Pointwise(name, (x, scale), (out,), NORM_FLOPS, over=("embed",))


def _add(name: str, terms: tuple[Tensor, ...], out: Tensor) -> Op:
    return Pointwise(name, terms, (out,), float(len(terms) - 1), linear=True, keeps="")


def _weight(name: str, *dims: str) -> Tensor:
    return Tensor(f"layer/{name}", dims, Role.PARAM, COMPUTE)

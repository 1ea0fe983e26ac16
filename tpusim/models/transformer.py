"""The transformer, decoder or encoder: one builder for every dense one.

Written forward only, over named dimensions. The gradient, the recomputation, the sharding and the
memory follow from it.
"""

from dataclasses import dataclass, fields
from itertools import pairwise

from tpusim.errors import ModelError
from tpusim.graph import COMPUTE, Einsum, Gather, Graph, Op, Pointwise, Role, Scan, Tensor
from tpusim.models.block import ACTIVATION_FLOPS, SOFTMAX_FLOPS, Block, block_ops
from tpusim.models.latent import latent_dims
from tpusim.models.parts import RESIDUAL, TOKEN, norm

_CHOICES = {
    "kind": ("decoder", "encoder"),
    "activation": tuple(ACTIVATION_FLOPS),
    "attention": ("flash", "dot"),
    "softmax_dtype": (COMPUTE, "f32"),
}


_LATENT_ONLY = ("q_rank", "rope_dim", "v_head_dim")
_MAY_BE_NONE = ("window", "global_every", "kv_rank", *_LATENT_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The dimensions of a dense transformer.

    kv_heads: fewer than `heads` for grouped-query attention, 1 for multi-query.
    gated: the MLP has two input matrices, the product of which goes on.
    parallel: attention and MLP read the same norm and are added together (PaLM, GPT-J).
    post_norms: what attention and MLP make is normed before it is added (Gemma 2 and 3).
    qk_norm: queries and keys are normed over `head_dim`, with one scale for all heads (Qwen3).
    attention: `flash` is a fused kernel, `dot` writes the scores to HBM.
    softmax_dtype: where attention is `dot`, the dtype of the scores that the softmax takes: the
        plan's (`compute`), or `f32`. A kernel keeps them on the chip.
    window: keys that a query sees, 0 for all of them. global_every: where there is a window, each
        so many-th layer sees all keys (Gemma 3: 6), 0 for none (Mistral). Layers that do not fill
        the last pattern see the window.
    kv_rank: where attention is latent (DeepSeek), the width of the latent that keys and values are
        brought up from; 0 for attention without one. q_rank: that of the queries', 0 where they
        are projected at once. head_dim is then the whole width of queries and keys, rope_dim the
        part of it that is rotated, and v_head_dim the width of the values (0: head_dim).
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
    post_norms: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    rotary: bool = True
    attention: str = "flash"
    softmax_dtype: str = COMPUTE
    window: int = 0
    global_every: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    v_head_dim: int = 0

    def __post_init__(self) -> None:
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self._derived_head_dim())
        if self.kv_rank and not self.v_head_dim:
            object.__setattr__(self, "v_head_dim", self.head_dim)
        for field in fields(self):
            self._check(field.name, getattr(self, field.name))
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{self.name}: {self.heads} heads cannot share {self.kv_heads} K/V heads evenly; "
                f"write a kv_heads that divides {self.heads}"
            )
        self._check_latent()

    def _check_latent(self) -> None:
        fault = _latent_fault(self)
        if fault:
            raise ModelError(f"{self.name}: {fault}")

    def _derived_head_dim(self) -> int:
        if self.heads < 1 or self.embed % self.heads:
            raise ModelError(
                f"{self.name}: embed {self.embed} does not divide into {self.heads} heads; "
                "give head_dim"
            )
        return self.embed // self.heads

    def _check(self, key: str, value: object) -> None:
        least = 0 if key in _MAY_BE_NONE else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise ModelError(f"{self.name}: {key} is {value}; it must be at least {least}")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise ModelError(
                f"{self.name}: {key} is {value!r}; write one of {', '.join(_CHOICES[key])}"
            )

    @property
    def causal(self) -> bool:
        """A decoder's query sees the keys before it only."""
        return self.kind == "decoder"

    @property
    def period(self) -> int:
        """Layers after which the pattern of windows repeats: those of one trip of the scan."""
        return max(self.global_every, 1) if self.window else 1

    @property
    def parameter_count(self) -> int:
        """How many weights the model has."""
        return self.graph(batch=1, seq_len=1).parameter_count

    def graph(self, *, batch: int, seq_len: int, logits_dtype: str = COMPUTE) -> Graph:
        """The forward pass and the loss, for `batch` sequences of `seq_len` tokens."""
        dims = {
            "batch": batch, "seq": seq_len, "kv_seq": seq_len, "embed": self.embed,
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "mlp": self.mlp, "vocab": self.vocab,
            **latent_dims(
                self.head_dim, self.q_rank, self.kv_rank, self.rope_dim, self.v_head_dim
            ),
        }  # fmt: skip
        ops = _model_ops(self, seq_len, logits_dtype)
        return Graph(self.name, tuple(dims.items()), ops, _LOSS)


def _latent_fault(m: Transformer) -> str:
    """What is wrong with the fields of latent attention, and what to write instead."""
    alone = next((key for key in _LATENT_ONLY if getattr(m, key)), "")
    if not m.kv_rank:
        return f"{alone} is for latent attention; give kv_rank, or leave it out" if alone else ""
    if not 0 < m.rope_dim < m.head_dim:
        return (
            f"rope_dim is {m.rope_dim}, but it is the part of head_dim ({m.head_dim}) that latent "
            f"attention rotates; write a number from 1 to {m.head_dim - 1}, or give head_dim"
        )
    if m.kv_heads != m.heads:
        return (
            f"kv_heads is {m.kv_heads}, but with latent attention (kv_rank) each of the {m.heads} "
            "heads has keys and values of its own; leave kv_heads out"
        )
    if m.qk_norm or not m.rotary:
        said = "qk_norm" if m.qk_norm else "rotary = false"
        return f"{said} does not go with latent attention (kv_rank); leave one of the two out"
    return ""


_LOSS = Tensor("loss", TOKEN, dtype="f32")


def _model_ops(m: Transformer, seq_len: int, logits_dtype: str) -> tuple[Op, ...]:
    ids = Tensor("ids", TOKEN, Role.INPUT, "s32")
    table = Tensor("embedding", ("vocab", "embed"), Role.PARAM)
    head = table if m.tied_embeddings else Tensor("head", ("embed", "vocab"), Role.PARAM)
    first = Tensor("embedded", RESIDUAL)
    scans = _scans(m, seq_len, first)
    (last,) = scans[-1].outputs
    logits = Tensor("logits", (*TOKEN, "vocab"), dtype=logits_dtype)
    normed = Tensor("final_norm", RESIDUAL)
    return (
        Gather("embed", table, ids, first, "vocab"),
        *scans,
        norm("final_norm", last, normed),
        Einsum("logits", normed, head, logits),
        Pointwise("loss", (logits, ids), (_LOSS,), SOFTMAX_FLOPS, over=("vocab",)),
    )  # fmt: skip


def _scans(m: Transformer, seq_len: int, first: Tensor) -> tuple[Scan, ...]:
    """A scan over whole patterns of layers, and one over what is left (Gemma 3 27B: 2 of 62)."""
    patterns, left = divmod(m.layers, m.period)
    scans: list[Scan] = []
    for name, trips, length in (("layer", patterns, m.period), ("last_layer", left, 1)):
        if trips:
            x, out = (Tensor(f"{name}/layer_{end}", RESIDUAL) for end in ("in", "out"))
            made = Tensor(f"{name}s_out", RESIDUAL)
            body = _layers(m, seq_len, name, length, x, out)
            scans.append(Scan(f"{name}s", trips, body, ((first, x, out, made),)))
            first = made
    return tuple(scans)


def _layers(
    m: Transformer, seq_len: int, name: str, length: int, x: Tensor, out: Tensor
) -> tuple[Op, ...]:
    """The layers of one trip, one after the other; the last of a pattern sees all keys."""
    if length == 1:
        return block_ops(_block(m, name, m.window, seq_len), x, out)
    inputs = [x, *(Tensor(f"{name}/{i}/layer_in", RESIDUAL) for i in range(1, length)), out]
    ops: list[Op] = []
    for i, (given, made) in enumerate(pairwise(inputs)):
        window = 0 if i == length - 1 else m.window
        ops.extend(block_ops(_block(m, f"{name}/{i}", window, seq_len), given, made))
    return tuple(ops)


def _block(m: Transformer, name: str, window: int, seq_len: int) -> Block:
    narrow = 0 < window < seq_len
    whole_share = 0.5 if m.causal else 1.0
    return Block(
        name=name,
        kv_head="heads" if m.kv_heads == m.heads else "kv_heads",
        repeated=1 < m.kv_heads < m.heads,
        gated=m.gated,
        activation=m.activation,
        parallel=m.parallel,
        post_norms=m.post_norms,
        qk_norm=m.qk_norm,
        softmax_dtype=m.softmax_dtype,
        rotary=m.rotary,
        fused=m.attention == "flash",
        causal=m.causal,
        window=window if narrow else 0,
        share=window / seq_len if narrow else whole_share,
        latent=m.kv_rank > 0,
        low_rank_queries=m.q_rank > 0,
    )

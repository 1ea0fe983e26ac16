"""Latent attention: queries, keys and values that are expanded from a narrow latent.

DeepSeek-V2, arXiv:2405.04434, section 2.1, and DeepSeek-V3, arXiv:2412.19437, section 2.1.1. This
is the form of training: the keys and values of all heads are expanded, and the kernel is that of
any attention, with values of another width than queries and keys, as JAX's splash attention takes
them. A server keeps the latents alone (`absorbed_attention`).
"""

from dataclasses import dataclass, replace

from tpusim.base.errors import ModelError
from tpusim.graph import (
    LATENT_HEADS,
    GraphWriter,
    Pointwise,
    Tensor,
    Tokens,
    checked_piece,
    function,
)
from tpusim.models.checks import check_types, check_values
from tpusim.models.pieces.attention import ROTARY_FLOPS, AttentionForm, projected, rotary, seen
from tpusim.models.pieces.norms import NORM_FLOPS, norm, norm_op
from tpusim.models.self_attention import SelfAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Latent attention; the model's `head_dim` is then the whole width of queries and keys.

    q_rank: width of the queries' latent; 0 for none.
    kv_rank: width of the latent of keys and values; 0 for none.
    rope_dim: rotated part of `head_dim`.
    v_head_dim: width of the values, of any attention; 0 for `head_dim`.
    """

    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    v_head_dim: int = 0

    def __post_init__(self) -> None:
        check_types(self, "latent.")
        check_values(self, {}, "latent.")

    def check(self, heads: int, kv_heads: int, head_dim: int, attention: SelfAttention) -> None:
        """Raise ModelError for latent attention that cannot be, and for its keys without it."""
        if fault := self._fault(heads, kv_heads, head_dim, attention):
            raise ModelError(fault)

    def _fault(self, heads: int, kv_heads: int, head_dim: int, attention: SelfAttention) -> str:
        """Return the contradiction, and what to write instead; empty where there is none."""
        if not self.kv_rank:
            alone = [key for key in ("q_rank", "rope_dim") if getattr(self, key)]
            said = "is for latent attention; give latent.kv_rank, or leave it out"
            return f"latent.{alone[0]} {said}" if alone else ""
        if not 0 < self.rope_dim < head_dim:
            return (
                f"latent.rope_dim is {self.rope_dim}, but it is the part of head_dim ({head_dim}) "
                f"that latent attention rotates; write a number from 1 to {head_dim - 1}, or give "
                "head_dim"
            )
        if kv_heads != heads:
            return (
                f"kv_heads is {kv_heads}, but with latent attention (latent.kv_rank) each of the "
                f"{heads} heads has keys and values of its own; leave kv_heads out"
            )
        if attention.qk_norm or not attention.rotary:
            key = "attention.qk_norm" if attention.qk_norm else "attention.rotary = false"
            return f"{key} does not go with latent attention (latent.kv_rank); leave one out"
        return ""

    def dims(self, head_dim: int) -> dict[str, int]:
        """Return the dimensions that latent attention adds to a graph; none where `kv_rank` is 0.

        `kv_down` is the width to which the residual is projected, the latent and the rotated part
        of the keys; `kv_up` is the width to which the latent is expanded for each head, the other
        part of the keys and the values.
        """
        if not self.kv_rank:
            return {}
        queries = {"q_rank": self.q_rank} if self.q_rank else {}
        return queries | {
            "kv_rank": self.kv_rank,
            "rope_dim": self.rope_dim,
            "v_head_dim": self.v_head_dim,
            "kv_down": self.kv_rank + self.rope_dim,
            "kv_up": head_dim - self.rope_dim + self.v_head_dim,
        }


@checked_piece
def latent_projections(
    w: GraphWriter, x: Tokens, *, low_rank_queries: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the operations that make queries, keys and values, and return those three."""
    return (_queries(w, x, low_rank_queries), *_keys_and_values(w, x))


def _queries(w: GraphWriter, x: Tensor, low_rank: bool) -> Tensor:
    """Return the queries of each head; the rotation of a part passes all of them through HBM."""
    if low_rank:
        down = w.dense("wq_a", x, "q_rank", out="q_down")
        latent = norm(w, "q_latent", down, "q_rank")
        q = w.dense("wq_b", latent, "heads", "head_dim", out="q")
    else:
        q = w.dense("wq", x, "heads", "head_dim", out="q")
    return rotary(w, "q_rotary", q, "rope_dim")


def _keys_and_values(w: GraphWriter, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and values of each head; all heads have one rotated part of the keys."""
    tokens = x.dims[:-1]
    down = w.dense("wkv_a", x, "kv_down", out="kv_down")
    latent = w.tensor("kv_latent", (*tokens, "kv_rank"))
    rope = w.tensor("k_rope", (*tokens, "rope_dim"))
    w.write(_latent_and_rope(w, down, latent, rope))
    up = w.dense("wkv_b", latent, "heads", "kv_up", out="kv_up")
    k = w.tensor("k", (*tokens, "heads", "head_dim"))
    v = w.tensor("v", (*tokens, "heads", "v_head_dim"))
    split = function("keys_and_values", value_width=w.dim("v_head_dim"))
    name = f"{w.prefix}kv"
    w.write(Pointwise(name, (up, rope), (k, v), 0.0, keeps="", alone=True, function=split))
    return k, v


def _latent_and_rope(w: GraphWriter, down: Tensor, latent: Tensor, rope: Tensor) -> Pointwise:
    """Return the norm of the latent and the rotation of the rest, which compute side by side.

    One group, so that the gradients of the two parts are concatenated where they are made, and not
    added up.
    """
    normed = norm_op(down.view(latent.dims), latent, latent.dims[-1])
    return replace(
        normed,
        inputs=(down, *normed.inputs[1:]),
        outputs=(latent, rope),
        flops=max(NORM_FLOPS, ROTARY_FLOPS),
        function=function("norm_and_rotary", width=w.dim("rope_dim")),
    )


@checked_piece
def absorbed_attention(
    w: GraphWriter,
    x: Tokens,
    form: AttentionForm,
    *,
    head_dim: int,
    low_rank_queries: bool,
    out: str,
) -> Tensor:
    """Write latent attention over the latents themselves; return its result, [..., embed].

    The matrix that expands latents to keys is multiplied with the queries instead, and that of the
    values with the result of attention, so that a cache holds one latent and one rotated key per
    token, whatever the number of heads (DeepSeek-V2, arXiv:2405.04434, section 2.1.2).

    x: [batch, sequence, embed].
    head_dim: width of queries, of which `rope_dim` is rotated.
    """
    tokens = x.dims[:-1]
    w.size(**{LATENT_HEADS: 1, "nope_dim": head_dim - w.extent("rope_dim")})
    q = _queries(w, x, low_rank_queries)
    own, rotated = (w.tensor(name, (*tokens, "heads", dim)) for name, dim in _QUERY_PARTS)
    w.write(_moved(w, "q_parts", (q,), (own, rotated)))
    up = w.weight("wk_b", "heads", "nope_dim", "kv_rank")
    absorbed = w.einsum("wk_b", own, up, w.tensor("q_latents", (*tokens, "heads", "kv_rank")))
    query = w.tensor("q_absorbed", (*tokens, "heads", "kv_down"))
    down = w.dense("wkv_a", x, "kv_down", out="kv_down")
    latent, rope = w.tensor("kv_latent", (*tokens, "kv_rank")), w.tensor("k_rope", _rope(tokens))
    key = w.tensor("k_latent", (*tokens, LATENT_HEADS, "kv_down"))
    value = w.tensor("v_latent", (*tokens, LATENT_HEADS, "kv_rank"))
    w.write(
        _moved(w, "q_joined", (absorbed, rotated), (query,)),
        _latent_and_rope(w, down, latent, rope),
        _moved(w, "kv_joined", (latent, rope), (key, value)),
    )
    context = seen(w, query, key, value, form)
    expand = w.weight("wv_b", "heads", "kv_rank", "v_head_dim")
    values = w.tensor("values", (*tokens, "heads", "v_head_dim"))
    return projected(w, w.einsum("wv_b", context, expand, values), x.dims[-1], form, out)


_QUERY_PARTS = (("q_nope", "nope_dim"), ("q_rope", "rope_dim"))


def _rope(tokens: tuple[str, ...]) -> tuple[str, ...]:
    return (*tokens, "rope_dim")


def _moved(
    w: GraphWriter, name: str, given: tuple[Tensor, ...], made: tuple[Tensor, ...]
) -> Pointwise:
    """Return a group that only moves its operands."""
    return Pointwise(f"{w.prefix}{name}", given, made, 0.0, keeps="", alone=True)

"""Latent attention: queries, keys and values that are expanded from a narrow latent.

DeepSeek-V2, arXiv:2405.04434, section 2.1, and DeepSeek-V3, arXiv:2412.19437, section 2.1.1. This
is the form of training: the keys and values of all heads are expanded, and the kernel is that of
any attention, with values of another width than queries and keys, as JAX's splash attention takes
them. Keeping the latent alone, as inference does, has no part in a training step.
"""

from dataclasses import dataclass, replace

from tpusim.base.errors import ModelError
from tpusim.graph import Einsum, Op, Pointwise, Tensor, function
from tpusim.models.checks import check_types, check_values
from tpusim.models.parts import NORM_FLOPS, ROTARY_FLOPS, TOKEN, norm, weight
from tpusim.models.self_attention import SelfAttention

HEAD = (*TOKEN, "heads", "head_dim")
UP = (*TOKEN, "heads", "kv_up")
VALUE = (*TOKEN, "heads", "v_head_dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Latent attention; the model's `head_dim` is then the whole width of queries and keys.

    q_rank: width of the latent of the queries; 0 where they are projected at once.
    kv_rank: width of the latent of keys and values; 0 for attention without one.
    rope_dim: the part of `head_dim` that is rotated.
    v_head_dim: width of the values; 0 for `head_dim`.
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
            alone = [key for key in ("q_rank", "rope_dim", "v_head_dim") if getattr(self, key)]
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


def projections(
    of: str, x: Tensor, low_rank_queries: bool
) -> tuple[tuple[Op, ...], Tensor, Tensor, Tensor]:
    """Return the operations that make queries, keys and values, and those three, for the kernel."""
    queries, q = _queries(of, x, low_rank_queries)
    keys, k, v = _keys_and_values(of, x)
    return (*queries, *keys), q, k, v


def _queries(of: str, x: Tensor, low_rank: bool) -> tuple[tuple[Op, ...], Tensor]:
    """Return the queries of each head; the rotation of a part passes all of them through HBM."""
    q, turned = Tensor(f"{of}/q", HEAD), Tensor(f"{of}/q_rotary", HEAD)
    rotary = Pointwise(
        turned.name,
        (q,),
        (turned,),
        ROTARY_FLOPS,
        keeps="",
        alone=True,
        function=function("rotary", width="rope_dim"),
    )
    if not low_rank:
        return (Einsum(f"{of}/wq", x, weight(of, "wq", "embed", *HEAD[2:]), q), rotary), turned
    down, latent = (Tensor(f"{of}/{name}", (*TOKEN, "q_rank")) for name in ("q_down", "q_latent"))
    ops = (
        Einsum(f"{of}/wq_a", x, weight(of, "wq_a", "embed", "q_rank"), down),
        norm(latent.name, down, latent, "q_rank"),
        Einsum(f"{of}/wq_b", latent, weight(of, "wq_b", "q_rank", *HEAD[2:]), q),
        rotary,
    )
    return ops, turned


def _keys_and_values(of: str, x: Tensor) -> tuple[tuple[Op, ...], Tensor, Tensor]:
    """Return the keys and values of each head; all heads have one rotated part of the keys."""
    down, latent, rope = (
        Tensor(f"{of}/{name}", (*TOKEN, dim))
        for name, dim in (("kv_down", "kv_down"), ("kv_latent", "kv_rank"), ("k_rope", "rope_dim"))
    )
    up = Tensor(f"{of}/kv_up", UP)
    k, v = Tensor(f"{of}/k", HEAD), Tensor(f"{of}/v", VALUE)
    ops = (
        Einsum(f"{of}/wkv_a", x, weight(of, "wkv_a", "embed", "kv_down"), down),
        _latent_and_rope(down, latent, rope),
        Einsum(f"{of}/wkv_b", latent, weight(of, "wkv_b", "kv_rank", *UP[2:]), up),
        Pointwise(
            f"{of}/kv",
            (up, rope),
            (k, v),
            0.0,
            keeps="",
            alone=True,
            function=function("keys_and_values", value_width="v_head_dim"),
        ),
    )
    return ops, k, v


def _latent_and_rope(down: Tensor, latent: Tensor, rope: Tensor) -> Pointwise:
    """Return the norm of the latent and the rotation of the rest, which compute side by side.

    One group, so that the gradients of the two parts are concatenated where they are made, and not
    added up.
    """
    normed = norm(latent.name, down.view(latent.dims), latent, "kv_rank")
    return replace(
        normed,
        inputs=(down, *normed.inputs[1:]),
        outputs=(latent, rope),
        flops=max(NORM_FLOPS, ROTARY_FLOPS),
        function=function("norm_and_rotary", width="rope_dim"),
    )

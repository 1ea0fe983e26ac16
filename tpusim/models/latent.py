"""Latent attention: queries, keys and values that are brought up from a narrow latent.

DeepSeek-V2, arXiv:2405.04434, section 2.1, and DeepSeek-V3, arXiv:2412.19437, section 2.1.1. This
is the form of training: the keys and values of all heads are expanded, and the kernel is that of
any attention, with values of another width than queries and keys, as JAX's splash attention takes
them. What only inference does, keeping the latent alone, has no part in a step.
"""

from dataclasses import replace

from tpusim.graph import Einsum, Op, Pointwise, Tensor
from tpusim.models.parts import NORM_FLOPS, ROTARY_FLOPS, TOKEN, norm, weight

HEAD = (*TOKEN, "heads", "head_dim")
UP = (*TOKEN, "heads", "kv_up")
VALUE = (*TOKEN, "heads", "v_head_dim")


def latent_dims(
    head_dim: int, q_rank: int, kv_rank: int, rope_dim: int, v_head_dim: int
) -> dict[str, int]:
    """The dimensions that latent attention adds to a graph; none where `kv_rank` is 0.

    `kv_down` is what the residual is brought down to, the latent and the part of the keys that is
    rotated; `kv_up` what the latent is brought up to, for each head the other part of the keys and
    the values.
    """
    if not kv_rank:
        return {}
    queries = {"q_rank": q_rank} if q_rank else {}
    return queries | {
        "kv_rank": kv_rank, "rope_dim": rope_dim, "v_head_dim": v_head_dim,
        "kv_down": kv_rank + rope_dim, "kv_up": head_dim - rope_dim + v_head_dim,
    }  # fmt: skip


def projections(
    of: str, x: Tensor, low_rank_queries: bool
) -> tuple[tuple[Op, ...], Tensor, Tensor, Tensor]:
    """The operations that make queries, keys and values, ready for the kernel, and those three."""
    queries, q = _queries(of, x, low_rank_queries)
    keys, k, v = _keys_and_values(of, x)
    return (*queries, *keys), q, k, v


def _queries(of: str, x: Tensor, low_rank: bool) -> tuple[tuple[Op, ...], Tensor]:
    """Queries of each head, a part of which is rotated: the whole passes through HBM for it."""
    q, turned = Tensor(f"{of}/q", HEAD), Tensor(f"{of}/q_rotary", HEAD)
    rotary = Pointwise(turned.name, (q,), (turned,), ROTARY_FLOPS, keeps="", alone=True)
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
    """Keys and values of each head; the rotated part of the keys is one for all heads."""
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
        Pointwise(f"{of}/kv", (up, rope), (k, v), 0.0, keeps="", alone=True),
    )
    return ops, k, v


def _latent_and_rope(down: Tensor, latent: Tensor, rope: Tensor) -> Pointwise:
    """The norm of the latent and the rotation of the rest, which compute side by side.

    One group, so that the gradients of the two parts are put side by side again where they are
    made, and not added up.
    """
    normed = norm(latent.name, down.view(latent.dims), latent, "kv_rank")
    return replace(
        normed,
        inputs=(down, *normed.inputs[1:]),
        outputs=(latent, rope),
        flops=max(NORM_FLOPS, ROTARY_FLOPS),
    )

"""Latent attention, as configs tell of it."""

from tpusim.models.hf.config import Config


def latent(config: Config, heads: int) -> dict[str, int]:
    """`head_dim`, the whole width of queries and keys, and the ranks and widths beside it.

    A `head_dim` in the config is the rotated part alone, and of no use here.
    """
    kv_heads = config.dims.get("num_key_value_heads")
    if kv_heads not in (None, heads):
        raise config.fault(
            f"num_key_value_heads is {kv_heads!r}, but with latent attention (kv_lora_rank) each "
            f"of the {heads} heads has keys and values of its own; write {heads}, or leave it out"
        )
    q_rank = config.count("q_lora_rank")
    rope_dim = config.needed("qk_rope_head_dim")
    return {
        "head_dim": config.needed("qk_nope_head_dim") + rope_dim,
        **({"q_rank": q_rank} if q_rank else {}),
        "kv_rank": config.needed("kv_lora_rank"),
        "rope_dim": rope_dim,
        "v_head_dim": config.needed("v_head_dim"),
    }

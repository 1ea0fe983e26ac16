"""The model of a config: its dimensions, and what its decoder block has besides."""

from typing import Any

from tpusim.maxtext.blocks import ACTIVATIONS, BLOCKS, CANNOT, Block
from tpusim.maxtext.config import Config
from tpusim.maxtext.file import shown
from tpusim.models import Transformer

_WINDOW_OF_ATTENTION = {"global": 0, "local_sliding": 1, "mla": 0, "full": 0}


def model_of(config: Config) -> Transformer:
    """The model; `ModelError` or `PlanError` with one sentence where there can be none."""
    block = _block(config)
    given = {
        "name": _name(config),
        **block.layer,
        **_sizes(config, block),
        **_mlp(config),
        **_windows(config, block),
        **_attention(config),
        **_latent(config),
        **_experts(config, block),
        "tied_embeddings": config.flag("logits_via_embedding"),
        "post_norms": _post_norms(config),
    }
    if block.qk_norm:
        given["qk_norm"] = config.flag("use_qk_norm")
    return Transformer(**given)


def _name(config: Config) -> str:
    name = config.text("model_name")
    return "maxtext" if name == "default" else name


def _block(config: Config) -> Block:
    name = config.text("decoder_block")
    if name in CANNOT:
        raise config.fault(f"decoder_block {name} cannot be simulated: it has {CANNOT[name]}")
    block: Block = config.choice("decoder_block", BLOCKS)
    return block


def scales(config: Config) -> tuple[int, int, int]:
    """The factors of embed, of heads and MLP, and of layers.

    Each doubling of `global_parameter_scale` goes to heads and MLP, then to embed, then to the
    layers, in turn (MaxText, pyconfig.py, get_individual_scales).
    """
    scale = config.size("global_parameter_scale")
    if scale & (scale - 1):
        raise config.fault(f"global_parameter_scale is {scale}; write a power of two")
    rounds, left = divmod(scale.bit_length() - 1, 3)
    return 2 ** (rounds + (left > 1)), 2 ** (rounds + (left > 0)), int(2**rounds)


def _sizes(config: Config, block: Block) -> dict[str, int]:
    embed, wide, deep = scales(config)
    heads = config.size("base_num_query_heads") * wide
    kv_heads = config.size("base_num_kv_heads") * wide
    if heads % kv_heads:
        raise config.fault(
            f"{heads} heads (base_num_query_heads) cannot share {kv_heads} K/V heads "
            f"(base_num_kv_heads) evenly; write a base_num_kv_heads that divides them"
        )
    return {
        "layers": config.size("base_num_decoder_layers") * deep * block.layers,
        "embed": config.size("base_emb_dim") * embed,
        "mlp": config.size("base_mlp_dim") * wide,
        "heads": heads, "kv_heads": kv_heads, "head_dim": config.size("head_dim"),
        "vocab": config.size("vocab_size"),
    }  # fmt: skip


def _mlp(config: Config) -> dict[str, Any]:
    """The activation, and whether a second matrix goes past it (`linear`)."""
    given = config.table["mlp_activations"]
    names = [name for name in given if name != "linear"]
    if len(names) != 1 or len(given) > 2 or names[0] not in ACTIVATIONS:
        raise config.fault(
            f"mlp_activations is {shown(given)}, which cannot be simulated; write one of "
            f"{', '.join(ACTIVATIONS)}, and linear besides where the MLP is gated"
        )
    return {"activation": ACTIVATIONS[names[0]], "gated": len(given) == 2}


def _windows(config: Config, block: Block) -> dict[str, int]:
    """The window of local layers: of those blocks that have them, or of all layers."""
    window = config.size("sliding_window_size", least=0)
    local = config.choice("attention_type", _WINDOW_OF_ATTENTION)
    if block.global_every < 0 and not local:
        return {}
    if not window:
        raise config.fault(
            "sliding_window_size is 0, but its decoder_block or attention_type has local layers; "
            "write the keys that they see, such as 4096"
        )
    return {"window": window, "global_every": max(block.global_every, 0)}


def _attention(config: Config) -> dict[str, str]:
    kinds = {"dot_product": "dot", "flash": "flash", "autoselected": "flash"}
    found = {"attention": str(config.choice("attention", kinds))}
    if found["attention"] == "dot" and config.flag("float32_logits"):
        found["softmax_dtype"] = "f32"
    return found


def _latent(config: Config) -> dict[str, int]:
    if config.text("attention_type") != "mla":
        return {}
    rope = config.size("qk_rope_head_dim")
    return {
        "head_dim": config.size("qk_nope_head_dim") + rope, "rope_dim": rope,
        "q_rank": config.size("q_lora_rank", least=0), "kv_rank": config.size("kv_lora_rank"),
        "v_head_dim": config.size("v_head_dim"),
    }  # fmt: skip


def _experts(config: Config, block: Block) -> dict[str, int]:
    experts = config.size("num_experts")
    if experts == 1:
        return {}
    if not block.moe:
        raise config.fault(
            f"num_experts is {experts}, but decoder_block {config.text('decoder_block')} has no "
            "experts; write one that has, such as mixtral"
        )
    given = {"experts": experts, "experts_per_token": config.size("num_experts_per_tok")}
    width, scale = config.table["base_moe_mlp_dim"], scales(config)[1]
    if width != -1 and config.size("base_moe_mlp_dim") != config.size("base_mlp_dim"):
        given["expert_mlp"] = width * scale
    if block.shared:
        width = config.size("base_mlp_dim") if width == -1 else width
        given["shared_mlp"] = width * scale * config.size("shared_experts", least=0)
        given["dense_layers"] = config.size("first_num_dense_layers", least=0)
    return given


def _post_norms(config: Config) -> bool:
    after = [config.flag(f"use_post_{part}_norm") for part in ("attn", "ffw")]
    if after[0] != after[1]:
        raise config.fault(
            "use_post_attn_norm and use_post_ffw_norm differ, which cannot be simulated; write "
            "both true or both false"
        )
    return after[0]

"""The model of a config: its dimensions and its decoder block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpusim.base.shown_value import shown
from tpusim.maxtext.config import MaxTextConfig
from tpusim.maxtext.shipped_tables import decoder_blocks, unsimulated, words
from tpusim.models import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderBlock:
    """The layers of a `decoder_block`.

    layer: flat keys of `Transformer` that no key gives.
    flags: the flat keys that a key of the config gives where it is true.
    reads: keys that not all blocks read.
    lacks: flags that its layers read and that cannot be simulated for them, and the feature.
    layers: layers of the model for each of the config's.
    pattern: of a window's layers, each so many-th sees all keys; the first of these numbers that
        divides the layers, or the first one. Empty where the block has no window.
    cycle: a scanned block has `inhomogeneous_layer_cycle_interval` layers, the pattern among them.
    attention_type: the `attention_type`s that its layers have; they read no other one.
    moe: the block has experts, if there is more than one.
    shared: the key of the width of its shared experts, where it has some.
    """

    layer: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reads: Sequence[str] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    layers: int = 1
    pattern: Sequence[int] = ()
    cycle: bool = False
    attention_type: Sequence[str] = ("global",)
    moe: bool = False
    shared: str = ""


def model_of(config: MaxTextConfig) -> Transformer:
    """Return the model. Raise ModelError or PlanError with one sentence if there is none."""
    block = block_of(config)
    sizes = _sizes(config, block)
    experts = _experts(config, block)
    given = {
        "name": _name(config),
        "post_norms": _post_norms(config, block),
        **block.layer,
        **_flags(config, block, experts=bool(experts)),
        **sizes,
        **_mlp(config),
        **_windows(config, block, sizes["layers"]),
        **_attention(config),
        **_latent(config),
        **experts,
        **_wide_layers(config, block),
        "layer_embed": _layer_embed(config, block),
        "positions": _positions(config),
        "dropout": config.table["dropout_rate"] if config.flag("enable_dropout") else 0.0,
        "fused_qkv": config.flag("fused_qkv"),
        "tied_embeddings": config.flag("logits_via_embedding"),
        "logit_cap": _logit_cap(config),
    }
    return Transformer(**given)


def _name(config: MaxTextConfig) -> str:
    name = config.text("model_name")
    return "maxtext" if name == "default" else name


def block_of(config: MaxTextConfig) -> DecoderBlock:
    """Return the decoder block. Raise PlanError with one sentence if it cannot be simulated."""
    name = config.text("decoder_block")
    if found := unsimulated("decoder_blocks").get(name):
        raise config.fault(
            f"decoder_block {name} cannot be simulated: it has {found}; write another one, such as "
            "llama2"
        )
    return DecoderBlock(**config.choice("decoder_block", decoder_blocks()))


def _flags(config: MaxTextConfig, block: DecoderBlock, *, experts: bool) -> dict[str, Any]:
    """Return the flat keys of the block's flags; `mlp_bias` and `routed_bias` are of experts."""
    for key, what in block.lacks.items():
        if config.flag(key):
            raise config.fault(
                f"{key} is true: {what} of decoder_block {config.text('decoder_block')} cannot be "
                f"simulated; write {key}=false"
            )
    found: dict[str, Any] = {}
    for key, given in block.flags.items():
        if config.flag(key) and (experts or key not in ("mlp_bias", "routed_bias")):
            found |= given
    return found


def _layer_embed(config: MaxTextConfig, block: DecoderBlock) -> int:
    """Return the width of the tables that layers have, if they have rows: the vocabulary."""
    width = _read_size(config, block, "hidden_size_per_layer_input")
    rows = config.size("vocab_size_per_layer_input", least=0)
    if not width or not rows:
        return 0
    if rows != config.size("vocab_size"):
        raise config.fault(
            f"vocab_size_per_layer_input is {rows}, but only tables of the vocabulary's "
            f"{config.size('vocab_size')} rows can be simulated; write vocab_size_per_layer_input="
            f"{config.size('vocab_size')}"
        )
    return width


def _positions(config: MaxTextConfig) -> int:
    """Return the rows of the table of learnt positions; 0 for none."""
    rows, tokens = config.size("trainable_position_size", least=-1), "max_target_length"
    if 0 < rows < config.size(tokens):
        raise config.fault(
            f"trainable_position_size is {rows}, but {tokens} {config.size(tokens)}; write a "
            f"trainable_position_size of at least {config.size(tokens)}, or -1 for none"
        )
    return max(rows, 0)


def _logit_cap(config: MaxTextConfig) -> float:
    """Return the bound of the logits; MaxText has it where the head is the table alone."""
    cap = float(config.table["final_logits_soft_cap"])
    if cap < 0:
        raise config.fault(
            f"final_logits_soft_cap is {cap:g}; write the bound of the logits, or 0 for none"
        )
    return cap if config.flag("logits_via_embedding") else 0.0


def _read_size(config: MaxTextConfig, block: DecoderBlock, key: str) -> int:
    """Return a size that not all blocks read; 0 for one that this block does not."""
    return config.size(key, least=0) if key in block.reads else 0


def scales(config: MaxTextConfig) -> tuple[int, int, int]:
    """Return the factors of embed, of heads and MLP, and of layers.

    Each doubling of `global_parameter_scale` goes to heads and MLP, then to embed, then to the
    layers, in turn (MaxText, pyconfig.py, get_individual_scales).
    """
    scale = config.size("global_parameter_scale")
    if scale & (scale - 1):
        raise config.fault(f"global_parameter_scale is {scale}; write a power of two")
    rounds, left = divmod(scale.bit_length() - 1, 3)
    return 2 ** (rounds + (left > 1)), 2 ** (rounds + (left > 0)), int(2**rounds)


def _sizes(config: MaxTextConfig, block: DecoderBlock) -> dict[str, int]:
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
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": config.size("head_dim"),
        "vocab": config.size("vocab_size"),
    }


def _mlp(config: MaxTextConfig) -> dict[str, Any]:
    """Return the activation, and True if a second matrix bypasses it (`linear`)."""
    given, known = config.table["mlp_activations"], words("mlp_activations")
    names = [name for name in given if name != "linear"]
    if len(names) != 1 or len(given) > 2 or names[0] not in known:
        raise config.fault(
            f"mlp_activations is {shown(given)}, which cannot be simulated; write one of "
            f"{', '.join(known)}, and linear besides where the MLP is gated"
        )
    return {"activation": known[names[0]], "gated": len(given) == 2}


def _windows(config: MaxTextConfig, block: DecoderBlock, layers: int) -> dict[str, Any]:
    """Return the window of local layers, for those blocks that have some."""
    window, type_ = config.size("sliding_window_size", least=0), config.text("attention_type")
    if type_ not in block.attention_type:
        raise config.fault(
            f"attention_type is {shown(type_)}, but the layers of decoder_block "
            f"{config.text('decoder_block')} do not read it; write {block.attention_type[0]}"
        )
    if not block.pattern:
        return {}
    if not window:
        raise config.fault(
            "sliding_window_size is 0, but its decoder_block has local layers; write the keys that "
            "they see, such as 4096"
        )
    every = next((each for each in block.pattern if layers % each == 0), block.pattern[0])
    cycle = config.size("inhomogeneous_layer_cycle_interval")
    if block.cycle and config.flag("scan_layers") and (cycle % every or layers % cycle):
        raise config.fault(
            f"inhomogeneous_layer_cycle_interval is {cycle}, but a scanned block of decoder_block "
            f"{config.text('decoder_block')} repeats {every} layers, and {layers} are whole blocks;"
            f" write inhomogeneous_layer_cycle_interval={every}, and a multiple of it as "
            "base_num_decoder_layers, or scan_layers=false"
        )
    return {
        "window": window,
        "global_every": every,
        "global_head_dim": _read_size(config, block, "global_head_dim"),
        "global_kv_heads": _read_size(config, block, "global_num_kv_heads"),
    }


def _wide_layers(config: MaxTextConfig, block: DecoderBlock) -> dict[str, int]:
    """Return the layers whose MLP is twice as wide: those that take the K/V of others."""
    sharing = _read_size(config, block, "num_kv_shared_layers")
    if not config.flag("use_double_wide_mlp") or not sharing:
        return {}
    return {"wide_layers": sharing, "wide_mlp": 2 * config.size("base_mlp_dim") * scales(config)[1]}


def _attention(config: MaxTextConfig) -> dict[str, str]:
    found = {"attention": str(config.choice("attention", words("attention")))}
    if found["attention"] == "dot" and config.flag("float32_logits"):
        found["softmax_dtype"] = "f32"
    return found


def _latent(config: MaxTextConfig) -> dict[str, int]:
    if config.text("attention_type") != "mla":
        return {}
    rope = config.size("qk_rope_head_dim")
    return {
        "head_dim": config.size("qk_nope_head_dim") + rope,
        "rope_dim": rope,
        "q_rank": config.size("q_lora_rank", least=0),
        "kv_rank": config.size("kv_lora_rank"),
        "v_head_dim": config.size("v_head_dim"),
    }


def _experts(config: MaxTextConfig, block: DecoderBlock) -> dict[str, int]:
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
        width = config.table[block.shared]
        width = config.size("base_mlp_dim") if width == -1 else width
        given["shared_mlp"] = width * scale * config.size("shared_experts", least=0)
        given["dense_layers"] = _read_size(config, block, "first_num_dense_layers")
    return given


def _post_norms(config: MaxTextConfig, block: DecoderBlock) -> bool:
    if "use_post_attn_norm" not in block.reads:
        return False
    after = [config.flag(f"use_post_{part}_norm") for part in ("attn", "ffw")]
    if after[0] != after[1]:
        raise config.fault(
            "use_post_attn_norm and use_post_ffw_norm differ, which cannot be simulated; write "
            "both true or both false"
        )
    return after[0]

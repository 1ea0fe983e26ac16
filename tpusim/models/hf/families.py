"""The families of models that a config may describe, and those that cannot be simulated yet.

The defaults are those of the configuration classes (huggingface/transformers,
`src/transformers/models/<family>/configuration_<family>.py`, 4.5x to 5.x; what a class does not
name is from `configuration_utils.py`): a config leaves out what equals them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES = {
    "layers": "num_hidden_layers",
    "embed": "hidden_size",
    "mlp": "intermediate_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
"""Dimensions of a `Transformer`, and the keys that give them. A file has to write them, except in a
section of its own, such as `text_config`, where transformers leaves the class's out too."""

ACTIVATIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
"""The activation functions of transformers, and what each is here: GELU by its error function and
by tanh cost about the same."""

DROPOUT = dict.fromkeys(
    ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob",
     "attention_probs_dropout_prob"),
    "dropout",
)  # fmt: skip
BIASES = {
    "attention_bias": "the biases of the attention's projections",
    "mlp_bias": "the biases of the MLP's projections",
}
SOFT_CAPS = {
    "attn_logit_softcapping": "the soft cap of the attention scores",
    "final_logit_softcapping": "the soft cap of the logits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the configs of one family have in common.

    architectures: the classes with a head for language modelling. types: its `model_type`s.
    layer: fields of `Transformer` that no key gives. defaults: of the keys that a config may leave
    out. sizes, activation: the keys that give the dimensions and the activation function.
    windows: which layers see a window of the keys, where `layer_types` does not say: `none`,
    `all`, `pattern` (all but each so many-th), `last` (from `max_window_layers` on).
    left_out: keys that ask for what is not modelled, and always: what no key asks for.
    """

    architectures: tuple[str, ...]
    types: tuple[str, ...]
    layer: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES)
    activation: str = "hidden_act"
    windows: str = "none"
    left_out: Mapping[str, str] = field(default_factory=lambda: DROPOUT | BIASES)
    always: tuple[str, ...] = ()


_GEMMA_LEFT_OUT = DROPOUT | BIASES | SOFT_CAPS
_GEMMA_DEFAULTS = {
    "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True, "sliding_window": 4096,
}  # fmt: skip
_QWEN_DEFAULTS = {
    "num_key_value_heads": 32, "hidden_act": "silu", "tie_word_embeddings": False,
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
_POSITIONS = "the table of learnt positions"

FAMILIES: tuple[Family, ...] = (
    Family(
        architectures=("LlamaForCausalLM",),
        types=("llama",),
        defaults={"hidden_act": "silu", "tie_word_embeddings": False},
    ),
    Family(
        architectures=("MistralForCausalLM",),
        types=("mistral",),
        defaults={"num_key_value_heads": 8, "hidden_act": "silu", "tie_word_embeddings": False,
                  "sliding_window": 4096},
        windows="all",
    ),
    Family(
        architectures=("GemmaForCausalLM",),
        types=("gemma",),
        defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True,
                  "hidden_act": "gelu_pytorch_tanh"},
    ),
    Family(
        architectures=("Gemma2ForCausalLM",),
        types=("gemma2",),
        layer={"post_norms": True},
        defaults=_GEMMA_DEFAULTS | {"sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
                                    "final_logit_softcapping": 30.0},
        activation="hidden_activation",
        windows="pattern",
        left_out=_GEMMA_LEFT_OUT,
    ),
    Family(
        architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        types=("gemma3_text", "gemma3"),
        layer={"post_norms": True, "qk_norm": True},
        defaults=_GEMMA_DEFAULTS | {"sliding_window_pattern": 6, "vocab_size": 262208,
                                    "hidden_size": 2304, "intermediate_size": 9216,
                                    "num_hidden_layers": 26, "num_attention_heads": 8},
        activation="hidden_activation",
        windows="pattern",
        left_out=_GEMMA_LEFT_OUT,
    ),
    Family(
        architectures=("Qwen2ForCausalLM",),
        types=("qwen2",),
        defaults=_QWEN_DEFAULTS,
        windows="last",
        always=("the biases of Q, K and V",),
    ),
    Family(
        architectures=("Qwen3ForCausalLM",),
        types=("qwen3",),
        layer={"qk_norm": True},
        defaults=_QWEN_DEFAULTS | {"head_dim": 128},
        windows="last",
    ),
    Family(
        architectures=("GPT2LMHeadModel",),
        types=("gpt2",),
        layer={"gated": False, "rotary": False},
        defaults={"activation_function": "gelu_new", "tie_word_embeddings": True,
                  "n_positions": 1024, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
        sizes={"layers": "n_layer", "embed": "n_embd", "mlp": "n_inner", "heads": "n_head",
               "vocab": "vocab_size"},
        activation="activation_function",
        left_out=DROPOUT | {"n_positions": _POSITIONS},
        always=("the biases of all projections and norms",),
    ),
    Family(
        architectures=("BertForMaskedLM", "BertForPreTraining"),
        types=("bert",),
        layer={"kind": "encoder", "gated": False, "rotary": False},
        defaults={"hidden_act": "gelu", "tie_word_embeddings": True, "type_vocab_size": 2,
                  "max_position_embeddings": 512, "hidden_dropout_prob": 0.1,
                  "attention_probs_dropout_prob": 0.1},
        left_out=DROPOUT | {"max_position_embeddings": _POSITIONS,
                            "type_vocab_size": "the table of segments"},
        always=("the biases of all projections and norms",
                "the dense layer before the logits, and the pooler",
                "norms behind attention and MLP, which stand before them here"),
    ),
)  # fmt: skip

CANNOT = {
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "latent attention": ("kv_lora_rank",),
    "state-space layers": ("mamba_d_state", "ssm_cfg", "state_size"),
    "attention over another sequence": ("add_cross_attention", "is_encoder_decoder"),
    "attention in both directions": ("use_bidirectional_attention",),
    "relative positions": ("position_embedding_type",),
}
"""What cannot be simulated yet, and the keys that ask for it."""

HARMLESS = (None, False, 0, 1, "absolute")
"""Values with which none of these keys asks for anything; one expert is an MLP."""

CANNOT_TYPES = {
    "mixtral": ("experts",),
    "qwen2_moe": ("experts",),
    "qwen3_moe": ("experts",),
    "gpt_oss": ("experts",),
    "llama4": ("experts",),
    "deepseek_v2": ("experts", "latent attention"),
    "deepseek_v3": ("experts", "latent attention"),
    "mamba": ("state-space layers",),
    "t5": ("attention over another sequence",),
}
"""Known `model_type`s that cannot be simulated yet, with the reason."""

CANNOT_CLASSES = {
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "GptOssForCausalLM": "gpt_oss",
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "llama4",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "MambaForCausalLM": "mamba",
    "T5ForConditionalGeneration": "t5",
}
"""Their architectures."""

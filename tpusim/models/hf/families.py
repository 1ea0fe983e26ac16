"""The families of models that a config may describe, and those that cannot be simulated yet.

The defaults are those of the configuration classes (huggingface/transformers,
`src/transformers/models/<family>/configuration_<family>.py`, 4.5x to 5.x; what a class does not
name is from `configuration_utils.py`): a config leaves out what equals them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIZE_KEYS = {
    "layers": "num_hidden_layers",
    "embed": "hidden_size",
    "mlp": "intermediate_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
"""Dimensions of a `Transformer`, and the keys that give them. A file has to write them, except in a
part of their own, such as `text_config`, where transformers also leaves out those of the class."""

ACTIVATIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
"""The activation functions of transformers, and ours for each: GELU by its error function and by
tanh cost about the same."""

DROPOUT = dict.fromkeys(
    ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob",
     "attention_probs_dropout_prob"),
    "dropout",
)  # fmt: skip
BIASES = {
    "attention_bias": "the biases of the attention's projections",
    "mlp_bias": "the biases of the MLP's projections",
}
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts; transformers reads some of them for one another."""

SOFT_CAPS = {"attn_logit_softcapping": "the soft cap of the attention scores"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFamily:
    """The common part of the configs of one family.

    architectures: the classes with a head for language modelling.
    types: its `model_type`s.
    layer: flat keys of `Transformer` that no key of the config gives.
    defaults: of the keys that a config may leave out.
    sizes: the keys of the dimensions.
    activation: the key of the activation function.
    windows: the layers that see a window of the keys, where `layer_types` does not give them:
        `none`, `all`, `pattern` (all but each so many-th), `last` (from `max_window_layers` on),
        `alternate` (each other one up to there).
    experts: dimensions of the experts, and the keys that give them; empty where there are none.
    latent: attention is latent.
    left_out: keys of features that are not modelled.
    always: features that are not modelled and have no key.
    """

    architectures: tuple[str, ...]
    types: tuple[str, ...]
    layer: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZE_KEYS)
    activation: str = "hidden_act"
    windows: str = "none"
    experts: Mapping[str, str] = field(default_factory=dict)
    latent: bool = False
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
_MIXTRAL_EXPERTS = {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
_QWEN_EXPERTS = {
    "experts": "num_experts", "experts_per_token": "num_experts_per_tok",
    "expert_mlp": "moe_intermediate_size", "expert_every": "decoder_sparse_step",
}  # fmt: skip
_DEEPSEEK_EXPERTS = {
    "experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok",
    "expert_mlp": "moe_intermediate_size",
}  # fmt: skip
_DEEPSEEK_DEFAULTS = {
    "hidden_act": "silu", "tie_word_embeddings": False, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
_DEEPSEEK_LEFT_OUT = DROPOUT | BIASES | {
    "num_nextn_predict_layers": "the layers that predict further tokens",
    "n_group": "that a token may go to the experts of some groups only",
}  # fmt: skip
_POSITIONS = "the table of learnt positions"

FAMILIES: tuple[HfFamily, ...] = (
    HfFamily(
        architectures=("LlamaForCausalLM",),
        types=("llama",),
        defaults={"hidden_act": "silu", "tie_word_embeddings": False},
    ),
    HfFamily(
        architectures=("MistralForCausalLM",),
        types=("mistral",),
        defaults={"num_key_value_heads": 8, "hidden_act": "silu", "tie_word_embeddings": False,
                  "sliding_window": 4096},
        windows="all",
    ),
    HfFamily(
        architectures=("GemmaForCausalLM",),
        types=("gemma",),
        defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True,
                  "hidden_act": "gelu_pytorch_tanh"},
    ),
    HfFamily(
        architectures=("Gemma2ForCausalLM",),
        types=("gemma2",),
        layer={"post_norms": True},
        defaults=_GEMMA_DEFAULTS | {"sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
                                    "final_logit_softcapping": 30.0},
        activation="hidden_activation",
        windows="pattern",
        left_out=_GEMMA_LEFT_OUT,
    ),
    HfFamily(
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
    HfFamily(
        architectures=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
        types=("gemma4_text", "gemma4"),
        layer={"post_norms": True, "qk_norm": True},
        defaults=_GEMMA_DEFAULTS | {"sliding_window_pattern": 6, "sliding_window": 512,
                                    "global_head_dim": 512, "attention_k_eq_v": False,
                                    "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
                                    "hidden_size_per_layer_input": 256},
        activation="hidden_activation",
        windows="pattern",
        experts={"experts": "num_experts", "experts_per_token": "top_k_experts",
                 "expert_mlp": "moe_intermediate_size", "shared_mlp": "intermediate_size"},
        left_out=_GEMMA_LEFT_OUT | {
            "num_kv_shared_layers": "that the last layers take the keys and values of others"},
        always=("the norms of values",),
    ),
    HfFamily(
        architectures=("Qwen2ForCausalLM",),
        types=("qwen2",),
        defaults=_QWEN_DEFAULTS,
        windows="last",
        always=("the biases of Q, K and V",),
    ),
    HfFamily(
        architectures=("Qwen3ForCausalLM",),
        types=("qwen3",),
        layer={"qk_norm": True},
        defaults=_QWEN_DEFAULTS | {"head_dim": 128},
        windows="last",
    ),
    HfFamily(
        architectures=("MixtralForCausalLM",),
        types=("mixtral",),
        defaults={"num_key_value_heads": 8, "hidden_act": "silu", "tie_word_embeddings": False,
                  "num_local_experts": 8, "num_experts_per_tok": 2},
        windows="all",
        experts=_MIXTRAL_EXPERTS,
    ),
    HfFamily(
        architectures=("Qwen2MoeForCausalLM",),
        types=("qwen2_moe",),
        defaults=_QWEN_DEFAULTS | {"num_key_value_heads": 16, "num_experts": 60,
                                   "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                                   "shared_expert_intermediate_size": 5632,
                                   "decoder_sparse_step": 1, "qkv_bias": True},
        windows="alternate",
        experts=_QWEN_EXPERTS | {"shared_mlp": "shared_expert_intermediate_size"},
        left_out=DROPOUT | BIASES | {"qkv_bias": "the biases of Q, K and V"},
        always=("the gate of the shared expert",),
    ),
    HfFamily(
        architectures=("Qwen3MoeForCausalLM",),
        types=("qwen3_moe",),
        layer={"qk_norm": True},
        defaults=_QWEN_DEFAULTS | {"num_key_value_heads": 4, "num_experts": 128,
                                   "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                                   "decoder_sparse_step": 1},
        windows="all",
        experts=_QWEN_EXPERTS,
    ),
    HfFamily(
        architectures=("GptOssForCausalLM",),
        types=("gpt_oss",),
        defaults={"num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
                  "tie_word_embeddings": False, "sliding_window": 128, "sliding_window_pattern": 2,
                  "num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": True},
        windows="pattern",
        experts=_MIXTRAL_EXPERTS,
        always=("the sinks of the attention, a number a head beside the scores",
                "the biases of the router and the experts"),
    ),
    HfFamily(
        architectures=("DeepseekV2ForCausalLM",),
        types=("deepseek_v2",),
        defaults=_DEEPSEEK_DEFAULTS | {"first_k_dense_replace": 0, "n_routed_experts": 64,
                                       "n_shared_experts": 2, "moe_intermediate_size": 1407},
        experts=_DEEPSEEK_EXPERTS,
        latent=True,
        left_out=_DEEPSEEK_LEFT_OUT,
    ),
    HfFamily(
        architectures=("DeepseekV3ForCausalLM",),
        types=("deepseek_v3", "kimi_k2"),
        defaults=_DEEPSEEK_DEFAULTS | {"first_k_dense_replace": 3, "n_routed_experts": 256,
                                       "n_shared_experts": 1, "moe_intermediate_size": 2048,
                                       "num_experts_per_tok": 8, "n_group": 8},
        experts=_DEEPSEEK_EXPERTS,
        latent=True,
        left_out=_DEEPSEEK_LEFT_OUT,
        always=("the biases that steer the router",),
    ),
    HfFamily(
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
    HfFamily(
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
                "norms after attention and MLP, which are before them here"),
    ),
)  # fmt: skip

UNSUPPORTED = {
    "state-space layers": ("mamba_d_state", "ssm_cfg", "state_size"),
    "linear attention": ("linear_num_value_heads",),
    "attention in chunks": ("attention_chunk_size",),
    "attention that picks its keys": ("index_topk",),
    "attention over another sequence": ("add_cross_attention", "is_encoder_decoder"),
    "attention in both directions": ("use_bidirectional_attention",),
    "relative positions": ("position_embedding_type",),
}
"""Features that cannot be simulated yet, and the keys that ask for them."""

OPTIONAL_FEATURES = {"experts": EXPERT_KEYS, "latent attention": ("kv_lora_rank",)}
"""Features that some families have, and the keys that ask for them."""

INACTIVE = (None, False, 0, 1, "absolute", "vision")
"""Values with which these keys have no effect: one expert is an MLP, and tokens of images alone may
attend in both directions."""

UNSUPPORTED_TYPES = {
    "llama4": "attention in chunks",
    "deepseek_v32": "attention that picks its keys",
    "qwen3_next": "linear attention",
    "mamba": "state-space layers",
    "t5": "attention over another sequence",
}
"""Known `model_type`s that cannot be simulated yet, with the reason."""

UNSUPPORTED_CLASSES = {
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "llama4",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "Qwen3NextForCausalLM": "qwen3_next",
    "MambaForCausalLM": "mamba",
    "T5ForConditionalGeneration": "t5",
}
"""Their architectures."""

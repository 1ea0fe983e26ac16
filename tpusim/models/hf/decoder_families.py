"""Families of dense decoders with root-mean-square norms.

The defaults are those of the configuration classes (huggingface/transformers,
`src/transformers/models/<family>/configuration_<family>.py`, 5.x; what a class does not name is
from `configuration_utils.py`): a config leaves out what equals them. The layers are those of
`modeling_<family>.py` beside them.
"""

from typing import Any

from tpusim.models.hf.family import (
    ALL,
    ATTENTION_BIAS,
    LLAMA_BIASES,
    MLP,
    NO_ROTARY,
    PLAIN,
    QKV,
    TIED,
    HfFamily,
)

_SOFT_CAP = {"attn_logit_softcapping": "the soft cap of the attention scores"}

GEMMA_DEFAULTS = {
    "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True, "sliding_window": 4096,
}  # fmt: skip
QWEN_DEFAULTS = PLAIN | {
    "num_key_value_heads": 32, "use_sliding_window": False, "sliding_window": 4096,
    "max_window_layers": 28,
}  # fmt: skip
_OLMO2: dict[str, Any] = {
    "qk_norm": True, "qk_norm_heads": "all", "pre_norms": False, "post_norms": True
}  # fmt: skip

LLAMA_KIND: tuple[HfFamily, ...] = (
    HfFamily(
        name="Llama",
        architectures=("LlamaForCausalLM",),
        types=("llama", "internlm3", "iquestcoder"),
        flags=LLAMA_BIASES,
        defaults=PLAIN,
    ),
    HfFamily(
        name="Mistral",
        architectures=("MistralForCausalLM",),
        types=("mistral",),
        defaults=PLAIN | {"num_key_value_heads": 8, "sliding_window": 4096},
        windows="all",
    ),
    HfFamily(
        name="Ministral",
        architectures=("MinistralForCausalLM", "Ministral3ForCausalLM"),
        types=("ministral", "ministral3"),
        defaults=PLAIN | {"num_key_value_heads": 8},
        windows="all",
    ),
    HfFamily(
        name="Qwen2",
        architectures=("Qwen2ForCausalLM",),
        types=("qwen2",),
        layer=QKV,
        defaults=QWEN_DEFAULTS,
        windows="last",
    ),
    HfFamily(
        name="Qwen3",
        architectures=("Qwen3ForCausalLM",),
        types=("qwen3",),
        layer={"qk_norm": True},
        flags=ATTENTION_BIAS,
        defaults=QWEN_DEFAULTS | {"head_dim": 128},
        windows="last",
    ),
    HfFamily(
        name="Phi-3",
        architectures=("Phi3ForCausalLM",),
        types=("phi3",),
        defaults=PLAIN,
        windows="all",
    ),
    HfFamily(
        name="Granite",
        architectures=("GraniteForCausalLM",),
        types=("granite",),
        flags=LLAMA_BIASES,
        defaults=PLAIN,
    ),
    HfFamily(
        name="HyperCLOVA X",
        architectures=("HyperCLOVAXForCausalLM",),
        types=("hyperclovax",),
        flags=LLAMA_BIASES | {"use_post_norm": {"post_norms": True}},
        defaults=PLAIN | {"use_post_norm": True},
    ),
    HfFamily(
        name="SmolLM3",
        architectures=("SmolLM3ForCausalLM",),
        types=("smollm3",),
        flags=LLAMA_BIASES,
        defaults=TIED | {"num_key_value_heads": 4},
        always=("that each fourth layer has no rotary positions",),
    ),
    HfFamily(
        name="OLMo",
        architectures=("OlmoForCausalLM",),
        types=("olmo",),
        layer={"norm": "layer-unscaled"},
        flags=ATTENTION_BIAS,
        defaults=PLAIN,
    ),
    HfFamily(
        name="OLMo 2",
        architectures=("Olmo2ForCausalLM",),
        types=("olmo2",),
        layer=_OLMO2,
        flags=ATTENTION_BIAS,
        defaults=PLAIN,
    ),
    HfFamily(
        name="OLMo 3",
        architectures=("Olmo3ForCausalLM",),
        types=("olmo3",),
        layer=_OLMO2,
        flags=ATTENTION_BIAS,
        defaults=PLAIN | {"sliding_window": 4096, "sliding_window_pattern": 4},
        windows="pattern",
    ),
    HfFamily(
        name="EXAONE 3",
        architectures=("ExaoneForCausalLM", "LlamaForCausalLM"),
        types=("exaone",),
        flags=LLAMA_BIASES,
        defaults=PLAIN | {"num_key_value_heads": 8},
        older={"num_layers": "num_hidden_layers", "activation_function": "hidden_act"},
    ),
    HfFamily(
        name="EXAONE 4",
        architectures=("Exaone4ForCausalLM",),
        types=("exaone4",),
        layer={"qk_norm": True, "pre_norms": False, "post_norms": True},
        defaults=PLAIN | {"num_key_value_heads": 32, "sliding_window": 4096,
                          "sliding_window_pattern": 4},
        windows="pattern",
        always=(NO_ROTARY,),
    ),
    HfFamily(
        name="GLM",
        architectures=("GlmForCausalLM",),
        types=("glm",),
        flags={"attention_bias": QKV},
        defaults=PLAIN | {"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
    ),
    HfFamily(
        name="GLM-4",
        architectures=("Glm4ForCausalLM",),
        types=("glm4",),
        layer={"post_norms": True},
        flags={"attention_bias": QKV},
        defaults=PLAIN | {"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
    ),
    HfFamily(
        name="ERNIE 4.5",
        architectures=("Ernie4_5ForCausalLM",),
        types=("ernie4_5",),
        flags={"use_bias": ALL},
        defaults=TIED | {"num_key_value_heads": 2, "head_dim": 128},
    ),
    HfFamily(
        name="Seed-OSS",
        architectures=("SeedOssForCausalLM",),
        types=("seed_oss",),
        flags={"attention_bias": QKV, "attention_out_bias": {"out_bias": True}, "mlp_bias": MLP},
        defaults=PLAIN | {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True,
                          "attention_dropout": 0.1, "residual_dropout": 0.1},
    ),
    HfFamily(
        name="CWM",
        architectures=("CwmForCausalLM",),
        types=("cwm",),
        defaults=PLAIN | {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 8192,
                          "sliding_window_pattern": 4},
        windows="first",
    ),
    HfFamily(
        name="Helium",
        architectures=("HeliumForCausalLM",),
        types=("helium",),
        flags={"attention_bias": QKV, "mlp_bias": MLP},
        defaults=PLAIN | {"num_key_value_heads": 20, "head_dim": 128},
    ),
    HfFamily(
        name="Hunyuan",
        architectures=("HunYuanDenseV1ForCausalLM",),
        types=("hunyuan_v1_dense",),
        layer={"qk_norm": True},
        flags=ATTENTION_BIAS,
        defaults=PLAIN,
    ),
    HfFamily(
        name="Arcee",
        architectures=("ArceeForCausalLM",),
        types=("arcee",),
        layer={"gated": False},
        flags=LLAMA_BIASES,
        defaults=PLAIN | {"hidden_act": "relu2"},
    ),
    HfFamily(
        name="nanochat",
        architectures=("NanoChatForCausalLM",),
        types=("nanochat",),
        layer={"gated": False, "norm": "rms-unscaled", "qk_norm": True, "embed_norm": True},
        flags=ATTENTION_BIAS,
        defaults=PLAIN | {"hidden_act": "relu2", "final_logit_softcapping": 15.0},
    ),
    HfFamily(
        name="Gemma",
        architectures=("GemmaForCausalLM",),
        types=("gemma",),
        flags=ATTENTION_BIAS,
        defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True,
                  "hidden_act": "gelu_pytorch_tanh"},
    ),
    HfFamily(
        name="VaultGemma",
        architectures=("VaultGemmaForCausalLM",),
        types=("vaultgemma",),
        flags=ATTENTION_BIAS,
        defaults=GEMMA_DEFAULTS | {"sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
                                   "final_logit_softcapping": 30.0},
        activation="hidden_activation",
        windows="pattern",
        left_out=_SOFT_CAP,
    ),
    HfFamily(
        name="Gemma 2",
        architectures=("Gemma2ForCausalLM",),
        types=("gemma2",),
        layer={"post_norms": True},
        flags=ATTENTION_BIAS,
        defaults=GEMMA_DEFAULTS | {"sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
                                   "final_logit_softcapping": 30.0},
        activation="hidden_activation",
        windows="pattern",
        left_out=_SOFT_CAP,
    ),
    HfFamily(
        name="Gemma 3",
        architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        types=("gemma3_text", "gemma3"),
        layer={"post_norms": True, "qk_norm": True},
        flags=ATTENTION_BIAS,
        defaults=GEMMA_DEFAULTS | {"sliding_window_pattern": 6, "vocab_size": 262208,
                                   "hidden_size": 2304, "intermediate_size": 9216,
                                   "num_hidden_layers": 26, "num_attention_heads": 8},
        activation="hidden_activation",
        windows="pattern",
        left_out=_SOFT_CAP,
    ),
)  # fmt: skip
"""Decoders with root-mean-square norms."""

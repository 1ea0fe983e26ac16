"""Facts of Hugging Face configs: the keys with dimensions, by the names of published models.

Sources: the `config.json` published with the weights on huggingface.co (the repository is named
beside each), whose dimensions are also those of the report that `tpusim models NAME` cites. Keys
that equal the defaults of the family's class (transformers 5.24) are left out.
"""

from typing import Any

Config = dict[str, Any]


def dense(
    kind: str, of: str, hidden: int, layers: int, heads: int, kv: int, mlp: int, vocab: int,
    **more: Any,
) -> Config:  # fmt: skip
    """A config with the keys that all decoders have, flat or as `text_config`."""
    return {
        "model_type": kind, "architectures": [f"{of}ForCausalLM"], "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "intermediate_size": mlp, "vocab_size": vocab, **more,
    }  # fmt: skip


def llama(*sizes: int, **more: Any) -> Config:
    """meta-llama/Llama-2-*, Meta-Llama-3-*, Llama-3.1-*, Llama-3.2-*, Llama-3.3-*."""
    return dense("llama", "Llama", *sizes, **more)


def gemma_2(*sizes: int, head_dim: int) -> Config:
    """google/gemma-2-*."""
    return dense("gemma2", "Gemma2", *sizes, head_dim=head_dim, sliding_window=4096)


def gemma_3(*sizes: int, head_dim: int) -> Config:
    """google/gemma-3-*-it, whose dimensions are in `text_config`."""
    text = dense("gemma3_text", "Gemma3", *sizes, head_dim=head_dim, sliding_window=1024)
    return {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": text}  # fmt: skip


def gemma_4(*sizes: int, **more: Any) -> Config:
    """google/gemma-4-*, whose dimensions are in `text_config`."""
    text = dense(
        "gemma4_text", "Gemma4", *sizes, head_dim=256, final_logit_softcapping=30.0, **more
    )
    return {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"],
            "text_config": text}  # fmt: skip


def qwen_2(*sizes: int, tied: bool = False) -> Config:
    """Qwen/Qwen2.5-*."""
    return dense("qwen2", "Qwen2", *sizes, tie_word_embeddings=tied)


def qwen_3(*sizes: int, tied: bool = False) -> Config:
    """Qwen/Qwen3-*."""
    return dense("qwen3", "Qwen3", *sizes, head_dim=128, tie_word_embeddings=tied)


def qwen_3_moe(*sizes: int, experts: int, width: int) -> Config:
    """Qwen/Qwen3-*-A*."""
    return dense("qwen3_moe", "Qwen3Moe", *sizes, head_dim=128, num_experts=experts,
                 num_experts_per_tok=8, moe_intermediate_size=width)  # fmt: skip


def olmo_3(*sizes: int) -> Config:
    """allenai/Olmo-3-*."""
    return dense("olmo3", "Olmo3", *sizes, sliding_window=4096)


def gpt_oss(layers: int, experts: int) -> Config:
    """openai/gpt-oss-*."""
    return dense("gpt_oss", "GptOss", 2880, layers, 64, 8, 2880, 201088, head_dim=64,
                 num_local_experts=experts, num_experts_per_tok=4, sliding_window=128)  # fmt: skip


def latent(kind: str, of: str, *sizes: int, experts: int, width: int, **more: Any) -> Config:
    """deepseek-ai/DeepSeek-V2*, DeepSeek-V3, moonshotai/Kimi-K2*, and others with their layers."""
    ranks = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
             "v_head_dim": 128, "q_lora_rank": 1536}  # fmt: skip
    return dense(kind, of, *sizes, **ranks | {"n_routed_experts": experts, "n_shared_experts": 1,
                 "moe_intermediate_size": width, "num_experts_per_tok": 8} | more)  # fmt: skip


CONFIGS: dict[str, Config] = {
    "llama2-7b": llama(4096, 32, 32, 32, 11008, 32000),
    "llama2-13b": llama(5120, 40, 40, 40, 13824, 32000),
    "llama2-70b": llama(8192, 80, 64, 8, 28672, 32000),
    "llama3-8b": llama(4096, 32, 32, 8, 14336, 128256),
    "llama3-70b": llama(8192, 80, 64, 8, 28672, 128256),
    "llama3.1-8b": llama(4096, 32, 32, 8, 14336, 128256),
    "llama3.1-70b": llama(8192, 80, 64, 8, 28672, 128256),
    "llama3.1-405b": llama(16384, 126, 128, 8, 53248, 128256),
    "llama3.2-1b": llama(2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True),
    "llama3.2-3b": llama(3072, 28, 24, 8, 8192, 128256, head_dim=128, tie_word_embeddings=True),
    "llama3.3-70b": llama(8192, 80, 64, 8, 28672, 128256),
    "mistral-7b": dense("mistral", "Mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096),
    "mixtral-8x7b": dense("mixtral", "Mixtral", 4096, 32, 32, 8, 14336, 32000,
                          num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "mixtral-8x22b": dense("mixtral", "Mixtral", 6144, 56, 48, 8, 16384, 32768,
                           num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "gemma-2b": dense("gemma", "Gemma", 2048, 18, 8, 1, 16384, 256000, head_dim=256),
    "gemma-7b": dense("gemma", "Gemma", 3072, 28, 16, 16, 24576, 256000, head_dim=256),
    "gemma2-2b": gemma_2(2304, 26, 8, 4, 9216, 256000, head_dim=256),
    "gemma2-9b": gemma_2(3584, 42, 16, 8, 14336, 256000, head_dim=256),
    "gemma2-27b": gemma_2(4608, 46, 32, 16, 36864, 256000, head_dim=128),
    "gemma3-4b": gemma_3(2560, 34, 8, 4, 10240, 262208, head_dim=256),
    "gemma3-12b": gemma_3(3840, 48, 16, 8, 15360, 262208, head_dim=256),
    "gemma3-27b": gemma_3(5376, 62, 32, 16, 21504, 262208, head_dim=128),
    "gemma4-e2b": gemma_4(1536, 35, 8, 1, 6144, 262144, sliding_window=512,
                          sliding_window_pattern=5, hidden_size_per_layer_input=256,
                          num_kv_shared_layers=20, use_double_wide_mlp=True),
    "gemma4-e4b": gemma_4(2560, 42, 8, 2, 10240, 262144, sliding_window=512,
                          hidden_size_per_layer_input=256),
    "gemma4-26b": gemma_4(2816, 30, 16, 8, 2112, 262144, sliding_window=1024, num_experts=128,
                          hidden_size_per_layer_input=0, num_global_key_value_heads=2,
                          attention_k_eq_v=True, top_k_experts=8, moe_intermediate_size=704),
    "gemma4-31b": gemma_4(5376, 60, 32, 16, 21504, 262144, sliding_window=1024,
                          hidden_size_per_layer_input=0, num_global_key_value_heads=4,
                          attention_k_eq_v=True),
    "qwen2.5-0.5b": qwen_2(896, 24, 14, 2, 4864, 151936, tied=True),
    "qwen2.5-1.5b": qwen_2(1536, 28, 12, 2, 8960, 151936, tied=True),
    "qwen2.5-3b": qwen_2(2048, 36, 16, 2, 11008, 151936, tied=True),
    "qwen2.5-7b": qwen_2(3584, 28, 28, 4, 18944, 152064),
    "qwen2.5-14b": qwen_2(5120, 48, 40, 8, 13824, 152064),
    "qwen2.5-32b": qwen_2(5120, 64, 40, 8, 27648, 152064),
    "qwen2.5-72b": qwen_2(8192, 80, 64, 8, 29568, 152064),
    "qwen3-0.6b": qwen_3(1024, 28, 16, 8, 3072, 151936, tied=True),
    "qwen3-1.7b": qwen_3(2048, 28, 16, 8, 6144, 151936, tied=True),
    "qwen3-4b": qwen_3(2560, 36, 32, 8, 9728, 151936, tied=True),
    "qwen3-8b": qwen_3(4096, 36, 32, 8, 12288, 151936),
    "qwen3-14b": qwen_3(5120, 40, 40, 8, 17408, 151936),
    "qwen3-32b": qwen_3(5120, 64, 64, 8, 25600, 151936),
    "qwen3-30b-a3b": qwen_3_moe(2048, 48, 32, 4, 6144, 151936, experts=128, width=768),
    "qwen3-235b-a22b": qwen_3_moe(4096, 94, 64, 4, 12288, 151936, experts=128, width=1536),
    "qwen3-480b-a35b": qwen_3_moe(6144, 62, 96, 8, 8192, 151936, experts=160, width=2560),
    "olmo3-7b": olmo_3(4096, 32, 32, 32, 11008, 100278),
    "olmo3-32b": olmo_3(5120, 64, 40, 8, 27648, 100278),
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-120b": gpt_oss(36, 128),
    "deepseek-v2-lite": latent("deepseek_v2", "DeepseekV2", 2048, 27, 16, 16, 10944, 102400,
                               experts=64, width=1408, q_lora_rank=None, n_shared_experts=2,
                               num_experts_per_tok=6, first_k_dense_replace=1),
    "deepseek-v2": latent("deepseek_v2", "DeepseekV2", 5120, 60, 128, 128, 12288, 102400,
                          experts=160, width=1536, n_shared_experts=2, num_experts_per_tok=6,
                          first_k_dense_replace=1),
    "deepseek-v3": latent("deepseek_v3", "DeepseekV3", 7168, 61, 128, 128, 18432, 129280,
                          experts=256, width=2048, first_k_dense_replace=3),
    "kimi-k2": latent("kimi_k2", "DeepseekV3", 7168, 61, 64, 64, 18432, 163840,
                      experts=384, width=2048, first_k_dense_replace=1, n_group=1),
}  # fmt: skip
"""Models that MaxText has too, and others of their families."""

MODELS_OF_2026: dict[str, Config] = {
    # moonshotai/Kimi-K2.5
    "kimi-k2": {
        "model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
        "dtype": "bfloat16", "tie_word_embeddings": False,
        "vision_config": {"vt_num_hidden_layers": 27, "vt_hidden_size": 1152},
        "text_config": CONFIGS["kimi-k2"] | {"tie_word_embeddings": False},
        "quantization_config": {"quant_method": "compressed-tensors"},
    },
    # mistralai/Mistral-Small-4-119B-2603
    "mistral-small-4": {
        "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
        "vision_config": {"model_type": "pixtral"},
        "text_config": latent("mistral4", "Mistral4", 4096, 36, 32, 32, 12288, 131072,
                              experts=128, width=2048, q_lora_rank=1024, kv_lora_rank=256,
                              qk_nope_head_dim=64, num_experts_per_tok=4,
                              first_k_dense_replace=0),
    },
    # skt/A.X-K1
    "ax-k1": latent("axk1", "AXK1", 7168, 61, 64, 64, 18432, 163840, experts=192, width=2048,
                    first_k_dense_replace=1),
    # sarvamai/sarvam-105b
    "sarvam-105b": latent("sarvam_mla", "SarvamMLA", 4096, 32, 64, 64, 16384, 262144,
                          experts=128, width=2048, q_lora_rank=None, first_k_dense_replace=1),
    # zai-org/GLM-4.7-Flash
    "glm-4.7-flash": latent("glm4_moe_lite", "Glm4MoeLite", 2048, 47, 20, 20, 10240, 154880,
                            experts=64, width=1536, q_lora_rank=768, qk_nope_head_dim=192,
                            v_head_dim=256, num_experts_per_tok=4, first_k_dense_replace=1,
                            num_nextn_predict_layers=1),
    # upstage/Solar-Open-100B
    "solar-open-100b": dense("solar_open", "SolarOpen", 4096, 48, 64, 8, 10240, 196608,
                             head_dim=128, n_routed_experts=128, n_shared_experts=1,
                             moe_intermediate_size=1280, num_experts_per_tok=8),
    # tencent/Hy3-preview
    "hy3": dense("hy_v3", "HYV3", 4096, 80, 64, 8, 13312, 120832, head_dim=128, num_experts=192,
                 num_experts_per_tok=8, num_shared_experts=1, moe_intermediate_size=1536,
                 first_k_dense_replace=1, num_nextn_predict_layers=1),
    # JetBrains/Mellum2-12B-A2.5B-Base; a window in three of four layers (arXiv:2605.31268)
    "mellum2-12b": dense("mellum", "Mellum", 2304, 28, 32, 4, 7168, 98304, head_dim=128,
                         num_experts=64, num_experts_per_tok=8, moe_intermediate_size=896,
                         sliding_window=1024,
                         layer_types=[*["sliding_attention"] * 3, "full_attention"] * 7),
}  # fmt: skip
"""Models that were published in 2026, by the name of their language model."""

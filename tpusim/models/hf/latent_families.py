"""Families of decoders with latent attention; see `decoder_families` for the sources."""

from tpusim.models.hf.family import PLAIN, HfFamily

DEEPSEEK = {
    "experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok",
    "expert_mlp": "moe_intermediate_size", "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
}  # fmt: skip
PREDICTING = {"num_nextn_predict_layers": "the layers that predict further tokens"}
GROUPS = PREDICTING | {"n_group": "that a token may go to the experts of some groups only"}
STEERING = "the biases that steer the router"
MLP_BIAS = {"mlp_bias": "the biases of the MLP's projections"}
"""What other families with experts share with DeepSeek."""

SARVAM_OLDER = {"num_shared_experts": "n_shared_experts"}

_LATENT_BIAS = {"attention_bias": "the biases of the attention's projections"}
_LATENT_DEFAULTS = PLAIN | {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}  # fmt: skip

LATENT_KIND: tuple[HfFamily, ...] = (
    HfFamily(
        name="DeepSeek-V2",
        architectures=("DeepseekV2ForCausalLM",),
        types=("deepseek_v2",),
        defaults=_LATENT_DEFAULTS | {"first_k_dense_replace": 0, "n_routed_experts": 64,
                                     "n_shared_experts": 2, "moe_intermediate_size": 1407},
        experts=DEEPSEEK,
        latent=True,
        left_out=_LATENT_BIAS | GROUPS,
    ),
    HfFamily(
        name="DeepSeek-V3",
        architectures=("DeepseekV3ForCausalLM",),
        types=("deepseek_v3", "kimi_k2"),
        defaults=_LATENT_DEFAULTS | {"first_k_dense_replace": 3, "n_routed_experts": 256,
                                     "n_shared_experts": 1, "moe_intermediate_size": 2048,
                                     "num_experts_per_tok": 8, "n_group": 8},
        experts=DEEPSEEK,
        latent=True,
        left_out=_LATENT_BIAS | GROUPS,
        always=(STEERING,),
    ),
    HfFamily(
        name="Sarvam MLA",
        architectures=("SarvamMLAForCausalLM", "DeepseekV3ForCausalLM"),
        types=("sarvam_mla",),
        defaults=_LATENT_DEFAULTS | {"q_lora_rank": None, "first_k_dense_replace": 1,
                                     "n_routed_experts": 128, "n_shared_experts": 1,
                                     "moe_intermediate_size": 2048, "num_experts_per_tok": 8},
        older=SARVAM_OLDER,
        experts=DEEPSEEK,
        latent=True,
        left_out=_LATENT_BIAS | GROUPS,
        always=(STEERING,),
    ),
    HfFamily(
        name="A.X K1",
        architectures=("AXK1ForCausalLM",),
        types=("axk1",),
        defaults=_LATENT_DEFAULTS | {"first_k_dense_replace": 1, "n_routed_experts": 192,
                                     "n_shared_experts": 1, "moe_intermediate_size": 2048,
                                     "num_experts_per_tok": 8, "n_group": 8},
        experts=DEEPSEEK,
        latent=True,
        left_out=_LATENT_BIAS | GROUPS,
        always=(STEERING, "the norm of what the experts of a layer give together"),
    ),
    HfFamily(
        name="GLM-4 MoE Lite",
        architectures=("Glm4MoeLiteForCausalLM",),
        types=("glm4_moe_lite",),
        defaults=_LATENT_DEFAULTS | {"q_lora_rank": 768, "qk_nope_head_dim": 192,
                                     "v_head_dim": 256, "n_routed_experts": 64,
                                     "n_shared_experts": 1, "moe_intermediate_size": 1536,
                                     "num_experts_per_tok": 4, "first_k_dense_replace": 1},
        experts=DEEPSEEK,
        latent=True,
        left_out=_LATENT_BIAS | GROUPS,
        always=(STEERING,),
    ),
    HfFamily(
        name="Youtu-LLM",
        architectures=("YoutuForCausalLM",),
        types=("youtu",),
        defaults=_LATENT_DEFAULTS | {"tie_word_embeddings": True},
        latent=True,
        left_out=_LATENT_BIAS,
    ),
    HfFamily(
        name="MiniCPM3",
        architectures=("MiniCPM3ForCausalLM",),
        types=("minicpm3",),
        defaults=_LATENT_DEFAULTS | {"tie_word_embeddings": True, "kv_lora_rank": 256,
                                     "q_lora_rank": 768, "qk_nope_head_dim": 64,
                                     "qk_rope_head_dim": 32, "v_head_dim": 64},
        latent=True,
        left_out=_LATENT_BIAS | MLP_BIAS,
    ),
)  # fmt: skip
"""Decoders with latent attention, with experts and without."""

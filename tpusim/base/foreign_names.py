"""Names that other libraries have for what tpusim has another name for."""

from collections.abc import Collection

_NAMES = {
    # dimensions: Hugging Face's transformers, MaxText, Levanter, T5X, Megatron
    "hidden_size": "embed", "n_embd": "embed", "d_model": "embed", "emb_dim": "embed",
    "base_emb_dim": "embed", "hidden_dim": "embed", "embed_dim": "embed", "model_dim": "embed",
    "intermediate_size": "mlp", "ffn_dim": "mlp", "d_ff": "mlp", "n_inner": "mlp",
    "mlp_dim": "mlp", "base_mlp_dim": "mlp", "intermediate_dim": "mlp",
    "ffn_hidden_size": "mlp", "ffn_embed": "mlp",
    "num_hidden_layers": "layers", "n_layer": "layers", "n_layers": "layers",
    "num_layers": "layers", "num_decoder_layers": "layers", "base_num_decoder_layers": "layers",
    "num_attention_heads": "heads", "n_head": "heads", "n_heads": "heads", "num_heads": "heads",
    "num_query_heads": "heads", "base_num_query_heads": "heads",
    "num_key_value_heads": "kv_heads", "num_kv_heads": "kv_heads", "n_kv_heads": "kv_heads",
    "base_num_kv_heads": "kv_heads", "num_query_groups": "kv_heads",
    "d_kv": "head_dim", "head_size": "head_dim",
    "vocab_size": "vocab", "padded_vocab_size": "vocab",
    "tie_word_embeddings": "tied_embeddings", "logits_via_embedding": "tied_embeddings",
    "hidden_act": "activation", "hidden_activation": "activation",
    "activation_function": "activation", "mlp_activations": "activation",
    "sliding_window": "window", "sliding_window_size": "window",
    "num_experts": "experts", "num_local_experts": "experts", "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token", "moe_intermediate_size": "expert_mlp",
    "base_moe_mlp_dim": "expert_mlp", "first_k_dense_replace": "dense_layers",
    "first_num_dense_layers": "dense_layers", "kv_lora_rank": "kv_rank", "q_lora_rank": "q_rank",
    "qk_rope_head_dim": "rope_dim", "use_qk_norm": "qk_norm",
    "max_position_embeddings": "positions",
    "type_vocab_size": "segments", "attention_bias": "qkv_bias",
    "final_logit_softcapping": "logit_cap", "final_logits_soft_cap": "logit_cap",
    "parallel_attn": "parallel",
    "use_parallel_residual": "parallel",
    # plans: batch and sequence
    "max_seq_len": "seq_len", "max_target_length": "seq_len", "train_batch_size": "global_batch",
    "global_batch_size": "global_batch", "batch_size": "global_batch", "remat_policy": "remat",
    "gradient_checkpointing": "remat",
    # mesh axes: MaxText, Levanter, T5X, Megatron, AXLearn
    "model": "tensor", "tp": "tensor", "mp": "tensor", "tensor_parallelism": "tensor",
    "ici_tensor_parallelism": "tensor", "dp": "data", "replica": "data",
    "ici_data_parallelism": "data", "ici_fsdp_parallelism": "fsdp",
    "dcn_data_parallelism": "dcn_data", "replica_dcn": "dcn_data", "sp": "context",
    "cp": "context", "sequence": "context", "ep": "expert", "pp": "stage", "pipeline": "stage",
    # dimensions of rules: MaxText's and T5X's logical axes, Levanter's
    "joined_kv": "heads", "kv": "head_dim", "length": "seq", "position": "seq", "token": "batch",
    "activation_batch": "act_batch", "activation_embed": "act_embed", "activation_mlp": "act_mlp",
    "activation_heads": "act_heads", "activation_length": "act_seq", "exp": "expert",
}  # fmt: skip


def our_name(name: str, valid: Collection[str]) -> str | None:
    """Return the name that tpusim has for what another library calls `name`, if it is valid."""
    found = _NAMES.get(name)
    return found if found in valid else None

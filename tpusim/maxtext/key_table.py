"""The treatment of each key of a MaxText config: read, left out with a note, refused, or ignored.

`defaults.toml` has the keys that are read, `ignored.toml` those that are ignored. Names and
meanings are those of AI-Hypercomputer/maxtext, configs/base.yml of April 2024 to mid 2026.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from tpusim.maxtext.shipped_tables import patterns

OFF = (None, False, 0, 0.0, -1, 1, "", "none", "None", "default", "disabled", "causal_lm", "fsdp")
"""Values with which a key has no effect."""

RENAMED: Mapping[str, str] = {
    "use_sparse_indexer": "use_indexer",
    "fsdp_shard_on_exp": "shard_exp_on_fsdp",
    "num_vocab_tiles": "num_vocab_tiling",
    "tile_batch_seq": "wi_tile_fwd_batch_seq",
    "tile_embed_dim": "wi_tile_fwd_embed_dim",
    "tile_mlp_dim": "wi_tile_fwd_mlp_dim",
}
"""Names of other versions, and the one used here."""

LEFT_OUT: Mapping[str, str] = {
    "attention_bias": "the biases of Q, K and V",
    "mlp_bias": "the biases of the MLP's projections",
    "trainable_position_size": "the table of learnt positions",
    "attn_logits_soft_cap": "the soft cap of the attention scores",
    "num_kv_shared_layers": "that the last layers take the keys and values of others",
    "attention_sink": "the attention sinks",
    "fused_mlp": "the MLP's input matrices in one matmul",
    "dropout_rate": "dropout",
    "mtp_num_layers": "the layers that predict further tokens",
    "z_loss_multiplier": "the z-loss",
    "load_balance_loss_weight": "the loss that balances the experts",
    "activations_in_float32": "activation functions in f32",
    "float32_qk_product": "attention scores multiplied in f32",
    "shard_optimizer_over_data": "optimizer state sharded over data",
    "record_internal_nn_metrics": "statistics of the activations",
    "use_qk_clip": "clipped queries and keys",
    "enable_rampup_batch_size": "the smaller batches of the first steps",
    "max_checkify": "checks inside the step",
    "matmul_precision": "matmuls in several passes",
    "experimental_sa_quant_q_fp8": "queries in fp8",
    "experimental_sa_quant_k_fp8": "keys in fp8",
    "use_ragged_attention": "attention over ragged sequences",
    "model_fsdp_ag_once": "weights gathered once per step",
    "dense_fsdp_use_two_stage_all_gather": "weights gathered in two stages",
    "use_multimodal": "encoders of images",
    "use_audio": "encoders of sound",
    "pipeline_fsdp_ag_once": "weights gathered once for all microbatches of a pipeline",
    "pipeline_fsdp_ag_per_repeat": "weights gathered once a repeat of a pipeline",
    "pipeline_delay_activation_forwarding": "activations sent one iteration later",
    "use_batch_split_schedule": "the batch split to hide the experts' exchange",
    "moe_fsdp_use_two_stage_all_gather": "experts' weights gathered in two stages",
    "num_moe_token_chunks": "tokens sent to their experts in chunks",
    "custom_mesh": "the placement of the mesh by name; it is chosen",
    "te_comm_gemm_overlap": "matmuls that overlap their collectives",
    "expert_shard_attention_option": "attention sharded otherwise than over fsdp by the experts",
}
"""Keys of features that are not modelled, and the feature; each is a note."""

EFFECTIVE_AT_ONE = (
    "mtp_num_layers",
    "z_loss_multiplier",
    "load_balance_loss_weight",
    "dropout_rate",
)
"""Keys that have an effect even with a one."""

REFUSED: Mapping[str, str] = {
    "parameter_memory_host_offload": "weights on the host",
    "moba": "attention to chosen blocks",
    "use_indexer": "sparse attention by an indexer",
    "mhc_expansion_rate": "hyper-connections",
    "custom_mesh_and_rule": "a mesh and rules by name",
    "subslice_shape": "a part of a slice",
    "use_2d_fsdp_sharding": "experts sharded over fsdp and fsdp_transpose",
    "use_dpo": "preference optimisation, which runs two models",
    "enable_diloco": "slices that train apart",
    "training_objective": "another objective than the next token",
    "enable_mhc_lite": "hyper-connections",
    "engram_layers": "lookups of n-grams",
    "weight_sparsity_n": "sparse weights",
    "trainable_parameters_mask": "weights that are not trained",
    "o_lora_rank": "compressed attention",
}
"""Keys of features that change a step too much to leave out; each is an error."""


def ignored(key: str) -> bool:
    """Return True if a key is known not to change a step."""
    return any(fnmatchcase(key, pattern) for pattern in patterns())


def has_effect(value: Any, key: str = "") -> bool:
    """Return True if a value of a key has an effect."""
    if key in EFFECTIVE_AT_ONE and value == 1:
        return True
    return bool(value) if isinstance(value, list | dict) else value is True or value not in OFF

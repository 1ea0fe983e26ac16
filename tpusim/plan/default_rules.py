"""The default sharding rules, and those that a style of program has instead."""

from collections.abc import Mapping

from tpusim.plan.axes import Axes

DEFAULT_RULES: Mapping[str, Axes] = {
    "embed": ("fsdp", "dcn_fsdp", "context", "expert"),
    "mlp": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "vocab": ("tensor",),
    "head_dim": (),
    "q_rank": ("fsdp", "dcn_fsdp", "context", "expert"),
    "kv_rank": ("fsdp", "dcn_fsdp", "context", "expert"),
    "layer_embed": ("fsdp", "dcn_fsdp", "context", "expert"),
    "expert": ("expert",),
    "expert_mlp": ("tensor",),
    "shared_mlp": ("tensor",),
    "norm": (),
    "act_batch": ("dcn_data", "dcn_fsdp", "data", "fsdp", "expert"),
    "act_seq": ("context",),
    "act_kv_seq": (),
    "act_residual_seq": (),
    "act_embed": (),
    "act_mlp": ("tensor",),
    "act_heads": ("tensor",),
    "act_kv_heads": ("tensor",),
    "act_vocab": ("tensor",),
    "act_head_dim": (),
    "act_expert": ("expert",),
    "act_slot": ("context",),
    "act_choice": (),
    "act_expert_mlp": ("tensor",),
    "act_shared_mlp": ("tensor",),
}
"""`norm` is for scales of norms and biases of the residual stream, which are replicated. `context`
shards the sequence of activations and the weights besides, as MaxText's does; how each device sees
all keys and values is `Plan.context.exchange`. `act_residual_seq` are axes that shard the sequence
of the residual stream and of its norms (tensors of tokens and `embed`) besides those of `act_seq`:
with `tensor`, Megatron sequence parallelism (arXiv:2205.05198, section 4.2.2; MaxText's
`activation_norm_length`). `dcn_data` and `dcn_fsdp` are `data` and `fsdp` across slices. `expert`
shards the experts, and outside of their block the batch and the weights, as MaxText's does (its
base.yml): tensors and weights that list the experts first give them the axis. Weights that lack
`embed` have its layout on another dimension: `q_rank` and `kv_rank` of latent attention (MaxText's
`q_lora` and `kv_lora`), and `layer_embed`, the width of the tables that layers have of their own
(its `embed_vocab`)."""

STYLE_RULES: Mapping[str, Mapping[str, Axes]] = {
    "plain": {},
    "maxtext": {"act_embed": ("tensor",)},
}
"""The rules that a style changes: MaxText's `activation_embed` is on `tensor` (its base.yml)."""

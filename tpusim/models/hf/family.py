"""What a family of configs has in common, as one row of the families' table."""

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
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
"""The activation functions of transformers, and ours for each: GELU by its error function and by
tanh cost about the same, and by the logistic function as much as SiLU."""

DROPOUT = dict.fromkeys(
    ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "emb_pdrop", "hidden_dropout",
     "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "resid_dropout",
     "embed_dropout", "residual_dropout", "embedding_dropout", "mlp_dropout", "activation_dropout",
     "dropout_rate"),
    "dropout",
)  # fmt: skip
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts; transformers reads some of them for one another."""

QKV, ALL_ATTENTION = {"qkv_bias": True}, {"qkv_bias": True, "out_bias": True}
MLP = {"mlp_bias": True}
ALL = ALL_ATTENTION | MLP
"""Biases that one key of a config asks for."""

ATTENTION_BIAS = {"attention_bias": ALL_ATTENTION}
LLAMA_BIASES = {"attention_bias": ALL_ATTENTION, "mlp_bias": MLP}
"""Flags that many families share."""

PLAIN = {"hidden_act": "silu", "tie_word_embeddings": False}
TIED = PLAIN | {"tie_word_embeddings": True}
"""The defaults of most decoders."""

SINKS = "the sinks of the attention, a number a head beside the scores"
NO_ROTARY = "that layers which see all keys have no rotary positions"
"""Features of several families that are not modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFamily:
    """The common part of the configs of one family.

    name: what documents and messages call it.
    architectures: the classes with a head for language modelling, or another loss.
    types: its `model_type`s.
    kind: the architecture that it is read as, of `ARCHITECTURES`.
    layer: flat keys of the architecture that no key of the config gives.
    flags: the flat keys that a key of the config gives where it is true; with `!`, where false;
        with `?`, where it has a value.
    counts: flat keys that are whole numbers, and the keys that give them; null is 0.
    more_positions: rows of the table of positions beside those that the config counts.
    defaults: of the keys that a config may leave out. A key of a part has a dot (`ffn.width`).
    sizes: the keys of the dimensions.
    older: keys of files written before transformers had the family, and today's key for each.
    four_embed: the MLP is four times as wide as the embedding where the config does not say.
    kv_heads: the key of the heads of keys and values.
    one_kv_head: keys with which there is one of those, if all hold; with `!`, if they are false.
    activation: the key of the activation function; empty where `layer` has it.
    windows: the layers that see a window of the keys, where `layer_types` does not give them:
        `none`, `all`, `pattern` (all but each so many-th), `first` (the same, but the first of each
        so many), `last` (from `max_window_layers` on), `alternate` (each other one up to there).
    window: the key of the window.
    experts: dimensions of the experts, and the keys that give them, with `dense_mlp` for the width
        of layers without experts; empty where there are none.
    latent: attention is latent.
    only: values that keys must have, and in words the operation that others ask for.
    left_out: keys of features that are not modelled.
    always: features that are not modelled and have no key.
    """

    name: str
    architectures: tuple[str, ...]
    types: tuple[str, ...]
    kind: str = "transformer"
    layer: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    more_positions: int = 0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZE_KEYS)
    older: Mapping[str, str] = field(default_factory=dict)
    four_embed: bool = False
    kv_heads: str = "num_key_value_heads"
    one_kv_head: tuple[str, ...] = ()
    activation: str = "hidden_act"
    windows: str = "none"
    window: str = "sliding_window"
    experts: Mapping[str, str] = field(default_factory=dict)
    latent: bool = False
    only: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    always: tuple[str, ...] = ()

"""MaxText's decoder blocks, those that can be simulated and those that cannot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "sigmoid": "silu"}
"""MaxText's activation functions, and what each costs like; gpt-oss multiplies by its sigmoid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a `decoder_block` stands for.

    layer: fields of `Transformer` that no key gives. layers: of the model to one of the config's.
    global_every: each so many-th layer sees all keys, where there is a window; -1 where the block
    has none. moe: the block has experts, when there is more than one; shared: also shared ones.
    """

    layer: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 1
    global_every: int = -1
    moe: bool = False
    shared: bool = False
    qk_norm: bool = False


BLOCKS: Mapping[str, Block] = {
    "default": Block(layer={"parallel": True}),
    "llama2": Block(),
    "mistral": Block(),
    "mixtral": Block(moe=True),
    "gemma": Block(),
    "gemma2": Block(layers=2, global_every=2),
    "gemma3": Block(layer={"qk_norm": True}, global_every=6),
    "qwen2": Block(),
    "qwen3": Block(qk_norm=True),
    "qwen3_moe": Block(qk_norm=True, moe=True),
    "gpt3": Block(layer={"rotary": False}),
    "deepseek": Block(moe=True, shared=True),
    "gpt_oss": Block(moe=True, global_every=2),
}
"""MaxText's decoder blocks that can be simulated (layers/decoders.py and a file each). gemma2's
holds a local and a global layer, so its config counts half of them."""

CANNOT = {
    "llama4": "attention in chunks",
    "qwen3_next": "linear attention",
    "olmo3": "norms after its projections only",
    "gemma4": "layers of several shapes",
    "gemma4_small": "layers of several shapes",
    "simple": "no transformer's layers",
    "simple_mlp": "no attention",
}

"""The attention of a model's layers."""

from dataclasses import dataclass

from tpusim.base.errors import ModelError
from tpusim.graph import COMPUTE
from tpusim.models.checks import check_types, check_values

_ATTENTION_CHOICES = {
    "kernel": ("flash", "dot", "none"),
    "softmax_dtype": (COMPUTE, "f32"),
    "qk_norm_heads": ("", "each", "all"),
}

_GLOBAL_KEYS = ("global_first", "global_head_dim", "global_kv_heads", "global_keys_as_values")
"""Fields of the layers that see all keys, among layers that see a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttention:
    """Attention of each token to those of its sequence.

    kernel: `flash` (fused), `dot` (scores in HBM), or `none` (layers without attention).
    softmax_dtype: dtype of the scores of a `dot` kernel: `compute` (the plan's) or `f32`. A fused
        kernel keeps the scores on the chip.
    window: keys that a query sees; 0 for all.
    global_every: every n-th layer sees all keys, beside a window (Gemma 3: 6); 0 for none. Layers
        that do not fill the last pattern see the window.
    global_first: the first layer of each pattern sees all keys (ModernBERT), not the last.
    global_head_dim: width of a head in layers that see all keys (Gemma 4: 512); 0 for `head_dim`.
    global_kv_heads: K/V heads of these layers; 0 for `kv_heads`.
    global_keys_as_values: one projection makes keys and values in these layers.
    rotary: rotary positions.
    qk_norm: norms of queries and keys over `head_dim` with one scale for all heads (Qwen3).
    qk_norm_heads: `each` for a scale per head (Cohere), `all` for one norm over all heads (OLMo 2).
    fused_qkv: one matrix makes queries, keys and values.
    """

    kernel: str = "flash"
    softmax_dtype: str = COMPUTE
    window: int = 0
    global_every: int = 0
    global_first: bool = False
    global_head_dim: int = 0
    global_kv_heads: int = 0
    global_keys_as_values: bool = False
    rotary: bool = True
    qk_norm: bool = False
    qk_norm_heads: str = ""
    fused_qkv: bool = False

    def __post_init__(self) -> None:
        check_types(self, "attention.")
        check_values(self, _ATTENTION_CHOICES, "attention.")
        if self.fused_qkv and self.global_keys_as_values:
            raise ModelError(
                "attention.fused_qkv makes values of their own, but "
                "attention.global_keys_as_values takes the keys for them; write one of the two"
            )
        if self.qk_norm_heads and not self.qk_norm:
            raise ModelError(
                f"attention.qk_norm_heads is {self.qk_norm_heads!r}, but queries and keys are not "
                "normed; write attention.qk_norm = true, or leave it out"
            )
        for key in _GLOBAL_KEYS:
            value = getattr(self, key)
            if value and not (self.window and self.global_every):
                raise ModelError(
                    f"attention.{key} is {value}, but no layer differs from the others; write a "
                    "window and global_every too"
                )

    @property
    def period(self) -> int:
        """Layers after which the pattern of windows repeats."""
        return max(self.global_every, 1) if self.window else 1

    @property
    def of_global_layers(self) -> tuple[int, int, bool]:
        """Width and number of K/V heads of layers that see all keys, and if keys are the values."""
        return self.global_head_dim, self.global_kv_heads, self.global_keys_as_values

    def is_global(self, layer: int) -> bool:
        """Return True for a layer, counted from 0, that sees all keys among those of a window."""
        if not (self.window and self.global_every):
            return False
        return (layer if self.global_first else layer + 1) % self.global_every == 0

    def window_of(self, layer: int) -> int:
        """Return the window of a layer, counted from 0; 0 if it sees all keys."""
        return 0 if self.is_global(layer) else self.window

"""The attention of a model's layers."""

from dataclasses import dataclass

from tpusim.base.errors import ModelError
from tpusim.graph import COMPUTE
from tpusim.models.checks import check_types, check_values

GATED_DELTA, KIMI_DELTA, LIGHTNING = LINEAR_KINDS = ("gated-delta", "kimi-delta", "lightning")
"""Kinds of linear attention: Gated DeltaNet (Yang et al., arXiv:2412.06464) as in Qwen3-Next, Kimi
Delta Attention (arXiv:2510.26692), and Lightning Attention (Qin et al., arXiv:2405.17381) as in
Ling 2.6 (arXiv:2606.15079)."""

_ATTENTION_CHOICES = {
    "kernel": ("flash", "dot", "none"),
    "softmax_dtype": (COMPUTE, "f32"),
    "qk_norm_heads": ("", "each", "all"),
    "linear": ("", *LINEAR_KINDS),
    "global_ends": ("", "first", "last", "both"),
}

_GLOBAL_KEYS = (
    "global_first",
    "global_ends",
    "global_head_dim",
    "global_kv_heads",
    "global_keys_as_values",
)
"""Fields of the layers that see all keys, among layers that see a window or are linear."""

_LINEAR_KEYS = (
    "linear_heads", "linear_key_heads", "linear_head_dim", "linear_value_dim", "linear_conv",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttention:
    """Attention of each token to those of its sequence.

    kernel: `flash` (fused), `dot` (scores in HBM), or `none` (layers without attention).
    softmax_dtype: dtype of the scores of a `dot` kernel: `compute` (the plan's) or `f32`. A fused
        kernel keeps the scores on the chip.
    window: keys that a query sees; 0 for all.
    global_every: every n-th layer sees all keys, beside a window (Gemma 3: 6) or linear attention
        (Qwen3-Next: 4); 0 for none. Layers that do not fill the last pattern do not.
    global_first: the first layer of each pattern sees all keys (ModernBERT), not the last.
    global_ends: `first`, `last` or `both`: these layers see all keys too (Kimi Linear: the last).
    global_head_dim: width of a head in layers that see all keys (Gemma 4: 512); 0 for `head_dim`.
    global_kv_heads: K/V heads of these layers; 0 for `kv_heads`.
    global_keys_as_values: one projection makes keys and values in these layers.
    rotary: rotary positions.
    qk_norm: norms of queries and keys over `head_dim` with one scale for all heads (Qwen3).
    qk_norm_heads: `each` for a scale per head (Cohere), `all` for one norm over all heads (OLMo 2).
    fused_qkv: one matrix makes queries, keys and values.
    out_gate: the result is multiplied by the sigmoid of a projection of the tokens (Qwen3-Next).
    linear: linear attention of the layers that do not see all keys: `gated-delta`, `kimi-delta` or
        `lightning`.
    linear_heads: its heads; 0 for `heads`.
    linear_key_heads: its heads of queries and keys; 0 for `linear_heads`.
    linear_head_dim: width of its queries and keys; 0 for `head_dim`.
    linear_value_dim: width of its values; 0 for `linear_head_dim`.
    linear_conv: taps of its short convolutions; 0 for none.
    """

    kernel: str = "flash"
    softmax_dtype: str = COMPUTE
    window: int = 0
    global_every: int = 0
    global_first: bool = False
    global_ends: str = ""
    global_head_dim: int = 0
    global_kv_heads: int = 0
    global_keys_as_values: bool = False
    rotary: bool = True
    qk_norm: bool = False
    qk_norm_heads: str = ""
    fused_qkv: bool = False
    out_gate: bool = False
    linear: str = ""
    linear_heads: int = 0
    linear_key_heads: int = 0
    linear_head_dim: int = 0
    linear_value_dim: int = 0
    linear_conv: int = 0

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
        self._check_linear()
        for key in _GLOBAL_KEYS:
            value = getattr(self, key)
            if value and not (self.mixed and self.global_every):
                raise ModelError(
                    f"attention.{key} is {value}, but no layer differs from the others; write a "
                    "window and global_every too"
                )

    def _check_linear(self) -> None:
        """Raise ModelError for keys of linear attention that contradict others or have no use."""
        for key in _LINEAR_KEYS:
            value = getattr(self, key)
            if value and not self.linear:
                raise ModelError(
                    f"attention.{key} is {value}, but no layer has linear attention; write "
                    f'attention.linear, such as "{LINEAR_KINDS[0]}", or leave it out'
                )
        if self.linear and self.window:
            raise ModelError(
                f"attention.window is {self.window}, but the layers that do not see all keys have "
                f'linear attention (attention.linear = "{self.linear}"); leave one of the two out'
            )
        if self.linear and self.kernel == "none":
            raise ModelError(
                'attention.kernel is "none", which leaves no attention, but attention.linear is '
                f'"{self.linear}"; leave one of the two out'
            )

    @property
    def mixed(self) -> bool:
        """True if there are layers that do not see all keys as attention does."""
        return bool(self.window or self.linear)

    @property
    def period(self) -> int:
        """Layers after which the pattern of windows or of linear attention repeats."""
        return max(self.global_every, 1) if self.mixed else 1

    @property
    def of_global_layers(self) -> tuple[int, int, bool]:
        """Width and number of K/V heads of layers that see all keys, and if keys are the values."""
        return self.global_head_dim, self.global_kv_heads, self.global_keys_as_values

    def is_global(self, layer: int, layers: int) -> bool:
        """Return True for a layer that sees all keys among others that do not.

        layer: its number, counted from 0, of all `layers`.
        """
        if not (self.mixed and self.global_every):
            return False
        ends = {"first": (0,), "last": (layers - 1,), "both": (0, layers - 1)}
        every = (layer if self.global_first else layer + 1) % self.global_every == 0
        return every or layer in ends.get(self.global_ends, ())

    def kind_of(self, layer: int, layers: int) -> tuple[int, str]:
        """Return the window of a layer and its linear attention; 0 and "" if it sees all keys."""
        return (0, "") if self.is_global(layer, layers) else (self.window, self.linear)

"""The attention of a model's layers."""

from dataclasses import dataclass

from tpusim.graph import COMPUTE
from tpusim.models.checks import check_types, check_values

_ATTENTION_CHOICES = {"kernel": ("flash", "dot"), "softmax_dtype": (COMPUTE, "f32")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttention:
    """Attention of each token to those of its sequence.

    kernel: `flash` is a fused kernel, `dot` writes the scores to HBM.
    softmax_dtype: where the kernel is `dot`, the dtype of the scores that the softmax takes: the
        plan's (`compute`), or `f32`. A fused kernel keeps them on the chip.
    window: keys that a query sees, 0 for all of them.
    global_every: where there is a window, each so many-th layer sees all keys (Gemma 3: 6), 0 for
        none (Mistral). Layers that do not fill the last pattern see the window.
    rotary: queries and keys are rotated by their position.
    qk_norm: queries and keys are normed over `head_dim`, with one scale for all heads (Qwen3).
    """

    kernel: str = "flash"
    softmax_dtype: str = COMPUTE
    window: int = 0
    global_every: int = 0
    rotary: bool = True
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check_types(self, "attention.")
        check_values(self, _ATTENTION_CHOICES, "attention.")

    @property
    def period(self) -> int:
        """Layers after which the pattern of windows repeats."""
        return max(self.global_every, 1) if self.window else 1

    def window_of(self, layer: int) -> int:
        """Return the window of a layer, counted from 0; the last of each pattern sees all keys."""
        whole = self.global_every and (layer + 1) % self.global_every == 0
        return 0 if whole else self.window

"""The Conformer: an encoder of speech with attention and convolutions."""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.pieces import AttentionForm

SUBSAMPLINGS = 2
"""Convolutions of stride 2 before the layers."""

GLU_FLOPS = 10.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`."""


@dataclass(frozen=True, kw_only=True)
class Conformer(Architecture):
    """A Conformer that classifies each frame of speech (Gulati et al., arXiv:2005.08100).

    Two convolutions of stride 2 make a frame of four; a layer is an MLP, attention, a depthwise
    convolution and another MLP. The factor 1/2 of the MLPs costs nothing and is left out. The loss
    is the cross entropy of each frame with one of a codebook (BEST-RQ, arXiv:2202.01855).

    name: the model's name, as results print it.
    layers: layers between the subsampling and the loss.
    embed: width of the residual stream.
    mlp: width of the MLPs; four times `embed` where it is not given.
    heads: heads of `embed / heads`.
    kernel: taps of the depthwise convolutions.
    frames: frames of an example, of 10 ms each, a multiple of 4.
    mel: frequencies of a frame.
    subsample_channels: channels of the subsampling; `embed` where it is not given.
    codes: codes of the codebook.
    relative: attention has relative positions, with a matmul of their own.
    """

    PUBLISHED: ClassVar[str] = "conformer.toml"
    reads_text: ClassVar[bool] = False
    name: str = "conformer"
    layers: int
    embed: int
    mlp: int = 0
    heads: int
    kernel: int = 32
    frames: int = 1600
    mel: int = 80
    subsample_channels: int = 0
    codes: int = 8192
    relative: bool = False

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, {})
            for key in ("frames", "mel"):
                if getattr(self, key) % 2**SUBSAMPLINGS:
                    raise ModelError(
                        f"{key} is {getattr(self, key)}, which the subsampling by "
                        f"{2**SUBSAMPLINGS} does not divide; write a multiple"
                    )
            check_heads(self.embed, self.heads)

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each frame."""
        w.size(
            embed=self.embed,
            heads=self.heads,
            head_dim=self.embed // self.heads,
            mlp=self.mlp or 4 * self.embed,
            vocab=self.codes,
        )
        x = w.layers("layer", self.layers, self._subsampled(w), self._layer)
        labels = w.input("labels", x.dims[:2])
        return pieces.language_model_loss(
            w, x, labels, form=choices.loss, dtype=choices.logits_dtype
        )

    def _subsampled(self, w: GraphWriter) -> Tensor:
        """Return [batch, frames/4, embed], from a spectrogram of [batch, frames, mel]."""
        x = pieces.images(w, "spectrogram", 1, frames=self.frames, mel=self.mel)
        for number in range(SUBSAMPLINGS):
            name = f"subsample_{number}"
            made = self.subsample_channels or self.embed
            x = pieces.biased(w, name, pieces.convolution(w, name, x, made, (3, 3), stride=2))
            x = pieces.relu(w, f"{name}_relu", x)
        return pieces.biased(w, "frame", w.dense("frame", x, "embed", over=2))

    def _layer(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write one layer."""
        x = w.add("first", x, self._mlp(w, "first_", x))
        x = w.add("second", x, self._attention(w, pieces.layer_norm(w, "attn_norm", x)))
        x = w.add("third", x, self._convolution(w, pieces.layer_norm(w, "conv_norm", x)))
        x = w.add("fourth", x, self._mlp(w, "last_", x))
        return pieces.layer_norm(w, "layer_out", x)

    def _mlp(self, w: GraphWriter, name: str, x: Tensor) -> Tensor:
        normed = pieces.layer_norm(w, f"{name}norm", x)
        return pieces.mlp(w, normed, activation="silu", bias=True, prefix=name, width="mlp")

    def _attention(self, w: GraphWriter, x: Tensor) -> Tensor:
        form = AttentionForm(fused=False, bias=True, out_bias=True)
        return (pieces.relative_attention if self.relative else pieces.attention)(w, x, form)

    def _convolution(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the convolution module, and return its result."""
        channels = pieces.channels(w, self.embed)
        halves = tuple(pieces.linear(w, name, x, channels) for name in ("glu_0", "glu_1"))
        x = w.pointwise("glu", halves, halves[0].dims, GLU_FLOPS, function=function("glu"))
        x = pieces.convolution(w, "depthwise", x, self.embed, (self.kernel,), groups=self.embed)
        x = pieces.batch_norm(w, "batch_norm", pieces.biased(w, "depthwise", x))
        x = pieces.activate(w, "silu", (x,), "conv_silu", "conv_")
        return pieces.linear(w, "conv_out", x, "embed")

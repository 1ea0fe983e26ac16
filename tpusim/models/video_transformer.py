"""Transformers of video that learn a flow, and attend to a text: Wan 2.1.

Latents of videos and the tokens of the text are inputs: the encoders of both are frozen, and run
once over the data set before the first step, as MaxDiffusion has it for its transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.pieces import AttentionForm

TIME_WIDTH = 256
"""Sines and cosines of a time."""

KERNEL_KEYS = 128
"""Tokens are padded to a multiple of so many, which a fused kernel takes at once; Wan's code pads
them too (`seq_len` of `wan/modules/model.py`), and 75,600 tokens become 75,648."""

_CHOICES = {"attention": ("dot", "flash")}


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoTransformer(Architecture):
    """A diffusion transformer of videos with cross-attention to a text (Wan, arXiv:2503.20314).

    A layer is self-attention over all tokens of a video, attention to the text, and an MLP. One
    projection of the time, which all layers share, plus numbers of each layer's own shift, scale
    and gate the first and the last. Queries and keys are normed over all heads.

    name: the model's name, as results print it.
    layers: layers of the transformer.
    embed: width of tokens.
    mlp: width of the MLP.
    heads: heads of each attention.
    frames: latents in time: (frames of the video - 1) / 4 + 1.
    height, width: latents of a frame, an eighth of its pixels.
    latent_channels: of the latents.
    patch: side of the square of latents of a frame that is a token.
    text: tokens of a text.
    text_embed: width of its tokens.
    attention: `dot` writes the scores to HBM, `flash` is a fused kernel.
    """

    PUBLISHED: ClassVar[str] = "video_transformer.toml"
    reads_text: ClassVar[bool] = False
    name: str = "video-transformer"
    layers: int
    embed: int
    mlp: int
    heads: int
    frames: int = 21
    height: int = 90
    width: int = 160
    latent_channels: int = 16
    patch: int = 2
    text: int = 512
    text_embed: int = 4096
    attention: str = "flash"

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, _CHOICES)
            check_heads(self.embed, self.heads)
            for key in ("height", "width"):
                if getattr(self, key) % self.patch:
                    raise ModelError(
                        f"{key} is {getattr(self, key)}, which patch {self.patch} does not "
                        "divide; write a multiple of it"
                    )

    @property
    def tokens(self) -> int:
        """The number of tokens of a video."""
        return self.frames * (self.height // self.patch) * (self.width // self.patch)

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the mean square error of each video."""
        self._declare(w)
        latents = w.input("latents", ("batch", "patches", "values"), "compute")
        given = w.input("text", ("batch", "text_seq", "text_embed"), "compute")
        text = pieces.linear(w, "text_1", given, "embed")
        text = pieces.activate(w, "gelu", (text,), "text_hidden", "text_")
        text = pieces.linear(w, "text_2", text, "embed")
        time, rows = self._time(w)
        write: Callable[[GraphWriter, Tensor], Tensor] = partial(self._layer, text=text, rows=rows)
        x = pieces.linear(w, "patch", latents, "embed")
        x = w.layers("layer", self.layers, x, write)
        both = pieces.biased(w, "head_rows", pieces.concatenated(w, "head_rows", time, time))
        x = pieces.modulated_norm(w, "head_norm", x, both, 0)
        x = w.output("values", pieces.linear(w, "head", x, "values"))
        target = w.input("target", x.dims, "compute")
        made = w.tensor("loss", ("batch",), "f32")
        error = function("mean_square_error")
        return w.pointwise("loss", (x, target), made, 3.0, over=x.dims[1:], function=error)

    def _declare(self, w: GraphWriter) -> None:
        whole = KERNEL_KEYS if self.attention == "flash" else 1
        w.size(
            patches=ceil(self.tokens / whole) * whole,
            text_seq=self.text,
            values=self.latent_channels * self.patch**2,
            text_embed=self.text_embed,
            waves=TIME_WIDTH,
            embed=self.embed,
            heads=self.heads,
            head_dim=self.embed // self.heads,
            mlp=self.mlp,
        )

    def _time(self, w: GraphWriter) -> tuple[Tensor, Tensor]:
        """Write the embedding of the time, and the six rows that all layers share of it."""
        x = w.input("time", ("batch", "waves"), "compute")
        time = pieces.embedded(w, "time", x, "embed")
        return time, pieces.modulation(w, "time_rows", pieces.silu(w, "rows_silu", time), 6)

    def _layer(self, w: GraphWriter, x: Tensor, *, text: Tensor, rows: Tensor) -> Tensor:
        """Write one layer."""
        fused = self.attention == "flash"
        own = AttentionForm(
            fused=fused, rotary=True, qk_norm=True, qk_norm_heads="all", bias=True, out_bias=True
        )
        rows = pieces.biased(w, "mod", rows)
        seen = pieces.attention(w, pieces.modulated_norm(w, "attn_norm", x, rows, 0), own)
        mid = w.add("mid", x, pieces.gated(w, "attn_gated", seen, rows, 2))
        cross = w.marked("cross_")
        queries = pieces.layer_norm(cross, "norm", mid)
        seen = pieces.attention(cross, queries, replace(own, rotary=False), memory=text)
        mid = w.add("cross_mid", mid, seen)
        normed = pieces.modulated_norm(w, "mlp_norm", mid, rows, 3)
        made = pieces.mlp(w, normed, activation="gelu", bias=True)
        return w.add("layer_out", mid, pieces.gated(w, "mlp_gated", made, rows, 5))

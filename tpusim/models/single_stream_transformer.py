"""Transformers of one stream of text and image tokens that learn a flow: Z-Image.

`SingleStreamTransformer.published("z-image-turbo")` is that of Z-Image-Turbo (arXiv:2511.22699).
Latents of images and tokens of the text are inputs; the encoder of the text is a language model,
and `ImageDecoder` makes images of the latents.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.pieces import AttentionForm

TIME_WIDTH = 256
"""Sines and cosines of a time."""

_CHOICES = {"attention": ("dot", "flash")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleStreamTransformer(Architecture):
    """A transformer whose layers have the same weights for text and image tokens.

    Before the tokens are joined, each kind passes layers of its own, the refiners. A layer is
    attention and a gated MLP in turn, each between two norms. A vector of the time scales the first
    and gates the second of them; the refiners of the text read none. A learnt vector stands in
    place of tokens that only fill a sequence.

    name: the model's name, as results print it.
    layers: layers of the joined tokens.
    refiners: layers of each kind of tokens alone.
    embed: width of tokens.
    mlp: width of the MLPs.
    heads: heads of each attention.
    vector: width of the vector of the time.
    time_hidden: width between the two matrices that make it.
    latent: side of the latents, an eighth of the image's.
    latent_channels: of the latents.
    patch: side of the square of latents that is a token.
    text: tokens of a text.
    text_embed: width of its tokens.
    attention: `dot` writes the scores to HBM, `flash` is a fused kernel.
    flash_from: tokens from which on attention is the fused kernel.
    """

    PUBLISHED: ClassVar[str] = "single_stream_transformer.toml"
    reads_text: ClassVar[bool] = False
    name: str = "single-stream-transformer"
    layers: int
    embed: int
    mlp: int
    heads: int
    refiners: int = 0
    vector: int = 256
    time_hidden: int = 1024
    latent: int = 128
    latent_channels: int = 16
    patch: int = 2
    text: int = 512
    text_embed: int = 2560
    attention: str = "flash"
    flash_from: int = 4096

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, _CHOICES)
            check_heads(self.embed, self.heads)
            if self.latent % self.patch:
                raise ModelError(
                    f"latent is {self.latent}, which patch {self.patch} does not divide; write a "
                    "multiple of it"
                )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the mean square error of each example."""
        self._declare(w)
        time = w.input("time", ("batch", "waves"), "compute")
        vector = pieces.embedded(w, "time", time, "vector", "time_hidden")
        layer = partial(self._layer, vector=vector)
        image = self._image(w)
        text = self._text(w)
        if self.refiners:
            text = w.layers("text_refiner", self.refiners, text, self._layer)
            image = w.layers("image_refiner", self.refiners, image, layer)
        x = pieces.joined(w, "tokens", (text, image), "joint_seq")
        x = pieces.behind(w, "image_tokens", w.layers("layer", self.layers, x, layer), "patches")
        rows = pieces.modulation(w, "final_scale", pieces.silu(w, "final_silu", vector), 1, "embed")
        x = pieces.norm_of_kind(w, "layer-unscaled", "final_norm", x)
        x = pieces.linear(w, "proj_out", pieces.scaled(w, "final_scaled", x, rows, 0), "values")
        x = w.output("values", x)
        target = w.input("target", x.dims, "compute")
        made = w.tensor("loss", ("batch",), "f32")
        error = function("mean_square_error")
        return w.pointwise("loss", (x, target), made, 3.0, over=x.dims[1:], function=error)

    def _image(self, w: GraphWriter) -> Tensor:
        """Write the tokens of the image: [batch, patches, embed]."""
        latents = w.input("latents", ("batch", "patches", "values"), "compute")
        x = pieces.linear(w, "image_in", latents, "embed")
        return pieces.filled(w, "image", x, w.extent("patches"))

    def _text(self, w: GraphWriter) -> Tensor:
        """Write the tokens of the text: [batch, text_seq, embed]."""
        given = w.input("text", ("batch", "text_seq", "text_embed"), "compute")
        normed = pieces.norm(w, "text_norm", given, "text_embed")
        return pieces.filled(w, "text", pieces.linear(w, "text_in", normed, "embed"), self.text)

    def _declare(self, w: GraphWriter) -> None:
        patches = (self.latent // self.patch) ** 2
        w.size(
            patches=patches,
            text_seq=self.text,
            joint_seq=patches + self.text,
            values=self.latent_channels * self.patch**2,
            text_embed=self.text_embed,
            waves=TIME_WIDTH,
            vector=self.vector,
            time_hidden=self.time_hidden,
            embed=self.embed,
            heads=self.heads,
            head_dim=self.embed // self.heads,
            mlp=self.mlp,
        )

    def _layer(self, w: GraphWriter, x: Tensor, *, vector: Tensor | None = None) -> Tensor:
        """Write one layer; its norms are scaled and gated where there is a vector."""
        rows: tuple[Tensor, ...] = ()
        if vector is not None:
            scales = pieces.modulation(w, "scales", vector, 2, "embed")
            gates = pieces.modulation(w, "gates", vector, 2, "embed")
            rows = (scales, pieces.bounded(w, "gates_bounded", gates))
        fused = self.attention == "flash" and w.extent(x.dims[1]) >= self.flash_from
        form = AttentionForm(fused=fused, rotary=True, qk_norm=True)
        seen = pieces.attention(w, self._before(w, "attn", x, rows, 0), form, out="attn_out")
        mid = w.add("mid", x, self._after(w, "attn", seen, rows, 0))
        made = pieces.mlp(w, self._before(w, "mlp", mid, rows, 1), gated=True)
        return w.add("layer_out", mid, self._after(w, "mlp", made, rows, 1))

    def _before(
        self, w: GraphWriter, name: str, x: Tensor, rows: tuple[Tensor, ...], number: int
    ) -> Tensor:
        """Write the norm before attention or the MLP, and its scale."""
        x = pieces.norm(w, f"{name}_norm", x)
        return pieces.scaled(w, f"{name}_scaled", x, rows[0], number) if rows else x

    def _after(
        self, w: GraphWriter, name: str, x: Tensor, rows: tuple[Tensor, ...], number: int
    ) -> Tensor:
        """Write the norm after attention or the MLP, and its gate."""
        x = pieces.norm(w, f"{name}_post_norm", x)
        return pieces.gated(w, f"{name}_gated", x, rows[1], number) if rows else x

"""The decoder of latent diffusion's autoencoder (arXiv:2112.10752): images of latents.

`ImageDecoder.published("sdxl-vae")` is that of Stable Diffusion XL. Latents are its input, and its
loss is the mean square of the error of the image; the encoder is not in it.
"""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_types
from tpusim.models.pieces import AttentionForm

COLOURS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoder(Architecture):
    """Residual blocks on levels that each have twice the side of the one before.

    Attention of one head over all positions stands between the first two blocks.

    name: the model's name, as results print it.
    latent: side of the latents; the image's is twice that for each level after the first.
    latent_channels: of the latents.
    channels: of each level, from the latents to the image.
    blocks: residual blocks of a level.
    mixed_latents: a matrix over the channels of the latents comes first.
    """

    PUBLISHED: ClassVar[str] = "image_decoder.toml"
    reads_text: ClassVar[bool] = False
    name: str = "image-decoder"
    latent: int = 128
    latent_channels: int = 4
    channels: tuple[int, ...] = (512, 512, 256, 128)
    blocks: int = 3
    mixed_latents: bool = True

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            for key in ("latent", "latent_channels", "blocks"):
                if getattr(self, key) < 1:
                    raise ModelError(f"{key} is {getattr(self, key)}; write 1 or more")
            if min(self.channels, default=0) < 1:
                raise ModelError(f"channels is {self.channels}; write 1 or more for each level")

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the mean square error of each image."""
        sides = {key: self.latent << len(self.channels) - 1 for key in ("height", "width")}
        target = pieces.images(w, "target", COLOURS, **sides)
        height, width = (pieces.resized(w, dim, self.latent) for dim in target.dims[1:-1])
        count = pieces.channels(w, self.latent_channels)
        x = w.input("latents", ("batch", height, width, count), "compute")
        if self.mixed_latents:
            x = pieces.biased_convolution(w, "mix", x, self.latent_channels, taps=1)
        x = self._middle(w, pieces.biased_convolution(w, "in", x, self.channels[0]))
        for level, channels in enumerate(self.channels):
            for block in range(self.blocks):
                x = pieces.residual_block(w.scope(f"up{level}.{block}"), x, channels)
            if level + 1 < len(self.channels):
                x = pieces.doubled(w.scope(f"up{level}"), x, channels)
        x = pieces.normed(w, "out_norm", x)
        x = w.output("image", pieces.biased_convolution(w, "out", x, COLOURS))
        made = w.tensor("loss", ("batch",), "f32")
        error = function("mean_square_error")
        return w.pointwise("loss", (x, target), made, 3.0, over=x.dims[1:], function=error)

    def _middle(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the two blocks of the smallest level, and the attention between them."""
        x = pieces.residual_block(w.scope("middle.0"), x, self.channels[0])
        inner = w.scope("attention")
        w.size(patches=w.extent(*x.dims[1:-1]), heads=1, head_dim=self.channels[0])
        y = w.reshape(
            "tokens", pieces.instance_norm(inner, "norm", x), ("batch", "patches", x.dims[-1])
        )
        form = AttentionForm(fused=False, bias=True, out_bias=True)
        y = inner.reshape("pixels", pieces.attention(inner, y, form), x.dims)
        x = inner.add("attended", x, y)
        return pieces.residual_block(w.scope("middle.1"), x, self.channels[0])

"""The U-Net of latent diffusion (arXiv:2112.10752), with attention to a text.

`DiffusionUNet.published("stable-diffusion-v2-base")` is that of Stable Diffusion v2-base: the
result of an encoder of texts, the noisy latents and an embedding of the time are its inputs, and
its loss is the mean square of the error of the noise. Encoders of images and texts are not in it.
"""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_halvings, check_types
from tpusim.models.pieces import AttentionForm

_LEAST = {
    **dict.fromkeys(("latent", "latent_channels", "blocks", "text", "text_embed"), 1),
    **dict.fromkeys(("attention_levels", "heads", "head_dim", "flash_from"), 0),
}
"""The smallest value of each field."""

TIME_WIDTH = 4
"""Width of the embedded time, over the channels of the first level (diffusers' UNet2DCondition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionUNet(Architecture):
    """A U-Net of residual blocks, each followed by self-attention and attention to the text.

    name: the model's name, as results print it.
    latent: side of the latents, an eighth of the image's.
    latent_channels: of the latents.
    channels: of each level; each has half the side of the one before.
    blocks: residual blocks of a level on the way down; one more on the way up.
    attention_levels: levels with attention, from the first.
    heads: of attention; 0 for as many as `head_dim` gives.
    head_dim: width of a head; 0 for channels / heads.
    text: tokens of a text.
    text_embed: width of the encoder's result.
    flash_from: tokens from which on self-attention is one kernel.
    """

    PUBLISHED: ClassVar[str] = "diffusion_unet.toml"
    reads_text: ClassVar[bool] = False
    name: str = "diffusion-unet"
    latent: int = 64
    latent_channels: int = 4
    channels: tuple[int, ...] = (320, 640, 1280, 1280)
    blocks: int = 2
    attention_levels: int = 3
    heads: int = 0
    head_dim: int = 64
    text: int = 77
    text_embed: int = 1024
    flash_from: int = 4096

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            for key, least in _LEAST.items():
                if getattr(self, key) < least:
                    raise ModelError(f"{key} is {getattr(self, key)}; write {least} or more")
            if bool(self.heads) == bool(self.head_dim):
                raise ModelError("give either heads or head_dim")
            for count in self.channels:
                if count % (self.heads or self.head_dim):
                    raise ModelError(
                        f"{count} channels do not divide into heads; write channels that "
                        f"{self.heads or self.head_dim} divides"
                    )
            check_halvings("latent", self.latent, len(self.channels) - 1)

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the mean square error of each example."""
        side, count = self.latent, self.latent_channels
        given = pieces.images(w, "latents", count, height=side, width=side)
        w.size(text_seq=self.text, text_embed=self.text_embed)
        text = w.input("text", ("batch", "text_seq", "text_embed"), "compute")
        net = _Network(self, w, text, self._time(w))
        x = net.convolve(w, "in", given, self.channels[0])
        x = net.up(net.middle(*net.down(x)))
        x = w.output("noise_found", net.convolve(w, "out", pieces.normed(w, "out_norm", x), count))
        noise = w.input("noise", x.dims, "compute")
        error = function("mean_square_error")
        over = x.dims[1:]
        made = w.tensor("loss", ("batch",), "f32")
        return w.pointwise("loss", (x, noise), made, 3.0, over=over, function=error)

    def _time(self, w: GraphWriter) -> Tensor:
        """Write the embedding of the time, from its sines and cosines, which are an input."""
        first = pieces.channels(w, self.channels[0])
        wide = pieces.channels(w, TIME_WIDTH * self.channels[0])
        x = w.input("time", ("batch", first), "compute")
        x = pieces.silu(w, "time_silu", pieces.linear(w, "time_1", x, wide))
        return pieces.silu(w, "time_out", pieces.linear(w, "time_2", x, wide))


@dataclass(frozen=True, slots=True)
class _Network:
    """The levels of a U-Net that is written into a graph.

    text, time: what every block attends to, and what it adds.
    """

    model: DiffusionUNet
    w: GraphWriter
    text: Tensor
    time: Tensor

    def down(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Write the way down; return its result, and what the way up reads of it."""
        kept, model = [x], self.model
        for level, count in enumerate(model.channels):
            for block in range(model.blocks):
                inner = self.w.scope(f"down{level}.{block}")
                x = self.block(inner, x, count, level < model.attention_levels)
                kept.append(x)
            if level + 1 < len(model.channels):
                x = self.convolve(self.w.scope(f"down{level}"), "half", x, count, stride=2)
                kept.append(x)
        return x, kept

    def middle(self, x: Tensor, kept: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Write the block between the ways, which has attention on any level."""
        count = self.model.channels[-1]
        x = self.block(self.w.scope("middle.0"), x, count, True)
        return self.block(self.w.scope("middle.1"), x, count, False), kept

    def up(self, given: tuple[Tensor, list[Tensor]]) -> Tensor:
        """Write the way up, whose blocks also read what the way down made."""
        x, kept = given
        for level, count in reversed(list(enumerate(self.model.channels))):
            for block in range(self.model.blocks + 1):
                inner = self.w.scope(f"up{level}.{block}")
                x = pieces.concatenated(inner, "both", x, kept.pop())
                x = self.block(inner, x, count, level < self.model.attention_levels)
            if level:
                inner = self.w.scope(f"up{level}")
                x = self.convolve(inner, "double", pieces.upsample(inner, "repeated", x), count)
        return x

    def block(self, w: GraphWriter, x: Tensor, count: int, attends: bool) -> Tensor:
        """Write a residual block, and attention after it."""
        y = self.convolve(w, "a", pieces.normed(w, "a_norm", x), count)
        y = w.add("timed", y, pieces.linear(w, "time", self.time, y.dims[-1]))
        y = self.convolve(w, "b", pieces.normed(w, "b_norm", y), count)
        if x.dims[-1] != y.dims[-1]:
            x = self.convolve(w, "short", x, count, taps=1)
        x = w.add("block_out", x.view(y.dims), y)
        return self.attend(w.scope("attention"), x, count) if attends else x

    def convolve(
        self, w: GraphWriter, name: str, x: Tensor, count: int, *, taps: int = 3, stride: int = 1
    ) -> Tensor:
        """Write a convolution with a bias."""
        made = pieces.convolution(w, name, x, count, (taps, taps), stride=stride)
        return pieces.biased(w, name, made)

    def attend(self, w: GraphWriter, x: Tensor, count: int) -> Tensor:
        """Write a transformer's layer over the positions as tokens, between two projections."""
        model = self.model
        heads = model.heads or count // model.head_dim
        inner = w.part(f"width{count}", heads=heads, head_dim=count // heads, mlp=4 * count)
        inner.prefix = w.prefix
        embed = x.dims[-1]
        tokens = w.extent(*x.dims[1:-1])
        patches = f"{tokens}.patches"
        w.sizes[patches] = tokens
        entered = pieces.instance_norm(w, "norm", x)
        y = w.reshape("tokens", entered, (x.dims[0], patches, embed))
        y = pieces.linear(inner, "proj_in", y, embed)
        fused = AttentionForm(fused=tokens >= model.flash_from)
        for name, memory in (("self", None), ("cross", self.text)):
            one = inner.scope(name)
            normed = pieces.layer_norm(one, "norm", y, embed)
            form = AttentionForm(fused=False) if memory else fused
            made = pieces.attention(one, normed, form, memory=memory)
            y = w.add(f"{name}_sum", y, pieces.biased(one, "out", made))
        y = w.add(
            "mlp_sum", y, self.mlp(inner.scope("mlp"), pieces.layer_norm(w, "mlp_norm", y, embed))
        )
        y = w.reshape("pixels", pieces.linear(inner, "proj_out", y, embed), x.dims)
        return w.add("attended", x, y)

    def mlp(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write an MLP whose two inputs are multiplied, the one through GELU, all with biases."""
        ins = tuple(pieces.linear(w, f"wi_{n}", x, "mlp") for n in (0, 1))
        hidden = pieces.activate(w, "gelu", ins, "hidden")
        return pieces.linear(w, "wo", hidden, x.dims[-1])

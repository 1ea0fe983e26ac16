"""The U-Net of latent diffusion (arXiv:2112.10752), with attention to a text.

`DiffusionUNet.published("stable-diffusion-v2-base")` is that of Stable Diffusion v2-base: the
result of an encoder of texts, the noisy latents and an embedding of the time are its inputs, and
its loss is the mean square of the error of the noise. Encoders of images and texts are not in it;
`ImageDecoder` makes images of the latents.
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
    **dict.fromkeys(("attention_from", "added"), 0),
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
    attention_from: levels before it have none.
    attention_layers: layers of attention after each block, of all levels or of each; the block
        between the ways has those of the last.
    heads: of attention; 0 for as many as `head_dim` gives.
    head_dim: width of a head; 0 for channels / heads.
    text: tokens of a text.
    text_embed: width of the encoder's result.
    added: width of a vector whose embedding is added to that of the time, such as the pooled text
        beside the size of the image (arXiv:2307.01952, section 2.2); 0 for none.
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
    attention_from: int = 0
    attention_layers: tuple[int, ...] = (1,)
    heads: int = 0
    head_dim: int = 64
    text: int = 77
    text_embed: int = 1024
    added: int = 0
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
            self._check_layers()

    def _check_layers(self) -> None:
        """Raise ModelError for layers of attention of some levels alone."""
        given, levels = len(self.attention_layers), len(self.channels)
        if given not in (1, levels):
            raise ModelError(
                f"attention_layers has {given} numbers, for {levels} levels of channels; write "
                "one number, or one for each level"
            )

    def layers_of(self, level: int) -> int:
        """Return the layers of attention after each block of a level."""
        if not self.attention_from <= level < self.attention_levels:
            return 0
        return self.attention_layers[level % len(self.attention_layers)]

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the mean square error of each example."""
        side, count = self.latent, self.latent_channels
        given = pieces.images(w, "latents", count, height=side, width=side)
        w.size(text_seq=self.text, text_embed=self.text_embed)
        text = w.input("text", ("batch", "text_seq", "text_embed"), "compute")
        net = _Network(self, w, text, self._time(w))
        x = pieces.biased_convolution(w, "in", given, self.channels[0])
        x = pieces.normed(w, "out_norm", net.up(net.middle(*net.down(x))))
        x = w.output("noise_found", pieces.biased_convolution(w, "out", x, count))
        noise = w.input("noise", x.dims, "compute")
        error = function("mean_square_error")
        over = x.dims[1:]
        made = w.tensor("loss", ("batch",), "f32")
        return w.pointwise("loss", (x, noise), made, 3.0, over=over, function=error)

    def _time(self, w: GraphWriter) -> Tensor:
        """Write the embedding of the time, from its sines and cosines, which are an input.

        That of the added vector is summed before the last activation.
        """
        first = pieces.channels(w, self.channels[0])
        wide = pieces.channels(w, TIME_WIDTH * self.channels[0])
        x = pieces.embedded(w, "time", w.input("time", ("batch", first), "compute"), wide)
        if self.added:
            w.size(added_embed=self.added)
            given = w.input("added", ("batch", "added_embed"), "compute")
            x = w.add("time_sum", x, pieces.embedded(w, "added", given, wide))
        return pieces.silu(w, "time_out", x)


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
                x = self.block(inner, x, count, model.layers_of(level))
                kept.append(x)
            if level + 1 < len(model.channels):
                inner = self.w.scope(f"down{level}")
                x = pieces.biased_convolution(inner, "half", x, count, stride=2)
                kept.append(x)
        return x, kept

    def middle(self, x: Tensor, kept: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Write the block between the ways, which has attention on any level."""
        count = self.model.channels[-1]
        x = self.block(self.w.scope("middle.0"), x, count, self.model.attention_layers[-1])
        return self.block(self.w.scope("middle.1"), x, count, 0), kept

    def up(self, given: tuple[Tensor, list[Tensor]]) -> Tensor:
        """Write the way up, whose blocks also read what the way down made."""
        x, kept = given
        for level, count in reversed(list(enumerate(self.model.channels))):
            for block in range(self.model.blocks + 1):
                inner = self.w.scope(f"up{level}.{block}")
                x = pieces.concatenated(inner, "both", x, kept.pop())
                x = self.block(inner, x, count, self.model.layers_of(level))
            if level:
                x = pieces.doubled(self.w.scope(f"up{level}"), x, count)
        return x

    def block(self, w: GraphWriter, x: Tensor, count: int, layers: int) -> Tensor:
        """Write a residual block, and layers of attention after it."""
        x = pieces.residual_block(w, x, count, self.time)
        return self.attend(w.scope("attention"), x, count, layers) if layers else x

    def attend(self, w: GraphWriter, x: Tensor, count: int, layers: int) -> Tensor:
        """Write a transformer's layers over the positions as tokens, between two projections."""
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
        for number in range(layers):
            own = inner if layers == 1 else inner.scope(f"{number}")
            y = self.layer(own, y, tokens >= model.flash_from)
        y = w.reshape("pixels", pieces.linear(inner, "proj_out", y, embed), x.dims)
        return w.add("attended", x, y)

    def layer(self, w: GraphWriter, y: Tensor, fused: bool) -> Tensor:
        """Write one layer: attention of the tokens to themselves and to the text, and an MLP.

        fused: the attention to themselves is one kernel.
        """
        embed = y.dims[-1]
        for name, memory in (("self", None), ("cross", self.text)):
            one = w.scope(name)
            normed = pieces.layer_norm(one, "norm", y, embed)
            form = AttentionForm(fused=fused and memory is None)
            made = pieces.attention(one, normed, form, memory=memory)
            y = w.add(f"{name}_sum", y, pieces.biased(one, "out", made))
        normed = pieces.layer_norm(w, "mlp_norm", y, embed)
        return w.add("mlp_sum", y, self.mlp(w.scope("mlp"), normed))

    def mlp(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write an MLP whose two inputs are multiplied, the one through GELU, all with biases."""
        ins = tuple(pieces.linear(w, f"wi_{n}", x, "mlp") for n in (0, 1))
        hidden = pieces.activate(w, "gelu", ins, "hidden")
        return pieces.linear(w, "wo", hidden, x.dims[-1])

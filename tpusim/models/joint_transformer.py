"""Transformers of joined text and image tokens that learn a flow: Flux and Stable Diffusion 3.

`JointTransformer.published("flux-dev")` is that of FLUX.1. Latents of images, tokens of the text
and its pooled vector are inputs, as MaxDiffusion trains it: its encoders of texts and images run
once over the data set before the first step, and are deleted (`trainers/flux_trainer.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_types, check_values
from tpusim.models.pieces import AttentionForm

TIME_WIDTH = 256
"""Sines and cosines of a time, and of a guidance."""

_CHOICES = {"attention": ("dot", "flash")}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTransformer(Architecture):
    """A transformer whose text and image tokens attend to each other as one sequence.

    In a double layer each of the two has weights of its own; a single layer has one attention and
    one MLP, side by side, for both. A vector of the time, the pooled text and the guidance shifts,
    scales and gates every layer. Matrices of one operand (Q, K, V and the MLP's first of a single
    layer, and its two last) are matmuls of their own here, as wide together as in code.

    name: the model's name, as results print it.
    double_layers: layers of two streams.
    single_layers: layers of one.
    heads: heads of each attention.
    head_dim: width of a head; tokens are `heads x head_dim` wide.
    mlp_ratio: width of the MLPs over that of tokens.
    latent: side of the latents, an eighth of the image's.
    latent_channels: of the latents.
    patch: side of the square of latents that is a token.
    text: tokens of a text.
    text_embed: width of its tokens.
    pooled: width of the text's pooled vector.
    guidance: the vector has an embedding of the guidance.
    rotary: queries and keys are rotated by their position; fixed positions cost nothing.
    qk_norm: queries and keys are normed per head.
    text_ends: the last double layer makes no text, which nothing reads.
    attention: `dot` writes the scores to HBM, `flash` is a fused kernel.
    scanned: layers are iterations of scans, not written one after another.
    """

    PUBLISHED: ClassVar[str] = "joint_transformer.toml"
    reads_text: ClassVar[bool] = False
    name: str = "joint-transformer"
    double_layers: int = 19
    single_layers: int = 0
    heads: int = 24
    head_dim: int = 128
    mlp_ratio: int = 4
    latent: int = 128
    latent_channels: int = 16
    patch: int = 2
    text: int = 512
    text_embed: int = 4096
    pooled: int = 768
    guidance: bool = True
    rotary: bool = True
    qk_norm: bool = True
    text_ends: bool = False
    attention: str = "flash"
    scanned: bool = True

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, _CHOICES)
            if self.latent % self.patch:
                raise ModelError(
                    f"latent is {self.latent}, which patch {self.patch} does not divide; write a "
                    "multiple of it"
                )
            self._check_ends()

    def _check_ends(self) -> None:
        """Raise ModelError for a text that ends, but is read, or that no layer has."""
        if self.text_ends and self.single_layers:
            raise ModelError(
                f"text_ends is true, but {self.single_layers} single layers read the text; write "
                "text_ends = false, or single_layers = 0"
            )
        if self.text_ends and self.double_layers < 2:
            raise ModelError(
                f"text_ends is true, but double_layers is {self.double_layers}; write 2 or more, "
                "or text_ends = false"
            )

    @property
    def embed(self) -> int:
        """The width of tokens."""
        return self.heads * self.head_dim

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the mean square error of each example."""
        self._declare(w)
        latents = w.input("latents", ("batch", "patches", "values"), "compute")
        given = w.input("text", ("batch", "text_seq", "text_embed"), "compute")
        image = pieces.linear(w, "image_in", latents, "embed")
        text = pieces.linear(w, "text_in", given, "embed")
        net = _JointLayers(self, self._vector(w))
        full = self.double_layers - self.text_ends
        image, text = self._stack(w, "double", full, (image, text), net.double)
        if self.text_ends:
            last = partial(net.last_double, text=text)
            (image,) = self._stack(w, "last_double", 1, (image,), last)
        if self.single_layers:
            x = pieces.joined(w, "tokens", (text, image), "joint_seq")
            (x,) = self._stack(w, "single", self.single_layers, (x,), net.single)
            image = pieces.behind(w, "image_tokens", x, "patches")
        rows = pieces.modulation(w, "final_modulation", net.vector, 2)
        x = pieces.modulated_norm(w, "final_norm", image, rows, 0)
        x = w.output("values", pieces.linear(w, "proj_out", x, "values"))
        target = w.input("target", x.dims, "compute")
        made = w.tensor("loss", ("batch",), "f32")
        error = function("mean_square_error")
        return w.pointwise("loss", (x, target), made, 3.0, over=x.dims[1:], function=error)

    def _declare(self, w: GraphWriter) -> None:
        patches = (self.latent // self.patch) ** 2
        w.size(
            patches=patches,
            text_seq=self.text,
            joint_seq=patches + self.text,
            values=self.latent_channels * self.patch**2,
            text_embed=self.text_embed,
            pooled=self.pooled,
            waves=TIME_WIDTH,
            embed=self.embed,
            heads=self.heads,
            head_dim=self.head_dim,
            mlp=self.mlp_ratio * self.embed,
        )

    def _vector(self, w: GraphWriter) -> Tensor:
        """Write the vector that modulates all layers, [batch, embed]."""
        widths = {"time": "waves", "pooled": "pooled"}
        widths |= {"guidance": "waves"} if self.guidance else {}
        terms = []
        for name, width in widths.items():
            x = w.input(name, ("batch", width), "compute")
            terms.append(pieces.embedded(w, name, x, "embed"))
        return pieces.silu(w, "vector", w.add("vector_sum", *terms))

    def _stack(
        self,
        w: GraphWriter,
        name: str,
        layers: int,
        streams: Sequence[Tensor],
        layer: "Callable[..., tuple[Tensor, ...]]",
    ) -> tuple[Tensor, ...]:
        """Write layers of one kind, and return the streams that the last one leaves."""
        if self.scanned:
            return w.streams(name, layers, streams, layer)
        for number in range(layers):
            streams = layer(w.scope(f"{name}_{number}"), *streams)
        return tuple(streams)


@dataclass(frozen=True, slots=True)
class _JointLayers:
    """The kinds of layers, all of which `vector` modulates."""

    model: JointTransformer
    vector: Tensor

    @property
    def _form(self) -> AttentionForm:
        return AttentionForm(
            fused=self.model.attention == "flash", qk_norm=self.model.qk_norm, bias=True
        )

    def double(self, w: GraphWriter, image: Tensor, text: Tensor) -> tuple[Tensor, ...]:
        """Write a layer of two streams; return both."""
        streams = {"text_": text, "image_": image}
        rows = {mark: pieces.modulation(w, f"{mark}mod", self.vector, 6) for mark in streams}
        seen = self._attended(w, streams, rows)
        made = [
            self._rest(w.marked(mark), x, of, rows[mark])
            for (mark, x), of in zip(streams.items(), seen, strict=True)
        ]
        return made[1], made[0]

    def last_double(self, w: GraphWriter, image: Tensor, *, text: Tensor) -> tuple[Tensor, ...]:
        """Write a layer that reads the text and makes none."""
        streams = {"text_": text, "image_": image}
        rows = {
            mark: pieces.modulation(w, f"{mark}mod", self.vector, count)
            for mark, count in (("text_", 2), ("image_", 6))
        }
        _, seen = self._attended(w, streams, rows)
        return (self._rest(w.marked("image_"), image, seen, rows["image_"]),)

    def single(self, w: GraphWriter, x: Tensor) -> tuple[Tensor, ...]:
        """Write a layer of one stream, whose attention and MLP read the same norm."""
        rows = pieces.modulation(w, "mod", self.vector, 3)
        normed = pieces.modulated_norm(w, "norm", x, rows, 0)
        heads = self._rotated(w, pieces.projections(w, normed, normed, self._form))
        attended = pieces.attend(w, *heads, self._form, x.dims[-1], "attn_out")
        hidden = pieces.activate(w, "gelu", (pieces.linear(w, "wi", normed, "mlp"),), "mlp_hidden")
        made = pieces.linear(w, "wo_mlp", hidden, x.dims[-1])
        both = w.add("both", attended, made)
        return (w.add("layer_out", x, pieces.gated(w, "gated", both, rows, 2)),)

    def _attended(
        self, w: GraphWriter, streams: Mapping[str, Tensor], rows: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Write the attention of both streams to both; return what each has seen, by head."""
        each = []
        for mark, x in streams.items():
            own = w.marked(mark)
            normed = pieces.modulated_norm(own, "attn_norm", x, rows[mark], 0)
            each.append(pieces.projections(own, normed, normed, self._form))
        q, k, v = (
            pieces.joined(w, name, parts, "joint_seq")
            for name, parts in zip("qkv", zip(*each, strict=True), strict=True)
        )
        seen = pieces.seen(w, *self._rotated(w, (q, k, v)), self._form)
        return pieces.parted(w, ("text_seen", "image_seen"), seen, ("text_seq", "patches"))

    def _rotated(
        self, w: GraphWriter, heads: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not self.model.rotary:
            return heads
        q, k, v = heads
        turned = (pieces.rotary(w, f"{n}_rotary", t, "head_dim") for n, t in (("q", q), ("k", k)))
        return (*turned, v)  # type: ignore[return-value]

    def _rest(self, w: GraphWriter, x: Tensor, seen: Tensor, rows: Tensor) -> Tensor:
        """Write what follows the attention of one stream: its projection, and an MLP."""
        out = pieces.projected(w, seen, x.dims[-1], replace(self._form, out_bias=True), "attn_out")
        mid = w.add("mid", x, pieces.gated(w, "attn_gated", out, rows, 2))
        normed = pieces.modulated_norm(w, "mlp_norm", mid, rows, 3)
        made = pieces.mlp(w, normed, activation="gelu", bias=True)
        return w.add("layer_out", mid, pieces.gated(w, "mlp_gated", made, rows, 5))

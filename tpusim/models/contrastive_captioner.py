"""CoCa: an image encoder and a text decoder, trained to find the pairs of a batch and to caption.

Half of the decoder's layers see the text alone; what they make of its last token, a class token, is
compared with the images of the batch. The other half attend to the image too and predict the text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.pieces import AttentionForm, EncoderForm
from tpusim.models.vision_transformer import VisionTransformer

_CAUSAL = AttentionForm(causal=True, fused=False, bias=True, out_bias=True)
_CROSS = AttentionForm(fused=False, bias=True, out_bias=True)


@dataclass(frozen=True, kw_only=True)
class CaptionDecoder:
    """A decoder of text, with learnt positions and layers as those of a vision transformer.

    layers: layers that see the text alone.
    cross_layers: further layers, which attend to the image besides.
    embed, mlp, heads: as of `VisionTransformer`.
    vocab: tokens of the vocabulary; the head is a weight of its own.
    length: tokens of a text, the class token included.
    """

    layers: int
    cross_layers: int
    embed: int
    mlp: int
    heads: int
    vocab: int = 64000
    length: int = 64

    def __post_init__(self) -> None:
        check_types(self, "text.")
        check_values(self, {}, "text.")
        check_heads(self.embed, self.heads, "text.")


@dataclass(frozen=True, kw_only=True)
class ContrastiveCaptioner(Architecture):
    """A contrastive captioner (CoCa; Yu et al., arXiv:2205.01917).

    Two poolers, each one attention of learnt queries, follow the image encoder, one on the other:
    the first makes what the text attends to, the second the embedding of the image (section 3.2,
    cascaded). The dimensions of image and text are parts, `image` and `text`, with rules of their
    own in a plan.

    name: the model's name, as results print it.
    image: the image encoder; its pool and classifier are left out.
    text: the decoder, as wide as the image encoder.
    queries: of the first pooler.
    """

    PUBLISHED: ClassVar[str] = "contrastive_captioner.toml"
    reads_text: ClassVar[bool] = False
    name: str = "contrastive-captioner"
    image: VisionTransformer
    text: CaptionDecoder
    queries: int = 256

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, {})
            if self.image.embed != self.text.embed:
                raise ModelError(
                    f"image.embed is {self.image.embed} and text.embed {self.text.embed}, but "
                    "their embeddings are compared; write one width"
                )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each pair: contrastive and of captions."""
        image, text = w.part("image"), w.part("text")
        w.size(width=self.text.embed)
        seen, one = self._image(image)
        self._declare_text(text)
        x, _ = pieces.embedding(text, text.input("ids", ("batch", "seq")))
        x = pieces.learnt_positions(text, x)
        x = pieces.encoder(text, x, self.text.layers, EncoderForm(attention=_CAUSAL))
        other = pieces.position(text, "class_token", x, last=True)
        other = pieces.layer_norm(text, "class_norm", other)
        images, texts = (
            part.output("embedding", pieces.unit_length(part, "embedding_of", self._shared(w, t)))
            for part, t in ((image, one), (text, other))
        )
        logits = pieces.pair_logits(w, images, texts, dtype=choices.logits_dtype)
        pairs = pieces.softmax_pairs(w, logits)
        captions = self._captions(text, x, seen, choices)
        return w.add("loss", pairs, captions, out=w.tensor("loss", pairs.dims, "f32"))

    def _shared(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Return an embedding with the name of the width that both sides have."""
        return x.view((x.dims[0], w.dim("width")))

    def _image(self, w: GraphWriter) -> tuple[Tensor, Tensor]:
        """Write the encoder and the poolers; return the pooled tokens, and the embedding."""
        x = pieces.layer_norm(w, "final_norm", self.image.encoded(w))
        seen = pieces.queried(w.scope("captions"), x, "queries", self.queries)
        pooled = pieces.queried(w.scope("pairs"), seen, "query", 1)
        return seen, pieces.position(w, "pooled", pooled)

    def _declare_text(self, w: GraphWriter) -> None:
        text = self.text
        w.size(
            embed=text.embed,
            heads=text.heads,
            head_dim=text.embed // text.heads,
            mlp=text.mlp,
            vocab=text.vocab,
            seq=text.length,
        )

    def _captions(self, w: GraphWriter, x: Tensor, seen: Tensor, choices: GraphChoices) -> Tensor:
        """Write the layers that attend to the image, and the mean loss of the tokens of a text."""
        write: Callable[[GraphWriter, Tensor], Tensor] = partial(_cross_layer, seen=seen)
        x = w.layers("cross_layer", self.text.cross_layers, x, write)
        x = pieces.layer_norm(w, "caption_norm", x)
        labels = w.input("labels", ("batch", "seq"))
        losses = pieces.language_model_loss(
            w, x, labels, form=choices.loss, dtype=choices.logits_dtype
        )
        made = w.tensor("captions", losses.dims[:1], "f32")
        mean = function("mean_of_example")
        return w.pointwise("captions", (losses,), made, 1.0, over=losses.dims[1:], function=mean)


def _cross_layer(w: GraphWriter, x: Tensor, *, seen: Tensor) -> Tensor:
    """Write a layer of attention to the text, attention to the pooled image, and an MLP."""
    mid = w.add("mid", x, pieces.attention(w, pieces.layer_norm(w, "attn_norm", x), _CAUSAL))
    cross = w.marked("cross_")
    given = pieces.layer_norm(cross, "norm", mid)
    mid = w.add("cross_mid", mid, pieces.attention(cross, given, _CROSS, memory=seen))
    normed = pieces.layer_norm(w, "mlp_norm", mid)
    return w.add("layer_out", mid, pieces.mlp(w, normed, activation="gelu", bias=True))

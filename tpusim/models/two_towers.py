"""Two towers, of images and of text, trained to find the pairs of a batch by their embeddings.

The towers are parts, `image` and `text`, with rules of their own in a plan: `image.act_heads`,
and `image.act_batch` where the examples of one tower are shared out otherwise than the loss.
"""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import COMPUTE, GraphWriter, Tensor
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.pieces import AttentionForm, EncoderForm
from tpusim.models.vision_transformer import VisionTransformer

_TEXT_CHOICES = {"pool": ("last", "first", "mean", "probe"), "softmax_dtype": (COMPUTE, "f32")}
_CHOICES = {"loss": ("softmax", "sigmoid"), "frozen": ("", "image", "text")}


@dataclass(frozen=True, kw_only=True)
class TextTower:
    """An encoder of text, with learnt positions and layers as those of a vision transformer.

    layers, embed, mlp, heads: as of `VisionTransformer`.
    vocab: tokens of the vocabulary.
    length: tokens of a text.
    causal: a token sees no later ones.
    pool: the embedding is the `last` or `first` position, their `mean`, or that of a `probe`.
    softmax_dtype: of the scores.
    """

    layers: int
    embed: int
    mlp: int
    heads: int
    vocab: int = 32000
    length: int = 64
    causal: bool = False
    pool: str = "last"
    softmax_dtype: str = COMPUTE

    def __post_init__(self) -> None:
        check_types(self, "text.")
        check_values(self, _TEXT_CHOICES, "text.")
        check_heads(self.embed, self.heads, "text.")

    def features(self, w: GraphWriter) -> Tensor:
        """Write the tower, and return the features of each text, [batch, embed]."""
        w.size(
            embed=self.embed,
            heads=self.heads,
            head_dim=self.embed // self.heads,
            mlp=self.mlp,
            vocab=self.vocab,
            seq=self.length,
        )
        x, _ = pieces.embedding(w, w.input("ids", ("batch", "seq")))
        x = pieces.learnt_positions(w, x)
        attention = AttentionForm(
            causal=self.causal,
            fused=False,
            softmax_dtype=self.softmax_dtype,
            bias=True,
            out_bias=True,
        )
        x = pieces.encoder(w, x, self.layers, EncoderForm(attention=attention))
        if self.pool in ("last", "first"):
            x = pieces.position(w, "pooled_token", x, last=self.pool == "last")
            return pieces.layer_norm(w, "final_norm", x)
        x = pieces.layer_norm(w, "final_norm", x)
        if self.pool == "mean":
            return pieces.mean_of_positions(w, "pooled", x)
        return pieces.probe_pool(w, x)


@dataclass(frozen=True, kw_only=True)
class TwoTowers(Architecture):
    """An image tower and a text tower, whose embeddings are compared across the batch.

    Each device compares its own images with all texts, so embeddings are gathered; their gradients
    are partial sums, which are reduced to the devices that have the examples.

    name: the model's name, as results print it.
    image: the image tower; its classifier is left out.
    text: the text tower.
    shared: width of the embeddings.
    loss: `softmax` over all texts of an image and over all images of a text (CLIP,
        arXiv:2103.00020, figure 3), or `sigmoid` of each pair (SigLIP, arXiv:2303.15343).
    frozen: the tower that is not trained, `image` (LiT) or `text`; empty for none.
    image_projection, text_projection: features are projected to the shared width, which they have
        otherwise.
    projection_bias: projections have biases.
    """

    PUBLISHED: ClassVar[str] = "two_towers.toml"
    reads_text: ClassVar[bool] = False
    name: str = "two-towers"
    image: VisionTransformer
    text: TextTower
    shared: int = 512
    loss: str = "softmax"
    frozen: str = ""
    image_projection: bool = True
    text_projection: bool = True
    projection_bias: bool = True

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, _CHOICES)
            for tower in ("image", "text"):
                width = getattr(self, tower).embed
                if not getattr(self, f"{tower}_projection") and width != self.shared:
                    raise ModelError(
                        f"{tower}.embed is {width} and shared is {self.shared}, with no projection "
                        f"between them; write {tower}_projection = True, or shared = {width}"
                    )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write both towers, and return the loss of each pair."""
        w.size(shared=self.shared)
        batch = w.extent("batch")
        image, text = (w.part(tower, batch=batch) for tower in ("image", "text"))
        images = self._embeddings(image, self.image, self.image_projection)
        texts = self._embeddings(text, self.text, self.text_projection)
        logits = pieces.pair_logits(w, images, texts, dtype=choices.logits_dtype)
        write = pieces.sigmoid_pairs if self.loss == "sigmoid" else pieces.softmax_pairs
        return write(w, logits)

    def _embeddings(
        self, w: GraphWriter, tower: VisionTransformer | TextTower, projected: bool
    ) -> Tensor:
        """Return the embeddings of a tower, of length one: [batch, shared]."""
        x = tower.features(w)
        if projected:
            x = w.dense("projection", x, "shared")
            x = pieces.biased(w, "projection", x) if self.projection_bias else x
        made = pieces.unit_length(w, "embedding_of", x.view(w.dims(("batch", "shared"))))
        w.output("embedding", made)
        return w.stop(made) if w.within == self.frozen else made

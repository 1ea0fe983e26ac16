"""Vision transformers: images as sequences of patches.

A patch embedding is a convolution whose stride is its width, which is a matmul of the pixels of a
patch; the images are therefore given as patches.
"""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import COMPUTE, GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.pieces import AttentionForm, EncoderForm

COLOURS = 3

_CHOICES = {
    "pool": ("token", "mean", "probe"),
    "attention": ("dot", "flash"),
    "softmax_dtype": (COMPUTE, "f32"),
}


@dataclass(frozen=True, kw_only=True)
class VisionTransformer(Architecture):
    """A vision transformer that classifies images (Dosovitskiy et al., arXiv:2010.11929).

    name: the model's name, as results print it.
    layers: layers of attention and MLP.
    embed: width of the residual stream.
    mlp: width of the MLP.
    heads: heads of `embed / heads`.
    patch: pixels of a patch's side.
    image: pixels of an image's side, a multiple of `patch`.
    classes: classes of the classifier.
    pool: `token` classifies a class token, `mean` the mean of all patches, `probe` the result of
        attention with one learnt query.
    positions: learnt positions are added to the patches; fixed ones cost nothing.
    representation: there is a layer with tanh between the pooled result and the classifier.
    parallel: attention and MLP read the same norm and are added together.
    qk_norm: queries and keys are normed per head.
    rms: norms divide by the root mean square, without a mean and a shift.
    qkv_bias: the projections of queries, keys and values have biases.
    patch_bias: the patch embedding has one; all other matrices do.
    pre_norm: there is a norm before the layers.
    attention: `dot` writes the scores to HBM, `flash` is a fused kernel.
    softmax_dtype: of the scores, where attention is `dot`.
    scanned: layers are iterations of one scan, not written one after another.
    """

    PUBLISHED: ClassVar[str] = "vision_transformer.toml"
    reads_text: ClassVar[bool] = False
    name: str = "vision-transformer"
    layers: int
    embed: int
    mlp: int
    heads: int
    patch: int = 16
    image: int = 224
    classes: int = 1000
    pool: str = "token"
    positions: bool = True
    representation: bool = False
    parallel: bool = False
    qk_norm: bool = False
    rms: bool = False
    qkv_bias: bool = True
    patch_bias: bool = True
    pre_norm: bool = False
    attention: str = "dot"
    softmax_dtype: str = COMPUTE
    scanned: bool = True

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, _CHOICES)
            check_patches(self.image, self.patch)
            check_heads(self.embed, self.heads)

    @property
    def patches(self) -> int:
        """The number of patches of an image."""
        return (self.image // self.patch) ** 2

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each image."""
        pooled = self.features(w)
        return pieces.classification_loss(w, pooled, self.classes)

    def features(self, w: GraphWriter) -> Tensor:
        """Write all but the classifier, and return the features of each image, [batch, embed]."""
        x = self._pooled(w, self.encoded(w))
        return pieces.representation(w, x) if self.representation else x

    def encoded(self, w: GraphWriter) -> Tensor:
        """Write the layers, and return their result before its norm, [batch, patches, embed]."""
        heads, token = self.heads, self.pool == "token"
        w.size(embed=self.embed, heads=heads, head_dim=self.embed // heads, mlp=self.mlp)
        x = embedded_patches(w, self.patches, self.patch, token=token, bias=self.patch_bias)
        if self.positions:
            x = pieces.learnt_positions(w, x)
        if self.pre_norm:
            x = pieces.layer_norm(w, "pre_norm", x)
        return pieces.encoder(w, x, self.layers, self._form())

    def _form(self) -> EncoderForm:
        attention = AttentionForm(
            fused=self.attention == "flash",
            qk_norm=self.qk_norm,
            softmax_dtype=self.softmax_dtype,
            bias=self.qkv_bias,
            out_bias=True,
        )
        return EncoderForm(
            parallel=self.parallel, rms=self.rms, scanned=self.scanned, attention=attention
        )

    def _pooled(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Return the features of each image; a norm of one token reads that token alone."""
        normed = pieces.norm if self.rms else pieces.layer_norm
        if self.pool == "token":
            return normed(w, "final_norm", pieces.position(w, "class_token", x))
        x = normed(w, "final_norm", x)
        if self.pool == "mean":
            return pieces.mean_of_positions(w, "pooled", x)
        return pieces.probe_pool(w, x)


def check_patches(image: int, patch: int) -> None:
    """Raise ModelError for an image that is not cut evenly into patches."""
    if image % patch:
        near = max(round(image / patch), 1) * patch
        raise ModelError(
            f"image is {image} pixels, which patches of {patch} do not divide; write image = {near}"
        )


def embedded_patches(
    w: GraphWriter, patches: int, patch: int, *, token: bool = False, bias: bool = True
) -> Tensor:
    """Write the patch embedding; return [batch, patches, embed], a class token in front of all.

    The patches are an input, [batch, patches, pixels of a patch].
    """
    w.size(patches=patches + token, patch_pixels=patch * patch * COLOURS)
    given = pieces.resized(w, w.dim("patches"), patches)
    pixels = w.input("image", ("batch", given, "patch_pixels"), COMPUTE)
    x = w.dense("patch_embedding", pixels, "embed", out="patch_rows")
    if bias:
        x = pieces.biased(w, "patch", x)
    if not token:
        return x
    return w.pointwise(
        "with_token",
        (x, w.weight("class_token_row", "embed")),
        ("batch", "patches", "embed"),
        0.0,
        keeps="",
        alone=True,
        function=function("after_token"),
    )

"""MLP-Mixer: images as sequences of patches, mixed by MLPs over patches and over channels."""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import blame
from tpusim.graph import GraphWriter, Tensor
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_types, check_values
from tpusim.models.vision_transformer import check_patches, embedded_patches


@dataclass(frozen=True, kw_only=True)
class MlpMixer(Architecture):
    """An MLP-Mixer that classifies images (Tolstikhin et al., arXiv:2105.01601).

    name: the model's name, as results print it.
    layers: layers of both MLPs.
    embed: width of the residual stream.
    token_mlp: width of the MLP over patches.
    mlp: width of the MLP over channels.
    patch: pixels of a patch's side.
    image: pixels of an image's side, a multiple of `patch`.
    classes: classes of the classifier.
    """

    PUBLISHED: ClassVar[str] = "mlp_mixer.toml"
    reads_text: ClassVar[bool] = False
    name: str = "mlp-mixer"
    layers: int
    embed: int
    token_mlp: int
    mlp: int
    patch: int = 16
    image: int = 224
    classes: int = 1000

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, {})
            check_patches(self.image, self.patch)

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each image."""
        w.size(embed=self.embed, token_mlp=self.token_mlp, mlp=self.mlp)
        x = embedded_patches(w, (self.image // self.patch) ** 2, self.patch)
        x = w.layers("layer", self.layers, x, _layer)
        x = pieces.mean_of_positions(w, "pooled", pieces.layer_norm(w, "final_norm", x))
        return pieces.classification_loss(w, x, self.classes)


def _layer(w: GraphWriter, x: Tensor) -> Tensor:
    """Write one layer."""
    mid = w.add("mid", x, _over_patches(w, pieces.layer_norm(w, "token_norm", x)))
    normed = pieces.layer_norm(w, "mlp_norm", mid)
    return w.add("layer_out", mid, pieces.mlp(w, normed, activation="gelu", bias=True))


def _over_patches(w: GraphWriter, x: Tensor) -> Tensor:
    """Write an MLP over the patches of [batch, patches, embed], alike for all channels."""
    batch, patches, embed = x.dims
    dims = (batch, "token_mlp", embed)
    weight = w.weight("token_wi", patches, "token_mlp")
    made = w.einsum("token_wi", x, weight, w.tensor("token_in", dims))
    made = pieces.biased(w, "token_wi", made, "token_mlp")
    made = pieces.activate(w, "gelu", (made,), "token_hidden", "token_")
    weight = w.weight("token_wo", "token_mlp", patches)
    made = w.einsum("token_wo", made, weight, w.tensor("token_out", x.dims))
    return pieces.biased(w, "token_wo", made, patches)

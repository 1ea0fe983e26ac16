"""The U-Net of volumes of MLPerf Training (KiTS19), after nnU-Net (arXiv:1809.10486)."""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import blame
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_halvings, check_types, check_values

LOSS_FLOPS = 20.0
"""Vector operations per logit: a softmax, and the sums of cross entropy and of the Dice
coefficient, of products and of squares. Counted from the formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UNet3d(Architecture):
    """An encoder and a decoder of volumes, with instance norms; its defaults are MLPerf's.

    name: the model's name, as results print it.
    patch: voxels of a side of the input.
    filters: channels of each level; each has half the side of the one before, and the last is the
        bottleneck. (mlcommons/training, image_segmentation/pytorch/model/unet3d.py)
    in_channels: of the input.
    classes: of each voxel.
    """

    reads_text: ClassVar[bool] = False
    name: str = "unet3d"
    patch: int = 128
    filters: tuple[int, ...] = (32, 64, 128, 256, 320, 320)
    in_channels: int = 1
    classes: int = 3

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, {})
            check_halvings("patch", self.patch, len(self.filters) - 1)

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example."""
        sides = {"depth": self.patch, "height": self.patch, "width": self.patch}
        x = pieces.images(w, "volume", self.in_channels, **sides)
        labels = w.input("labels", x.dims[:-1])
        kept = []
        for level, count in enumerate(self.filters):
            inner = w.scope(f"down{level}")
            x = self._unit(inner, "a", x, count, stride=2 if level else 1)
            x = self._unit(inner, "b", x, count)
            kept.append(x)
        x = kept.pop()
        for level, count in reversed(list(enumerate(self.filters[:-1]))):
            inner = w.scope(f"up{level}")
            x = pieces.biased(
                inner, "up", pieces.convolution(inner, "up", x, count, (2,) * 3, up=2)
            )
            x = pieces.concatenated(inner, "both", x, kept.pop())
            x = self._unit(inner, "a", x, count)
            x = self._unit(inner, "b", x, count)
        logits = pieces.convolution(w, "out", x, self.classes, (1, 1, 1))
        logits = w.output("logits", pieces.biased(w, "out", logits))
        return w.pointwise(
            "loss",
            (logits, labels),
            w.tensor("loss", ("batch",), "f32"),
            LOSS_FLOPS,
            over=logits.dims[1:],
            function=function("dice_and_cross_entropy"),
        )

    def _unit(self, w: GraphWriter, name: str, x: Tensor, count: int, stride: int = 1) -> Tensor:
        """Write a convolution of 3 x 3 x 3 taps, its norm and a rectifier."""
        y = pieces.convolution(w, name, x, count, (3, 3, 3), stride=stride)
        return pieces.relu(w, f"{name}_relu", pieces.instance_norm(w, f"{name}_norm", y))

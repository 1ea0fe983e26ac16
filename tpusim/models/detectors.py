"""Detectors of objects in images: SSD and Mask R-CNN, as MLPerf Training has them.

Boxes are matched on the host, and sorts (hard negatives of SSD, proposals and their suppression of
Mask R-CNN) are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError
from tpusim.graph import GraphWriter, Tensor, TensorRole, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_types, check_values
from tpusim.models.resnet import ResNet

SSD_STEPS = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))
"""Channels of the 1 x 1 and the 3 x 3 convolution of each further level, and the stride; those
without a stride are not padded (mlcommons/training, single_stage_detector/ssd/ssd300.py)."""

SSD_BOXES = (4, 6, 6, 6, 4, 4)
"""Default boxes of each position of a level: 8732 of an image of 300 x 300."""

BOX_FLOPS, CLASS_FLOPS = 8.0, 12.0
"""Vector operations per element of a smooth L1 loss, and of a cross entropy with the choice of hard
negatives. Counted from the formulas."""

COORDINATES = 4
"""Numbers of a box."""

SHARE_FLOPS = 5.0
"""Vector operations per position and sample of its share in a cell: the distance of both, one less
it, zero at least, and the sum; and the choice of the level. Counted from the formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SSD(Architecture):
    """SSD (arXiv:1512.02325) on a ResNet-34 whose third stage has no stride.

    name: the model's name, as results print it.
    image: pixels of a side.
    classes: of a box, with the background.
    norm, norm_group: of the backbone, as of `ResNet`.
    space_to_depth: as of `ResNet`.
    """

    reads_text: ClassVar[bool] = False
    name: str = "ssd-resnet34"
    image: int = 300
    classes: int = 81
    norm: str = "batch"
    norm_group: int = 0
    space_to_depth: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_values(self, {})
        if self.image < 264:
            raise ModelError(
                f"{self.name}: image is {self.image} pixels wide, of which too few are left for "
                "the last levels; write at least 264, such as 300"
            )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example."""
        backbone = ResNet(
            name=self.name, blocks=(3, 4, 6), strides=(1, 2, 1), bottleneck=False,
            image=self.image, norm=self.norm, norm_group=self.norm_group,
            space_to_depth=self.space_to_depth,
        )  # fmt: skip
        levels = [backbone.stages(w)[-1]]
        for number, (inside, made, stride) in enumerate(SSD_STEPS, start=1):
            inner = w.scope(f"level{number}")
            x = _biased(inner, "a", levels[-1], inside, 1)
            padding = "same" if stride == 2 else "valid"
            levels.append(_biased(inner, "b", x, made, 3, stride=stride, padding=padding))
        losses = []
        for number, (x, boxes) in enumerate(zip(levels, SSD_BOXES, strict=True)):
            inner = w.scope(f"head{number}")
            losses += [
                _loss(inner, "boxes", _conv(inner, "box", x, COORDINATES * boxes), BOX_FLOPS),
                _loss(
                    inner, "classes", _conv(inner, "class", x, self.classes * boxes), CLASS_FLOPS
                ),
            ]
        return w.add("loss", *losses, out=w.tensor("loss", ("batch",), "f32"))


def _conv(
    w: GraphWriter, name: str, x: Tensor, count: int, taps: int = 3, kernel: str = ""
) -> Tensor:
    """Write a convolution with a bias; several share the weights called `kernel`."""
    made = pieces.convolution(w, name, x, count, (taps, taps), kernel=kernel)
    bias = Tensor(f"{kernel or f'{w.prefix}{name}'}_bias", made.dims[-1:], TensorRole.PARAM)
    return w.add(f"{name}_biased", made, bias)


def _biased(
    w: GraphWriter, name: str, x: Tensor, count: int, taps: int, *, stride: int = 1,
    padding: str = "same",
) -> Tensor:  # fmt: skip
    """Write a convolution with a bias, and a rectifier."""
    made = pieces.convolution(w, name, x, count, (taps, taps), stride=stride, padding=padding)
    return pieces.relu(w, f"{name}_relu", pieces.biased(w, name, made))


def _loss(w: GraphWriter, name: str, x: Tensor, flops: float) -> Tensor:
    """Write a loss of each example, the sum over all else, against numbers from the host."""
    w.output(name, x)
    given = w.input(f"{name}_wanted", x.dims, "compute")
    made = w.tensor(f"{name}_loss", x.dims[:1], "f32")
    error = function("mean_square_error")
    return w.pointwise(f"{name}_loss", (x, given), made, flops, over=x.dims[1:], function=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRCNN(Architecture):
    """Mask R-CNN (arXiv:1703.06870) on a ResNet-50 with a feature pyramid (arXiv:1612.03144).

    name: the model's name, as results print it.
    image: height and width to which images are padded.
    classes: of a box, with the background.
    rois: regions of an image for the box head, and `mask_rois` for the mask head.
    roi_align: how the cells of regions are read from the pyramid: `gather`, position by position,
        or `matmuls`, two for each level, by the shares of rows and of columns.
    samples: points that are sampled in each direction of a cell of a region, by RoIAlign; each is
        between four positions.
    norm, norm_group, space_to_depth, stride_in_1x1, frozen_stages: of the backbone, as of `ResNet`.
    """

    reads_text: ClassVar[bool] = False
    name: str = "mask-rcnn"
    image: tuple[int, int] = (832, 1344)
    classes: int = 91
    rois: int = 512
    mask_rois: int = 128
    roi_align: str = "gather"
    samples: int = 2
    norm: str = "frozen"
    norm_group: int = 0
    space_to_depth: bool = False
    stride_in_1x1: bool = False
    frozen_stages: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        check_values(self, {"roi_align": ("gather", "matmuls")})
        if any(side % 64 for side in self.image):
            raise ModelError(
                f"{self.name}: image is {self.image}, of which six levels leave no whole numbers; "
                "write multiples of 64, such as (832, 1344)"
            )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example."""
        backbone = ResNet(
            name=self.name, image=self.image, norm=self.norm, norm_group=self.norm_group,
            space_to_depth=self.space_to_depth, stride_in_1x1=self.stride_in_1x1,
            frozen_stages=self.frozen_stages,
        )  # fmt: skip
        pyramid = _pyramid(w.scope("fpn"), backbone.stages(w))
        losses = _proposals(w.scope("rpn"), pyramid)
        losses += self._boxes(w.scope("box"), pyramid)
        losses += self._masks(w.scope("mask"), pyramid)
        return w.add("loss", *losses, out=w.tensor("loss", ("batch",), "f32"))

    def _boxes(self, w: GraphWriter, pyramid: Sequence[Tensor]) -> list[Tensor]:
        """Write two wide layers for each region, and the classes and boxes that they make."""
        w.size(rois=self.rois, hidden=1024, hidden_2=1024)
        cells = self._regions(w, pyramid, "rois", 7)
        w.size(region=49 * w.sizes[cells.dims[-1]])
        x = w.reshape("flat", cells, (*cells.dims[:2], "region"))
        for place, width in enumerate(("hidden", "hidden_2")):
            x = pieces.relu(w, f"fc{place}_relu", pieces.linear(w, f"fc{place}", x, width))
        w.size(box_classes=self.classes, box_numbers=COORDINATES * self.classes)
        classes = pieces.linear(w, "classes", x, "box_classes")
        boxes = pieces.linear(w, "boxes", x, "box_numbers")
        return [_loss(w, "class", classes, CLASS_FLOPS), _loss(w, "box", boxes, BOX_FLOPS)]

    def _masks(self, w: GraphWriter, pyramid: Sequence[Tensor]) -> list[Tensor]:
        """Write four convolutions over each region, one to twice its side, and its masks."""
        w.size(mask_rois=self.mask_rois)
        cells = self._regions(w, pyramid, "mask_rois", 14)
        batch, rois, *positions = cells.dims
        examples = "rois.batch"
        w.sizes[examples] = w.extent(batch, rois)
        x = w.reshape("apart", cells, (examples, *positions))
        for place in range(4):
            x = _biased(w, f"conv{place}", x, 256, 3)
        x = pieces.convolution(w, "up", x, 256, (2, 2), up=2)
        x = pieces.relu(w, "up_relu", pieces.biased(w, "up", x))
        masks = _conv(w, "masks", x, self.classes, 1)
        back = w.reshape("together", masks, (batch, rois, *masks.dims[1:]))
        return [_loss(w, "mask", back, CLASS_FLOPS)]

    def _regions(self, w: GraphWriter, pyramid: Sequence[Tensor], rois: str, side: int) -> Tensor:
        """Write RoIAlign: the mean of the samples of each cell of each region."""
        sides = {f"{rois}_height": side, f"{rois}_width": side}
        w.size(**sides)
        cells = (pyramid[0].dims[0], rois, *sides)
        if self.roi_align == "gather":
            return self._gathered(w, pyramid[:4], cells)
        return self._multiplied(w, pyramid, cells)

    def _gathered(self, w: GraphWriter, levels: Sequence[Tensor], cells: tuple[str, ...]) -> Tensor:
        """Write cells as sums of gathered positions, all of which pass through HBM.

        Their places and the shares of the positions follow from the regions and are given, as
        regions are.
        """
        w.size(corners=4 * self.samples**2)
        corners, channels = (*cells, "corners"), levels[0].dims[-1]
        places, shares = w.input("places", corners), w.input("shares", corners, "compute")
        gathered = w.pointwise(
            "samples",
            (*levels, places),
            (*corners, channels),
            0.0,
            keeps="",
            alone=True,
            function=function("positions_of_regions"),
        )
        return w.pointwise(
            "cells",
            (gathered, shares),
            (*cells, channels),
            2.0,
            over=("corners",),
            keeps="",
            function=function("cells_of_regions"),
        )

    def _multiplied(
        self, w: GraphWriter, levels: Sequence[Tensor], cells: tuple[str, ...]
    ) -> Tensor:
        """Write cells as products with the shares that rows and columns of positions have in them.

        Bilinear interpolation and the mean of the samples of a cell are products of what is along
        the height and along the width, so one matmul sums rows, and another columns (the
        `multilevel_crop_and_resize` of MLPerf Training v0.7 and v1.0, Google's implementation).
        All regions are read from all levels; the shares in levels that are not theirs are zero.
        """
        batch, rois, height, width = cells
        w.size(coordinates=COORDINATES)
        regions = w.input("regions", (batch, rois, "coordinates"), "f32")
        made = []
        for number, level in enumerate(levels, start=2):
            inner = w.scope(f"level{number}")
            _, rows, columns, channels = level.dims
            shares = [
                w.stop(
                    inner.pointwise(
                        name,
                        (regions,),
                        (batch, rois, cell, positions),
                        SHARE_FLOPS * self.samples,
                        keeps="",
                        generated=True,
                        function=function(
                            "shares_of_positions", cells=cell, positions=positions,
                            samples=self.samples, level=number, along=along, last=len(levels) + 1,
                        ),
                    )
                )
                for name, cell, positions, along in (
                    ("rows", height, rows, 0), ("columns", width, columns, 1)
                )
            ]  # fmt: skip
            lines = inner.einsum(
                "lines", level, shares[0], (batch, rois, height, columns, channels)
            )
            made.append(inner.einsum("cells", lines, shares[1], (*cells, channels)))
        return w.add("cells", *made)


def _pyramid(w: GraphWriter, stages: Sequence[Tensor]) -> list[Tensor]:
    """Write the feature pyramid: each level adds that above it, and a last one is coarser."""
    made: list[Tensor] = []
    above = None
    for level, x in reversed(list(enumerate(stages, start=2))):
        x = _conv(w, f"lateral{level}", x, 256, 1)
        if above is not None:
            wide = pieces.upsample(w, f"double{level}", above)
            x = w.add(f"merged{level}", x, wide.view(x.dims))
        above = x
        made.insert(0, _conv(w, f"level{level}", x, 256))
    return [*made, pieces.pool(w, "level6", made[-1], 1, 2)]


def _proposals(w: GraphWriter, pyramid: Sequence[Tensor]) -> list[Tensor]:
    """Write the head that scores three boxes at each position; all levels share its weights."""
    losses = []
    for level, x in enumerate(pyramid, start=2):
        x = pieces.relu(w, f"conv{level}_relu", _conv(w, f"conv{level}", x, 256, 3, "rpn/conv"))
        for name, count, flops in (("score", 3, CLASS_FLOPS), ("box", 12, BOX_FLOPS)):
            made = _conv(w, f"{name}{level}", x, count, 1, f"rpn/{name}")
            losses.append(_loss(w, f"{name}{level}", made, flops))
    return losses

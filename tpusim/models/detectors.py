"""Detectors of objects in images: SSD and Mask R-CNN, as MLPerf Training has them.

Boxes of SSD are matched on the host, and its hard negatives chosen on the device (`box_loss.py`).
Regions of Mask R-CNN are proposed, suppressed and matched on the device (`regions.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError
from tpusim.graph import GraphWriter, Tensor, TensorRole, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.box_loss import loss_of_boxes
from tpusim.models.checks import check_types, check_values
from tpusim.models.regions import (
    COORDINATES,
    FIRST_LEVEL,
    GATHER,
    OBJECTS,
    PROPOSALS,
    ROI_ALIGN,
    first_regions,
    gathered_cells,
    multiplied_cells,
    regions_of,
)
from tpusim.models.resnet import ResNet

SSD_STEPS = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))
"""Channels of the 1 x 1 and the 3 x 3 convolution of each further level, and the stride; those
without a stride are not padded (mlcommons/training, single_stage_detector/ssd/ssd300.py)."""

SSD_BOXES = (4, 6, 6, 6, 4, 4)
"""Default boxes of each position of a level: 8732 of an image of 300 x 300."""

BOX_FLOPS, CLASS_FLOPS = 8.0, 12.0
"""Vector operations per element of a smooth L1 loss, and of a cross entropy. Counted from the
formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SSD(Architecture):
    """SSD (arXiv:1512.02325) on a ResNet-34 whose third stage has no stride.

    name: the model's name, as results print it.
    image: pixels of a side.
    classes: of a box, with the background.
    norm, norm_group: of the backbone, as of `ResNet`.
    space_to_depth: as of `ResNet`.
    joins_levels: the logits of all levels are one array for the loss; else it runs level by level,
        as where devices split the positions of an image.
    """

    reads_text: ClassVar[bool] = False
    name: str = "ssd-resnet34"
    image: int = 300
    classes: int = 81
    norm: str = "batch"
    norm_group: int = 0
    space_to_depth: bool = False
    joins_levels: bool = True

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
        heads = []
        for number, (x, boxes) in enumerate(zip(levels, SSD_BOXES, strict=True)):
            inner = w.scope(f"head{number}")
            moves = inner.output("boxes", _conv(inner, "box", x, COORDINATES * boxes))
            logits = inner.output("classes", _conv(inner, "class", x, self.classes * boxes))
            heads.append((moves, logits))
        return loss_of_boxes(w, heads, SSD_BOXES, self.classes, joined=self.joins_levels)


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
    roi_align: str = GATHER
    samples: int = 2
    norm: str = "frozen"
    norm_group: int = 0
    space_to_depth: bool = False
    stride_in_1x1: bool = False
    frozen_stages: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        check_values(self, {"roi_align": ROI_ALIGN})
        if any(side % 64 for side in self.image):
            raise ModelError(
                f"{self.name}: image is {self.image}, of which six levels leave no whole numbers; "
                "write multiples of 64, such as (832, 1344)"
            )
        if self.mask_rois > self.rois:
            raise ModelError(
                f"{self.name}: mask_rois is {self.mask_rois}, but the box head has {self.rois} "
                "regions (rois); write at most that"
            )
        if self.rois > PROPOSALS + OBJECTS:
            raise ModelError(
                f"{self.name}: rois is {self.rois}, but {PROPOSALS + OBJECTS} boxes are proposed "
                "or labelled; write at most that"
            )
        self._backbone()

    def _backbone(self) -> ResNet:
        return ResNet(
            name=self.name, image=self.image, norm=self.norm, norm_group=self.norm_group,
            space_to_depth=self.space_to_depth, stride_in_1x1=self.stride_in_1x1,
            frozen_stages=self.frozen_stages,
        )  # fmt: skip

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example."""
        pyramid = _pyramid(w.scope("fpn"), self._backbone().stages(w))
        losses, proposed = _proposals(w.scope("rpn"), pyramid)
        w.size(rois=self.rois, mask_rois=self.mask_rois)
        regions = regions_of(w.scope("regions"), proposed, "rois")
        losses += self._boxes(w.scope("box"), pyramid, regions)
        chosen = first_regions(w.scope("mask"), regions, "mask_rois")
        losses += self._masks(w.scope("mask"), pyramid, chosen)
        return w.add("loss", *losses, out=w.tensor("loss", ("batch",), "f32"))

    def _boxes(self, w: GraphWriter, pyramid: Sequence[Tensor], regions: Tensor) -> list[Tensor]:
        """Write two wide layers for each region, and the classes and boxes that they make."""
        w.size(hidden=1024, hidden_2=1024)
        cells = self._cells(w, pyramid, regions, 7)
        w.size(region=49 * w.sizes[cells.dims[-1]])
        x = w.reshape("flat", cells, (*cells.dims[:2], "region"))
        for place, width in enumerate(("hidden", "hidden_2")):
            x = pieces.relu(w, f"fc{place}_relu", pieces.linear(w, f"fc{place}", x, width))
        w.size(box_classes=self.classes, box_numbers=COORDINATES * self.classes)
        classes = pieces.linear(w, "classes", x, "box_classes")
        boxes = pieces.linear(w, "boxes", x, "box_numbers")
        return [_loss(w, "class", classes, CLASS_FLOPS), _loss(w, "box", boxes, BOX_FLOPS)]

    def _masks(self, w: GraphWriter, pyramid: Sequence[Tensor], regions: Tensor) -> list[Tensor]:
        """Write four convolutions over each region, one to twice its side, and its masks."""
        cells = self._cells(w, pyramid, regions, 14)
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

    def _cells(
        self, w: GraphWriter, pyramid: Sequence[Tensor], regions: Tensor, side: int
    ) -> Tensor:
        """Write RoIAlign: the mean of the samples of each cell of each region."""
        align = gathered_cells if self.roi_align == GATHER else multiplied_cells
        return align(w, pyramid, regions, side, self.samples)


def _pyramid(w: GraphWriter, stages: Sequence[Tensor]) -> list[Tensor]:
    """Write the feature pyramid: each level adds that above it, and a last one is coarser."""
    made: list[Tensor] = []
    above = None
    for level, x in reversed(list(enumerate(stages, start=FIRST_LEVEL))):
        x = _conv(w, f"lateral{level}", x, 256, 1)
        if above is not None:
            wide = pieces.upsample(w, f"double{level}", above)
            x = w.add(f"merged{level}", x, wide.view(x.dims))
        above = x
        made.insert(0, _conv(w, f"level{level}", x, 256))
    return [*made, pieces.pool(w, "level6", made[-1], 1, 2)]


def _proposals(
    w: GraphWriter, pyramid: Sequence[Tensor]
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Write the head that scores three boxes at each position; all levels share its weights.

    Return its losses, and the scores and boxes of each level.
    """
    losses, proposed = [], []
    for level, x in enumerate(pyramid, start=FIRST_LEVEL):
        x = pieces.relu(w, f"conv{level}_relu", _conv(w, f"conv{level}", x, 256, 3, "rpn/conv"))
        made = []
        for name, count, flops in (("score", 3, CLASS_FLOPS), ("box", 12, BOX_FLOPS)):
            made.append(_conv(w, f"{name}{level}", x, count, 1, f"rpn/{name}"))
            losses.append(_loss(w, f"{name}{level}", made[-1], flops))
        proposed.append((made[0], made[1]))
    return losses, proposed

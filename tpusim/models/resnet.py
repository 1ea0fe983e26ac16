"""ResNets of images (arXiv:1512.03385), with the stride in the 3 x 3 convolution ("v1.5").

`ResNet.published("resnet-50")` is the network of MLPerf Training. Before it is trained on TPUs, an
image is often folded to half its height and width and four times its channels, so that the first
convolution fills the array (MLPerf's `conv0_space_to_depth`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError, nearest
from tpusim.graph import GraphWriter, Tensor
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_types, check_values

BATCH = "batch"

NORMS: Mapping[str, Callable[[GraphWriter, str, Tensor], Tensor]] = {
    BATCH: pieces.batch_norm,
    "device": pieces.device_norm,
    "group": pieces.instance_norm,
    "frozen": pieces.frozen_norm,
}

EXPANSION = 4
"""Channels that leave a bottleneck, over those inside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet(Architecture):
    """A residual network with a classifier, in four stages.

    name: the model's name, as results print it.
    blocks: residual blocks of each stage.
    bottleneck: blocks are of three convolutions (1 x 1, 3 x 3, 1 x 1), not of two of 3 x 3.
    width: channels inside the blocks of the first stage; each later one has twice as many.
    strides: of the first block of each stage.
    image: pixels of a side of the image, or height and width.
    classes: of the classifier.
    norm: `batch`, with statistics over all examples of the step; `device`, over those of each
        device; `group`, within each example; or `frozen`, which has none.
    norm_group: examples that a `batch` norm has statistics of together; 0 for all of the step.
    preactivation: norms come before convolutions (arXiv:1603.05027), as in BiT. The
        standardisation of BiT's weights is not counted.
    space_to_depth: the host gives the image folded to [side / 2, side / 2, 12].
    stride_in_1x1: the stride of a bottleneck is in its first convolution, as in the paper and in
        Detectron, not in its second.
    frozen_stages: stages that are not trained, from the first; the stem is not either.
    """

    PUBLISHED: ClassVar[str] = "resnet.toml"
    reads_text: ClassVar[bool] = False
    name: str = "resnet"
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    bottleneck: bool = True
    width: int = 64
    strides: tuple[int, ...] = (1, 2, 2, 2)
    image: int | tuple[int, int] = 224
    classes: int = 1000
    norm: str = BATCH
    norm_group: int = 0
    preactivation: bool = False
    space_to_depth: bool = False
    stride_in_1x1: bool = False
    frozen_stages: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        check_values(self, {})
        if self.norm not in NORMS:
            raise ModelError(f"{self.name}: norm is {self.norm!r}; {nearest(self.norm, NORMS)}")
        if self.norm_group and self.norm != BATCH:
            raise ModelError(
                f"{self.name}: norm_group is {self.norm_group}, but norm is {self.norm!r}, which "
                "has no groups of examples; write norm = 'batch', or norm_group = 0"
            )
        if len(self.blocks) != len(self.strides):
            raise ModelError(
                f"{self.name}: {len(self.blocks)} stages have {len(self.strides)} strides; "
                "write one stride for each stage"
            )
        if self.frozen_stages > len(self.blocks):
            raise ModelError(
                f"{self.name}: frozen_stages is {self.frozen_stages}, but the network has "
                f"{len(self.blocks)} stages; write at most that"
            )
        if self.stride_in_1x1 and not self.bottleneck:
            raise ModelError(
                f"{self.name}: stride_in_1x1 is for bottlenecks, which these blocks are not; leave "
                "it out, or write bottleneck = true"
            )
        if min(self.sides) < 1:
            raise ModelError(f"{self.name}: image is {self.image}; write pixels, at least 1")
        if self.space_to_depth and any(side % 2 for side in self.sides):
            raise ModelError(
                f"{self.name}: image is {self.image}, which space_to_depth cannot fold; write even "
                "numbers"
            )

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the image."""
        return (self.image, self.image) if isinstance(self.image, int) else self.image

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example."""
        x = self.stages(w)[-1]
        return pieces.classification_loss(w, pieces.mean_of_positions(w, "pooled", x), self.classes)

    def stages(self, w: GraphWriter) -> tuple[Tensor, ...]:
        """Write the network without its classifier; return what each stage makes."""
        x, made = self._stem(w), []
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                inner, stride = w.scope(f"{stage}.{block}"), 1 if block else self.strides[stage]
                x = self._block(inner, x, self.width * 2**stage, stride)
            x = w.stop(x) if stage < self.frozen_stages else x
            made.append(x)
        if self.preactivation:
            made[-1] = self.normed(w, "final_norm", made[-1])
        return tuple(made)

    def _stem(self, w: GraphWriter) -> Tensor:
        """Write the first convolution, of 7 x 7 taps (or 4 x 4 of a folded image), and its pool."""
        fold = 2 if self.space_to_depth else 1
        (height, width), taps = self.sides, 4 if self.space_to_depth else 7
        x = pieces.images(w, "image", 3 * fold**2, height=height // fold, width=width // fold)
        y = pieces.convolution(w, "stem", x, self.width, (taps, taps), stride=2 // fold)
        y = y if self.preactivation else self.normed(w, "stem_norm", y)
        return pieces.pool(w, "stem_pool", y, 3, 2)

    def normed(self, w: GraphWriter, name: str, x: Tensor, *terms: Tensor) -> Tensor:
        """Write the norm of `x` and the rectifier of its sum with other terms."""
        return pieces.relu(w, f"{name}_relu", self._norm(w, name, x), *terms)

    def _norm(self, w: GraphWriter, name: str, x: Tensor) -> Tensor:
        """Write the norm of `x`."""
        if self.norm == BATCH:
            return pieces.batch_norm(w, name, x, self.norm_group)
        return NORMS[self.norm](w, name, x)

    def _block(self, w: GraphWriter, x: Tensor, width: int, stride: int) -> Tensor:
        """Write a residual block."""
        steps = self._steps(width, stride)
        same = stride == 1 and w.sizes[x.dims[-1]] == steps[-1][1]
        if self.preactivation:
            entered = self.normed(w, "norm", x)
            y = self._convolved(w, entered, steps)
            return w.add("out", x if same else self._short(w, entered, steps[-1][1], stride), y)
        norm = self._norm
        y = norm(w, f"{steps[-1][0]}_norm", self._convolved(w, x, steps))
        if not same:
            x = norm(w, "short_norm", self._short(w, x, steps[-1][1], stride))
        return pieces.relu(w, "out", y, x)

    def _steps(self, width: int, stride: int) -> tuple[tuple[str, int, int, int], ...]:
        """Return name, channels, taps and stride of each convolution of a block."""
        if self.bottleneck:
            first, second = (stride, 1) if self.stride_in_1x1 else (1, stride)
            return ("a", width, 1, first), ("b", width, 3, second), ("c", EXPANSION * width, 1, 1)
        return ("a", width, 3, stride), ("b", width, 3, 1)

    def _convolved(
        self, w: GraphWriter, x: Tensor, steps: tuple[tuple[str, int, int, int], ...]
    ) -> Tensor:
        """Write the convolutions of a block, with norms and rectifiers between them."""
        for name, count, taps, stride in steps:
            x = pieces.convolution(w, name, x, count, (taps, taps), stride=stride)
            if name != steps[-1][0]:
                x = self.normed(w, f"{name}_norm", x)
        return x

    def _short(self, w: GraphWriter, x: Tensor, count: int, stride: int) -> Tensor:
        """Write the convolution of a shortcut between different sizes."""
        return pieces.convolution(w, "short", x, count, (1, 1), stride=stride)

"""Which convolutions of few examples are cut, and how far their parts reach."""

from typing import NamedTuple

from tpusim.graph import Convolution, Pool
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import IMAGE_DIMS, PARTS, ComputeNode
from tpusim.plan import Axes

LEAST_PARTS = 3
"""Positions of a part at least, of what is read with zeros between (gradients of a stride)."""


class WindowExtents(NamedTuple):
    """Local extents of a convolution: examples, and of the minor dimension.

    source, result: positions that it reads and makes. For the gradient of a kernel, of the image
        and of the gradient that it reads.
    ratio: of the larger to the smaller; finer: the result has more.
    pads: positions that are added to what is read.
    """

    examples: int
    source: int
    result: int
    taps: int
    ratio: int
    finer: bool
    pads: int

    def spare_read(self, spare: int) -> int:
        """Return the spare of the parts that are read, from that of those that are made."""
        made = _share(self.result) + spare
        read = made // self.ratio if self.finer else made * self.ratio
        return read - _share(self.source)

    def spare_made(self, spare: int | None) -> int:
        """Return the spare of the parts that are made.

        spare: of parts that are read as they are; None for those that are cut for it, of which the
            padded positions make up whole parts.
        """
        if self.finer:
            even = self.ratio * _share(self.source) - _share(self.result)
            return max(even, 0) + (self.ratio if spare is None else 0)
        if spare is not None:
            made = (_share(self.source) + spare) // self.ratio
            return max(made - _share(self.result), 0)
        return -(-_share(self.source + self.pads) // self.ratio) - _share(self.result)


def extents_of(node: ComputeNode, body: Body) -> WindowExtents:
    """Return the local extents of a convolution."""
    found: WindowExtents = body.ask(_extents, node.op, node.split)
    return found


def is_cut(node: ComputeNode, body: Body) -> bool:
    """Return True for a convolution of few examples whose parts are as long as their halo."""
    assert isinstance(node.op, Convolution)
    size = extents_of(node, body)
    if len(node.op.output.dims) < IMAGE_DIMS or size.taps == 1:
        return False
    if size.examples > body.ask(_most_examples):
        return False
    if node.op.transposed and not node.op.given:
        return size.source >= PARTS
    if size.finer:
        return size.source >= LEAST_PARTS * PARTS
    return node.op.windows[-1].reach(size.taps) - 1 <= _share(size.source)


def pooled_extents(node: ComputeNode, body: Body) -> WindowExtents:
    """Return the local extents of a pool."""
    found: WindowExtents = body.ask(_pooled, node.op, node.split)
    return found


def examples_of(group: ComputeNode, dim: str, body: Body) -> int:
    """Return the examples of a device."""
    return body.ask(_examples, dim, group.split)


def rounded_up(spare: int, size: WindowExtents, stride: int) -> int:
    """Return a spare with which the parts of a result are whole strides of what pools them."""
    return -(-(_share(size.result) + spare) // stride) * stride - _share(size.result)


def _share(positions: int) -> int:
    return -(-positions // PARTS)


def _most_examples(decisions: LoweringDecisions) -> int:
    return decisions.chip.compiler_rules.cut_examples


def _examples(decisions: LoweringDecisions, dim: str, split: tuple[tuple[str, Axes], ...]) -> int:
    return int(decisions.sizes.extent(dim, dict(split).get(dim, ())))


def _extents(
    decisions: LoweringDecisions, op: Convolution, split: tuple[tuple[str, Axes], ...]
) -> WindowExtents:
    sizes, axes, window = decisions.sizes, dict(split), op.windows[-1]
    examples = int(sizes.product(op.examples, axes))
    inputs, outputs, taps = (
        int(sizes.extent(dim, axes.get(dim, ())))
        for dim in (window.in_dim, window.out_dim, window.tap_dim)
    )
    back = bool(op.given) and not op.makes_kernel
    source, result = (outputs, inputs) if back else (inputs, outputs)
    pads = sum(window.pads(inputs, taps)) if not (back and window.transposed) else 0
    ratio, finer = max(window.stride, window.input_dilation), back is not window.transposed
    return WindowExtents(examples, source, result, taps, ratio, finer and ratio > 1, pads)


def _pooled(
    decisions: LoweringDecisions, op: Pool, split: tuple[tuple[str, Axes], ...]
) -> WindowExtents:
    sizes, axes, window = decisions.sizes, dict(split), op.windows[-1]
    source, result, taps = (
        int(sizes.extent(dim, axes.get(dim, ())))
        for dim in (window.in_dim, window.out_dim, window.tap_dim)
    )
    return WindowExtents(1, source, result, taps, window.stride, False, 0)

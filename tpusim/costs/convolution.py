"""Seconds of convolutions: the matmuls that the TPU compiler makes of them, and their memory.

An activation lies in memory with its channels or its batch in the lanes, and the other in the
sublanes, both rounded up to whole tiles. A tap, or a row of taps where channels are few, is a pass
over the array. Bytes move as those of matmuls do, beside the array.

Sources: passes and tiles from the compiler's estimates of some hundred convolutions for five chips,
libtpu 0.0.42.1 (`tests/analytic/compiler_convolutions.csv`), whose constants are fitted to one half
of the shapes; memory and what is fused from a profile of v2 (`profiled_convolutions.csv` there).
The compiler estimates more, that results leave at a quarter of HBM's bandwidth and that gradients
of strided inputs hide nothing: on v2 neither does, and the steps of ResNet-50 that were measured on
v3 and v4 have no time for it.
"""

from functools import reduce
from math import prod

import numpy as np

from tpusim.costs.compute import array_seconds, matrix_rate, operand_seconds, vector_seconds
from tpusim.hardware import Device
from tpusim.program import (
    LANES,
    SUBLANES,
    ConvolutionWork,
    MatmulWork,
    Number,
    at_least,
    largest,
    power_sum,
    round_up,
    smallest,
    stored_elements,
    sublane_tiles,
)

LAUNCHES = 2
"""Launches of a matmul that a convolution takes: its first and its last window have nothing beside
them. Fitted.
"""

TILE_SIDE = 16
"""Positions of a window of the image along a dimension, where taps are far apart: 16 to 19 in the
compiler's windows of dilated convolutions. Gaps between taps are read as well.
"""

REGISTER = 1024
"""Elements of a vector register: 8 sublanes of 128 lanes."""

LOADED = 2
"""Rows of 16 bits that the array loads in the time of a row that it multiplies. Matters where it
holds the image, new at each position: 4 to 8 results of 256 and 320 channels (v4, v5e) are met
within 13 % so, and without loads 36 to 47 % too fast.
"""

FEW_DEEP = 16
"""Channels, a tile of 16-bit sublanes, up to which all taps are packed into one depth, if there are
no groups: 3 to 16 channels are (49, 25, 16 and 9 taps), 24 to 96 are not (9 and 25 taps, v5e).
"""

TAP_CYCLES = 2.0
"""Cycles of a core for a tap and a register of a depthwise convolution. Fitted; 2.0 to 2.2."""

TAP_OPS = 2
"""Vector operations for a tap and an element of the gradient of a depthwise convolution's weights:
a product and a sum, at the full rate of the vector unit."""


def tile_stretch(work: ConvolutionWork) -> tuple[Number, Number]:
    """Return the factors from the bytes that are read, and written, to those that memory moves.

    Memory moves whole tiles, and the image again for taps that are far apart.
    """
    stored = {
        "": work.positions * stored_elements(work.batch, work.out_channels),
        "input": work.inputs * stored_elements(work.batch, work.in_channels),
        "weight": work.taps * work.in_channels / work.groups * round_up(work.out_channels, LANES),
    }
    plain = stored if work.tiled else work.tensor_elements
    operands = [tensor for tensor in plain if tensor != work.gradient]
    image, again = "" if work.gradient == "input" else "input", reads_again(work)
    moved = sum(stored[each] * (again if each == image else 1) for each in operands)
    read = moved / sum(plain[each] for each in operands)
    return read, stored[work.gradient] / plain[work.gradient]


def reads_again(work: ConvolutionWork) -> float:
    """Return how often the image is read: a window has the gaps between dilated taps at its edge.

    `1 + (taps - 1) (dilation - 1) / TILE_SIDE` in each dimension, but at most once a tap. Dilations
    of 8 and 16 on 256 x 256 and 128 x 128 (v4, v5e, v6e).
    """
    gaps = work.dilation - 1
    return prod(min(taps, 1 + (taps - 1) * gaps / TILE_SIDE) for taps in work.window)


def pass_matmuls(work: ConvolutionWork) -> tuple[MatmulWork, ...]:
    """Return the matmuls that a convolution can be: `batch` passes of [m, k] by [k, n].

    Without a gradient, or for that of the input, a pass is a tap, [batch x positions, channels]; a
    row of taps, whose channels are packed into one depth; a tap at a position with the batch as
    columns; or all taps at a position, packed into one depth (`FEW_DEEP`). The gradient of the
    weights is one, [taps x in_channels, batch x positions].

    No zeros are multiplied for a stride. Each feature group has passes of its own: ResNeXt's are
    not multiplied together, with zeros between them (v4, v5e, v6e). Passes move no bytes.
    """
    groups = work.groups
    deep, wide = work.in_channels / groups, work.out_channels / groups
    rows = work.batch * work.positions
    if work.gradient == "weight":
        tiles = sublane_tiles(deep) if np.all(groups == 1) else round_up(deep, SUBLANES)
        return (_passes(groups, work.taps * tiles, rows, wide, work.dtype),)
    if work.gradient == "input":
        deep, wide = wide, deep
    rows, row = rows * full_batch(work), work.window[-1] if work.window else 1
    each = groups * work.taps
    packed = work.window and np.all(groups == 1) and np.all(deep <= FEW_DEEP)
    depth = work.taps * deep
    all_taps = _passes(work.positions, sublane_tiles(wide), depth, work.batch, work.dtype)
    return (
        _passes(each, rows, deep, wide, work.dtype),
        _passes(each / row, rows, row * deep, wide, work.dtype),
        _passes(each * work.positions, sublane_tiles(wide), deep, work.batch, work.dtype),
        *((all_taps,) if packed else ()),
    )


def _passes(batch: Number, m: Number, k: Number, n: Number, dtype: str) -> MatmulWork:
    return MatmulWork(batch, m, k, n, dtype, 0, 0)


def full_batch(work: ConvolutionWork) -> Number:
    """Return the factor on the rows of a batch that is less than a tile of sublanes, at least 1.

    The compiler cuts the image along its minor dimension, until there are as many parts as
    sublanes, each with the edge that its window needs (`32` of a side become `8 x 5`). An image
    that is too small for that fills the tile with zeros.
    """
    sides, taps = len(work.window), work.taps
    if not sides:
        return 1.0
    side = work.positions ** (1 / sides)
    cut = round_up(side + work.window[-1] - 1, SUBLANES) / side
    whole = SUBLANES / smallest(work.batch, SUBLANES)
    few = (1 - at_least(work.batch, SUBLANES)) * at_least(taps, 2)
    return 1 + few * (smallest(cut, whole) - 1)


def is_depthwise(work: ConvolutionWork) -> bool:
    """Return whether each channel has weights of its own."""
    return bool(np.any(work.groups > 1) and np.all(work.groups == work.in_channels))


def depthwise_seconds(work: ConvolutionWork, device: Device) -> Number:
    """Return the seconds of the vector unit for a depthwise convolution or its gradients.

    A tap shifts the image by a register, `TAP_CYCLES`; the gradient of the weights keeps its sums
    in registers, so that the arithmetic decides.
    """
    elements = work.taps * work.batch * work.positions * round_up(work.out_channels, LANES)
    if work.gradient == "weight":
        return TAP_OPS * elements / device.vpu_flops
    return TAP_CYCLES * elements / (REGISTER * device.tensor_cores * device.clock)


def channel_seconds(work: ConvolutionWork, device: Device) -> Number:
    """Return the seconds of the array for a convolution: the shortest of `pass_matmuls`."""
    ways = [pass_seconds(way, device) for way in pass_matmuls(work)]
    return reduce(smallest, ways)


def fastest_way(work: ConvolutionWork, device: Device) -> MatmulWork:
    """Return the matmul that the array computes for one convolution: the shortest."""
    return min(pass_matmuls(work), key=lambda way: pass_seconds(way, device))


def pass_seconds(way: MatmulWork, device: Device) -> Number:
    """Return the seconds of passes in a step, whose depth is in whole lanes.

    An array of 256 takes two depths of 128 in the time of one of 256 (v6e and 7x: groups, and
    channels that are odd multiples of 128).
    """
    load = round_up(way.k, SUBLANES) / LOADED * LANES / round_up(way.k, LANES)
    alone = array_seconds(way.batch, largest(way.m, load), way.k, way.n, way.dtype, device)
    side = max(device.side(way.dtype), LANES)
    lanes = round_up(way.k, LANES) / round_up(way.k, side)
    return alone * lanes / device.costs.matmul_in_step


def useful_share(work: ConvolutionWork, device: Device) -> Number:
    """Return the share of the array's multiplications that are the convolution's, not of zeros.

    0 for a depthwise convolution, which the vector unit computes.
    """
    if is_depthwise(work):
        return 0.0 * work.positions
    costs = device.costs
    rate = matrix_rate(device, work.dtype) * costs.matmul_efficiency * costs.matmul_in_step
    return work.flops / (channel_seconds(work, device) * rate)


def is_empty(work: ConvolutionWork) -> bool:
    """Return True if a tensor of the convolution has no elements, as a program may say.

    >>> is_empty(ConvolutionWork(8, 16, 9, 0, 64, "bf16", 0, 0))
    True
    """
    sizes = (work.batch, work.positions, work.taps, work.in_channels, work.out_channels)
    return not all(np.all(size) for size in sizes)


def convolution_seconds(work: ConvolutionWork, device: Device) -> Number:
    """Return the seconds of a convolution: `(max(core, epilogue)^p + memory^p)^(1/p) + 2 launches`.

    core: `channel_seconds`, or `depthwise_seconds`.
    epilogue: the vector operations of what is fused to it, beside the array, whatever the window:
        of the single taps in a profile of v2, the 34 whose norms, ReLUs and gradients of both would
        add 5 % or more after the array take what the array or HBM takes, within 1 % in the median
        (`tests/analytic/profiled_convolutions.csv`).
    memory: whole tiles, as those of matmuls move (`operand_seconds`).
    p: that of matmuls in a step.

    An empty one takes its launches. Raise PlanError if the chip has no matrix rate for the dtype.
    """
    costs = device.costs
    if is_empty(work):
        return LAUNCHES * costs.op_launch
    core = (depthwise_seconds if is_depthwise(work) else channel_seconds)(work, device)
    read, store = tile_stretch(work)
    memory = operand_seconds(work.read_bytes * read, work.write_bytes * store, device)
    on_core = largest(core, vector_seconds(work.epilogue_flops, device))
    overlap = costs.matmul_overlap_in_step or costs.matmul_overlap
    return power_sum(on_core, memory, overlap) + LAUNCHES * costs.op_launch

"""Convolutions over images, volumes and sequences, pools, and the norms of such networks.

Tensors are [batch, positions..., channels]. A dimension of positions keeps its name while its size
stays: `height`; at half of its size it is `height/2`. Channels are dimensions by their number,
`64.channels`, and all take the rules of `channels`.
"""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.base.errors import ModelError
from tpusim.graph import (
    INPUT,
    Convolution,
    ConvolutionWindow,
    Count,
    GraphWriter,
    Natural,
    Padding,
    Pool,
    Positions,
    Tensor,
    TensorRole,
    Vectors,
    checked_piece,
    function,
    part_of,
    renamed,
    whole_dim,
)
from tpusim.models.pieces.bias import biased, linear
from tpusim.models.pieces.mlp import activate
from tpusim.models.pieces.norms import NORM_FLOPS


@checked_piece
def channels(w: GraphWriter, count: Count) -> str:
    """Declare so many channels, and return the dimension: `64.channels`."""
    dim = f"{count}.channels"
    w.sizes[dim] = count
    return dim


@checked_piece
def convolution(
    w: GraphWriter,
    name: str,
    x: Positions,
    out_channels: Count,
    taps: Sequence[Count],
    *,
    stride: Count = 1,
    dilation: Count = 1,
    up: Count = 1,
    padding: Padding = "same",
    groups: Count = 1,
    kernel: str = "",
) -> Tensor:
    """Write a convolution without bias, and return its result.

    x: [batch, positions..., channels].
    taps: of each dimension of positions.
    up: above 1 for a transposed convolution, whose result has so many times the positions.
    groups: of channels; as many as there are channels for a depthwise one.
    kernel: whole name of its weight, where several convolutions share it; its own otherwise.
    """
    positions = x.dims[1:-1]
    if len(taps) != len(positions):
        raise ModelError(
            f"{w.name}: {name} has {len(taps)} sizes of taps, but {x.name} has {len(positions)} "
            "dimensions of positions; give one size for each"
        )
    made = channels(w, out_channels)
    depthwise = groups == w.sizes[x.dims[-1]] == out_channels and groups > 1
    given = x.dims[-1] if depthwise else w.twin(INPUT, x.dims[-1])
    windows = tuple(
        _window(w, dim, count, stride, dilation, up, padding)
        for dim, count in zip(positions, taps, strict=True)
    )
    kernel_in = () if depthwise else (_one_group(w, given, groups),)
    dims = w.dims((*(window.tap_dim for window in windows), *kernel_in, made))
    weight = Tensor(kernel or f"{w.prefix}{name}", dims, TensorRole.PARAM)
    out = w.tensor(f"{name}_out", (x.dims[0], *(window.out_dim for window in windows), made))
    viewed = x.view((x.dims[0], *(window.in_dim for window in windows), given))
    apart = 1 if depthwise else groups
    w.write(Convolution(f"{w.prefix}{name}", viewed, weight, out, windows, apart))
    return out


def _one_group(w: GraphWriter, dim: str, groups: int) -> str:
    """Return the dimension of the input channels of one group."""
    one = part_of(dim, groups)
    w.sizes[one] = w.sizes[dim] // groups
    return one


def _window(
    w: GraphWriter,
    dim: str,
    count: int,
    stride: int,
    dilation: int,
    up: int,
    padding: Padding,
) -> ConvolutionWindow:
    """Return the window over a dimension, and declare the dimensions that it makes."""
    taps = renamed(f"{count}.", f"{whole_dim(dim)}_taps")
    w.sizes[taps] = count
    window = ConvolutionWindow(
        w.twin(INPUT, dim), renamed("made_", dim), taps, stride, dilation, up, padding
    )
    size = window.output_size(w.sizes[dim], count)
    return replace(window, out_dim=resized(w, dim, size))


@checked_piece
def resized(w: GraphWriter, dim: str, size: Count) -> str:
    """Declare the positions of `dim` at another size, and return their name: `height/2`.

    A size that does not divide the whole is written out: `height/7of224`.
    """
    whole = whole_dim(dim)
    full = w.extent(whole)
    if size == full:
        return whole
    made = part_of(whole, full // size) if full % size == 0 else f"{whole}/{size}of{full}"
    w.sizes[made] = size
    return made


@checked_piece
def concatenated(w: GraphWriter, name: str, first: Vectors, *others: Vectors) -> Tensor:
    """Write the channels of tensors of equal positions side by side."""
    shaped = (first, *(part.view((*first.dims[:-1], part.dims[-1])) for part in others))
    count = channels(w, sum(w.sizes[part.dims[-1]] for part in (first, *others)))
    dims = (*first.dims[:-1], count)
    return w.pointwise(
        name, shaped, dims, 0.0, keeps="", alone=True, function=function("side_by_side")
    )


@checked_piece
def pool(
    w: GraphWriter,
    name: str,
    x: Positions,
    taps: Count,
    stride: Count,
    *,
    maximum: bool = True,
    padding: Padding = "same",
) -> Tensor:
    """Write the maximum or the mean over windows of `taps` positions in each dimension."""
    windows = tuple(_window(w, dim, taps, stride, 1, 1, padding) for dim in x.dims[1:-1])
    out = w.tensor(name, (x.dims[0], *(window.out_dim for window in windows), x.dims[-1]))
    viewed = x.view((x.dims[0], *(window.in_dim for window in windows), x.dims[-1]))
    w.write(Pool(f"{w.prefix}{name}", viewed, out, windows, maximum))
    return out


@checked_piece
def upsample(w: GraphWriter, name: str, x: Positions, factor: Count = 2) -> Tensor:
    """Write the repetition of each position `factor` times in each dimension."""
    pairs = tuple((dim, resized(w, dim, w.sizes[dim] * factor)) for dim in x.dims[1:-1])
    dims = (x.dims[0], *(wide for _, wide in pairs), x.dims[-1])
    of = function("repeat")
    return w.pointwise(name, (x,), dims, 1.0, keeps="", repeats=pairs, alone=True, function=of)


@checked_piece
def mean_of_positions(w: GraphWriter, name: str, x: Positions) -> Tensor:
    """Write the mean over all positions; return [batch, channels]."""
    dims = (x.dims[0], x.dims[-1])
    of = function("mean_of_positions")
    return w.pointwise(name, (x,), dims, 1.0, over=x.dims[1:-1], keeps="", function=of)


@checked_piece
def batch_norm(w: GraphWriter, name: str, x: Vectors, group: Natural = 0) -> Tensor:
    """Write a normalisation over examples and positions, with scale and shift of each channel.

    Its mean and variance are of all examples of the step (Ioffe and Szegedy, arXiv:1502.03167), or
    of each group of consecutive ones: devices that have different examples of a group reduce two
    sums forward, and two backward.

    group: examples of a group; 0 for all.
    """
    return _normalised(w, name, x, x.dims[:-1], group=group)


@checked_piece
def device_norm(w: GraphWriter, name: str, x: Vectors) -> Tensor:
    """Write a batch norm whose mean and variance are of the examples of one device.

    No sums cross devices; the gradients of scale and shift are reduced as those of all weights.
    """
    return _normalised(w, name, x, x.dims[:-1], on_device=True)


@checked_piece
def frozen_norm(w: GraphWriter, name: str, x: Tensor) -> Tensor:
    """Write a scale and a shift of each channel that are not trained, as of a frozen batch norm."""
    return w.pointwise(name, (x,), x.dims, 2.0, keeps="", function=function("frozen_norm"))


@checked_piece
def instance_norm(w: GraphWriter, name: str, x: Positions) -> Tensor:
    """Write a normalisation over the positions of each example, with scale and shift.

    A group norm costs the same: its statistics are of several channels instead of one.
    """
    return _normalised(w, name, x, x.dims[1:-1])


def _normalised(
    w: GraphWriter,
    name: str,
    x: Tensor,
    over: tuple[str, ...],
    *,
    on_device: bool = False,
    group: int = 0,
) -> Tensor:
    scale, shift = (w.weight(f"{name}_{one}", x.dims[-1]) for one in ("scale", "shift"))
    unscaled = w.tensor(f"{name}_unscaled", x.dims)
    return w.pointwise(
        name,
        (x, scale, shift),
        x.dims,
        NORM_FLOPS,
        over=over,
        statistics=2,
        on_device=on_device,
        group=group,
        residuals=(unscaled, scale),
        function=function("standardise", over=len(over), group=group),
    )


@checked_piece
def relu(w: GraphWriter, name: str, x: Tensor, *terms: Tensor) -> Tensor:
    """Write the rectifier of `x`, or of its sum with other tensors (a residual connection)."""
    summed = w.add(f"{name}_sum", x, *terms) if terms else x
    positive = w.tensor(f"{name}_positive", x.dims, "pred")
    return w.pointwise(
        name,
        (summed,),
        x.dims,
        1.0,
        keeps="outputs",
        residuals=(positive,),
        function=function("relu"),
    )


@checked_piece
def silu(w: GraphWriter, name: str, x: Tensor) -> Tensor:
    """Write x times its sigmoid."""
    return activate(w, "silu", (x,), name, f"{name}_")


@checked_piece
def normed(w: GraphWriter, name: str, x: Positions) -> Tensor:
    """Write a group norm and `silu` of its result, as before the convolutions of diffusion nets."""
    return silu(w, f"{name}_silu", instance_norm(w, name, x))


@checked_piece
def biased_convolution(
    w: GraphWriter, name: str, x: Positions, count: Count, *, taps: Count = 3, stride: Count = 1
) -> Tensor:
    """Write a convolution of `taps` x `taps` positions to `count` channels, with a bias."""
    return biased(w, name, convolution(w, name, x, count, (taps, taps), stride=stride))


@checked_piece
def residual_block(
    w: GraphWriter, x: Positions, count: Count, vector: Vectors | None = None
) -> Tensor:
    """Write two convolutions to `count` channels, each after `normed`, and their sum with `x`.

    vector: [batch, width], whose projection is added between the two; none where it is not given.
    """
    y = biased_convolution(w, "a", normed(w, "a_norm", x), count)
    if vector is not None:
        y = w.add("timed", y, linear(w, "time", vector, y.dims[-1]))
    y = biased_convolution(w, "b", normed(w, "b_norm", y), count)
    if x.dims[-1] != y.dims[-1]:
        x = biased_convolution(w, "short", x, count, taps=1)
    return w.add("block_out", x.view(y.dims), y)


@checked_piece
def doubled(w: GraphWriter, x: Positions, count: Count) -> Tensor:
    """Write the repetition of each position in two dimensions, and a convolution of it."""
    return biased_convolution(w, "double", upsample(w, "repeated", x), count)


@checked_piece
def images(w: GraphWriter, name: str, count: Count, **positions: int) -> Tensor:
    """Declare the positions, and return the input of that name: [batch, positions..., channels]."""
    w.size(**positions)
    dims = ("batch", *map(w.dim, positions), channels(w, count))
    return Tensor(f"{w.prefix}{name}", dims, TensorRole.INPUT)

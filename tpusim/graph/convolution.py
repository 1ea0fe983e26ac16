"""Convolutions and pools over windows, and their transposes."""

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.graph.tensor import (
    Cotangents,
    DimSizes,
    MakeGradient,
    Tensor,
    gradient_of,
)
from tpusim.graph.window import ConvolutionWindow


class WindowsRead(NamedTuple):
    """An operand that windows slide over.

    tensor: with the dimensions that the windows name.
    beyond: windows in which the outputs of these are read by the same operation.
    """

    tensor: Tensor
    windows: tuple[ConvolutionWindow, ...]
    beyond: tuple[ConvolutionWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of `activation` with `kernel` over `windows`, or one of its two transposes.

    The transposes run the same multiplications, so the FLOPs of the three are equal.

    activation, kernel, output: tensors of the forward convolution, of any order of dimensions, such
        as [batch, in_h, in_w, in_c], [h_taps, w_taps, in_c, out_c] and [batch, out_h, out_w,
        out_c]. A depthwise kernel is [h_taps, w_taps, channels], where `channels` is a dimension of
        activation and output too.
    groups: of channels. The kernel's input channels are then those of one group, under a name of
        their own (`part_of("in_c", groups)`), and the output's channels are divided alike.
    given, made: operands and results of a transpose.
    """

    name: str
    activation: Tensor
    kernel: Tensor
    output: Tensor
    windows: tuple[ConvolutionWindow, ...]
    groups: int = 1
    given: tuple[Tensor, ...] = ()
    made: tuple[Tensor, ...] = ()
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands."""
        return self.given or (self.activation, self.kernel)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result."""
        return self.made or (self.output,)

    @property
    def taps(self) -> tuple[str, ...]:
        """The dimensions of the taps."""
        return tuple(window.tap_dim for window in self.windows)

    @property
    def positions(self) -> tuple[str, ...]:
        """The spatial dimensions of which each position meets each tap."""
        return tuple(window.position_dim for window in self.windows)

    @property
    def in_channels(self) -> tuple[str, ...]:
        """The kernel's channels that are summed: the input's, of one group."""
        return tuple(d for d in self.kernel.dims if d not in (*self.taps, *self.output.dims))

    @property
    def out_channels(self) -> tuple[str, ...]:
        """The output's channels."""
        return tuple(d for d in self.output.dims if d in self.kernel.dims)

    @property
    def examples(self) -> tuple[str, ...]:
        """The output's other dimensions, such as the batch."""
        spatial = {window.out_dim for window in self.windows}
        return tuple(d for d in self.output.dims if d not in (*spatial, *self.kernel.dims))

    @property
    def depthwise(self) -> bool:
        """True if each channel has a kernel of its own."""
        return not self.in_channels and bool(self.out_channels)

    @property
    def alike(self) -> tuple[tuple[str, str], ...]:
        """Dimensions of the activation that are divided as one of the output: (theirs, its).

        Spatial positions follow those of the output, and the channels of groups their outputs.
        """
        pairs = [(window.in_dim, window.out_dim) for window in self.windows]
        if self.groups > 1:
            known = {*(dim for dim, _ in pairs), *self.examples}
            ungrouped = [d for d in self.activation.dims if d not in known]
            pairs += zip(ungrouped, self.out_channels, strict=True)
        return tuple(pairs)

    def is_matmul(self, sizes: DimSizes) -> bool:
        """Return True for a single tap at every position, without groups."""
        strided = any(max(w.stride, w.input_dilation) > 1 for w in self.windows)
        taps = prod(sizes[tap] for tap in self.taps)
        return taps == 1 and self.groups == 1 and not (strided or self.depthwise)

    @property
    def makes_kernel(self) -> bool:
        """True for the transpose that makes the gradient of the kernel."""
        return bool(self.given) and self.given[1] == self.activation

    @property
    def transposed(self) -> bool:
        """True for a transposed convolution, and for its gradients."""
        return any(window.transposed for window in self.windows)

    def windows_read(self, sizes: DimSizes) -> tuple[WindowsRead, ...]:
        """Return the operand that the windows slide over, with the windows in which it is read.

        The activation, also for the gradient of the kernel; the output's gradient for that of the
        activation, and for both of a transposed convolution.
        """
        if self.given and (self.transposed or not self.makes_kernel):
            return (WindowsRead(self.given[0], _backward(self.windows, sizes)),)
        return (WindowsRead(self.activation, self.windows),)

    def flops(self, sizes: DimSizes) -> int:
        """Return 2 x outputs x taps x input channels of a group; all taps count, also on padding.

        Of a transposed convolution, 2 x inputs x taps x channels: zeros between inputs do not
        count. XLA's own cost analysis leaves out taps on padding too, which the array multiplies
        (see `compiler/work/dots.py`).
        """
        dims = (*self.examples, *self.positions, *self.taps, *self.in_channels, *self.out_channels)
        return 2 * prod(sizes[dim] for dim in dims)

    def transpose(
        self, cotangents: Cotangents, gradient: MakeGradient
    ) -> "tuple[Convolution, ...]":
        """Return the convolutions that make the gradients of the activation and of the kernel."""
        given = gradient_of(self.output, cotangents)
        made = replace(self, phase=Phase.BACKWARD)
        pairs = (("x", self.activation, self.kernel), ("w", self.kernel, self.activation))
        return tuple(
            replace(
                made,
                name=f"{self.name}/d{side}",
                given=(given, other),
                made=(gradient(wanted),),
            )
            for side, wanted, other in pairs
            if wanted.differentiable
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """The maximum or the mean over windows, or its transpose; on the vector unit.

    The transpose of a maximum selects the largest of each window again, and adds the gradient to it
    (XLA's select-and-scatter): it reads the activation. That of a mean spreads the gradient.

    maximum: the maximum, not the mean.
    given, made: operands and result of a transpose.
    """

    name: str
    activation: Tensor
    output: Tensor
    windows: tuple[ConvolutionWindow, ...]
    maximum: bool = True
    given: tuple[Tensor, ...] = ()
    made: tuple[Tensor, ...] = ()
    phase: Phase = Phase.FORWARD

    def __post_init__(self) -> None:
        for window in self.windows:
            if window.transposed:
                raise ValueError(f"{self.name}: a pool has no input_dilation")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands: the activation, or the gradient and, of a maximum, the activation."""
        return self.given or (self.activation,)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result."""
        return self.made or (self.output,)

    @property
    def taps(self) -> tuple[str, ...]:
        """The dimensions of the taps."""
        return tuple(window.tap_dim for window in self.windows)

    @property
    def alike(self) -> tuple[tuple[str, str], ...]:
        """Spatial dimensions of the activation, each with that of the output."""
        return tuple((window.in_dim, window.out_dim) for window in self.windows)

    def windows_read(self, sizes: DimSizes) -> tuple[WindowsRead, ...]:
        """Return the operands that the windows slide over, with the windows of each.

        The gradient of a maximum reads all windows that reach into what it makes, whole.
        """
        if not self.given:
            return (WindowsRead(self.activation, self.windows),)
        back = _backward(self.windows, sizes)
        spread = WindowsRead(self.given[0], back)
        return (spread, WindowsRead(self.activation, self.windows, back))[: len(self.given)]

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Pool, ...]":
        """Return the operation that makes the gradient of the activation."""
        if not self.activation.differentiable:
            return ()
        given = gradient_of(self.output, cotangents)
        return (
            replace(
                self,
                name=f"{self.name}/d",
                given=(given, self.activation) if self.maximum else (given,),
                made=(gradient(self.activation),),
                phase=Phase.BACKWARD,
            ),
        )


def _backward(
    windows: tuple[ConvolutionWindow, ...], sizes: DimSizes
) -> tuple[ConvolutionWindow, ...]:
    """Return the windows in which the gradient of the inputs reads that of the outputs."""
    return tuple(w.backward(sizes[w.in_dim], sizes[w.tap_dim]) for w in windows)

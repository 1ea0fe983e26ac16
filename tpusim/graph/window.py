"""The window of a convolution or of a pool along one spatial dimension."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from tpusim.base.errors import ModelError

Padding: TypeAlias = str | tuple[int, int]
"""`same`, `valid`, or the elements added before the first input and after the last."""

_WORDS = ("same", "valid")


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """A spatial dimension of a convolution or a pool, with one output every `stride` inputs.

    Output o reads the inputs o x stride - low + t x dilation, for each tap t; with an
    `input_dilation` of u only positions that u divides hold an input, and the others zeros.

    in_dim, out_dim, tap_dim: names of the dimensions of inputs, outputs and taps. A name that is
        both of inputs and of outputs would be a batch dimension, so the two differ.
    dilation: of the kernel; the taps are this far apart.
    input_dilation: of the input, above 1 for a transposed ("up") convolution: the stride of the
        convolution that it is the transpose of.
    padding: `same` gives ceil(inputs / stride) outputs, or inputs x input_dilation of a transposed
        convolution; `valid` pads nothing, or of a transposed one what makes each input meet each
        tap. Both are JAX's `conv` and `conv_transpose`. Otherwise (low, high), of the dilated
        input; negative numbers crop.
    """

    in_dim: str
    out_dim: str
    tap_dim: str
    stride: int = 1
    dilation: int = 1
    input_dilation: int = 1
    padding: Padding = "same"

    def __post_init__(self) -> None:
        for name in ("stride", "dilation", "input_dilation"):
            if getattr(self, name) < 1:
                raise ModelError(f"{self.in_dim}: {name} is {getattr(self, name)}; write 1 or more")
        if isinstance(self.padding, str) and self.padding not in _WORDS:
            raise ModelError(
                f"{self.in_dim}: padding is {self.padding!r}; write same, valid or (low, high)"
            )
        if self.in_dim == self.out_dim:
            raise ModelError(
                f"{self.in_dim} is both the inputs and the outputs of a window; name them apart"
            )

    @property
    def transposed(self) -> bool:
        """True for a window of a transposed convolution."""
        return self.input_dilation > 1

    @property
    def position_dim(self) -> str:
        """The dimension of which each position meets each tap: inputs if transposed."""
        return self.in_dim if self.transposed else self.out_dim

    def reach(self, taps: int) -> int:
        """Return the (dilated) inputs from the first tap to the last: (taps - 1) x dilation + 1."""
        return (taps - 1) * self.dilation + 1

    def pads(self, size: int, taps: int) -> tuple[int, int]:
        """Return the elements added before and after `size` inputs; of `same`, most after."""
        if not isinstance(self.padding, str):
            return self.padding
        reach, up = self.reach(taps), self.input_dilation
        if self.transposed:
            return _transposed_pads(reach, up, self.padding)
        if self.padding == "valid":
            return 0, 0
        total = max((-(-size // self.stride) - 1) * self.stride + reach - size, 0)
        return total // 2, total - total // 2

    def output_size(self, size: int, taps: int) -> int:
        """Return the number of outputs of `size` inputs.

        Raise ValueError if the taps reach further than the padded inputs.
        """
        dilated = (size - 1) * self.input_dilation + 1 + sum(self.pads(size, taps))
        if dilated < self.reach(taps):
            raise ModelError(
                f"{self.in_dim}: {taps} taps with a dilation of {self.dilation} reach over "
                f"{self.reach(taps)} inputs, but there are {dilated} with their padding"
            )
        return (dilated - self.reach(taps)) // self.stride + 1

    def backward(self, size: int, taps: int) -> "ConvolutionWindow":
        """Return the window in which the gradient of `size` inputs reads that of the outputs.

        The taps are reversed, the stride becomes the dilation of what is read, and the other way
        round (Dumoulin and Visin, arXiv:1603.07285, relationship 14).
        """
        low = self.reach(taps) - 1 - self.pads(size, taps)[0]
        outputs = (self.output_size(size, taps) - 1) * self.stride + 1
        read = (size - 1) * self.input_dilation + self.reach(taps)
        return replace(
            self,
            in_dim=self.out_dim,
            out_dim=self.in_dim,
            stride=self.input_dilation,
            input_dilation=self.stride,
            padding=(low, read - outputs - low),
        )


def _transposed_pads(reach: int, up: int, padding: str) -> tuple[int, int]:
    """Return the padding of a transposed convolution, as JAX's `conv_transpose` has it."""
    if padding == "valid":
        return reach - 1, up - 1 + max(reach - up, 0)
    total = reach + up - 2
    low = reach - 1 if up > reach - 1 else -(-total // 2)
    return low, total - low

"""Contractions: einsums, convolutions, and their transposes."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from tpusim.base.phase import Phase
from tpusim.graph.tensor import (
    Cotangents,
    DimSizes,
    MakeGradient,
    Tensor,
    TensorRole,
    gradient_of,
    union_dims,
)


@dataclass(frozen=True, slots=True)
class Einsum:
    """A matmul of two tensors, summed over the dimensions that the output lacks.

    lhs, rhs: operands; dimensions with the same name are the same dimension.
    output: result.
    model_share: share of its FLOPs that the model needs; 1/2 for causal scores that are computed
        in full. A Fraction is exact.
    ragged: each expert has as many rows as tokens, so the einsum runs as a grouped matmul.
    """

    name: str
    lhs: Tensor
    rhs: Tensor
    output: Tensor
    model_share: float | Fraction = 1.0
    phase: Phase = Phase.FORWARD
    ragged: bool = False

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The two operands."""
        return (self.lhs, self.rhs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result."""
        return (self.output,)

    def flops(self, sizes: DimSizes) -> int:
        """Return 2 x the product of all dimensions: a multiplication and an addition each."""
        return 2 * prod(sizes[dim] for dim in union_dims(self.lhs, self.rhs))

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Einsum, ...]":
        """Return its transposes, which are einsums: the gradient with the other operand."""
        given = gradient_of(self.output, cotangents)
        made = replace(self, lhs=given, phase=Phase.BACKWARD)
        return tuple(
            replace(made, name=f"{self.name}/d{side}", rhs=other, output=gradient(wanted))
            for side, wanted, other in (("x", self.lhs, self.rhs), ("w", self.rhs, self.lhs))
            if wanted.differentiable
        )


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """A spatial dimension of a convolution, with one output every `stride` inputs."""

    in_dim: str
    out_dim: str
    tap_dim: str
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of `activation` with `kernel` over `windows`, or one of its two transposes.

    The transposes run the same multiplications, so the FLOPs of the three are equal.

    activation, kernel, output: tensors of the forward convolution.
    given, made: operands and results of a transpose.
    """

    name: str
    activation: Tensor
    kernel: Tensor
    output: Tensor
    windows: tuple[ConvolutionWindow, ...]
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

    def flops(self, sizes: DimSizes) -> int:
        """Return 2 x outputs x taps x input channels."""
        spatial = {window.in_dim for window in self.windows}
        dims = dict.fromkeys((*self.output.dims, *self.kernel.dims))
        return 2 * prod(sizes[dim] for dim in dims if dim not in spatial)

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
            if wanted.role is not TensorRole.INPUT
        )

"""Products: einsums, convolutions, and what their transposes are."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from tpusim.graph.tensor import Role, Sizes, Tensor, union_dims
from tpusim.graph.transpose import Cotangents, MakeGradient, gradient_of
from tpusim.phase import Phase


@dataclass(frozen=True, slots=True)
class Einsum:
    """A product of two tensors, summed over the dimensions that the output lacks.

    model_share: the share of its FLOPs that the model needs; 1/2 for causal scores computed whole,
        exact where it is a fraction.
    ragged: the rows of each expert are as many as it has tokens, so it runs as a grouped kernel.
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
        """The product."""
        return (self.output,)

    def flops(self, sizes: Sizes) -> int:
        """2 x the product of all dimensions: a multiplication and an addition each."""
        return 2 * prod(sizes[dim] for dim in union_dims(self.lhs, self.rhs))

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Einsum, ...]":
        """An einsum's transposes are einsums: the gradient with the other operand."""
        given = gradient_of(self.output, cotangents)
        return tuple(
            Einsum(
                f"{self.name}/d{side}",
                given,
                other,
                gradient(wanted),
                self.model_share,
                Phase.BACKWARD,
                self.ragged,
            )
            for side, wanted, other in (("x", self.lhs, self.rhs), ("w", self.rhs, self.lhs))
            if wanted.differentiable
        )


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension of a convolution: `taps` wide, one output every `stride` inputs."""

    in_dim: str
    out_dim: str
    tap_dim: str
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of `x` with `kernel` over `windows`, or one of its two transposes.

    The transposes run the same multiplications, so the FLOPs of the three are equal; `activation`,
    `kernel` and `output` are the forward ones in each, and `product` says which of them is made.
    """

    name: str
    activation: Tensor
    kernel: Tensor
    output: Tensor
    windows: tuple[Window, ...]
    product: str = "output"
    given: tuple[Tensor, ...] = ()
    made: tuple[Tensor, ...] = ()
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands."""
        return self.given or (self.activation, self.kernel)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The product."""
        return self.made or (self.output,)

    def flops(self, sizes: Sizes) -> int:
        """2 x outputs x taps x input channels."""
        spatial = {window.in_dim for window in self.windows}
        dims = dict.fromkeys((*self.output.dims, *self.kernel.dims))
        return 2 * prod(sizes[dim] for dim in dims if dim not in spatial)

    def transpose(
        self, cotangents: Cotangents, gradient: MakeGradient
    ) -> "tuple[Convolution, ...]":
        """The gradients of the input and of the kernel."""
        given = gradient_of(self.output, cotangents)
        pairs = (("x", self.activation, self.kernel), ("w", self.kernel, self.activation))
        return tuple(
            Convolution(
                f"{self.name}/d{side}",
                self.activation,
                self.kernel,
                self.output,
                self.windows,
                side,
                (given, other),
                (gradient(wanted),),
                Phase.BACKWARD,
            )
            for side, wanted, other in pairs
            if wanted.role is not Role.INPUT
        )

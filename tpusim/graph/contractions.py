"""Einsums and their transposes."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from tpusim.base.phase import Phase
from tpusim.graph.tensor import (
    Cotangents,
    DimSizes,
    MakeGradient,
    Tensor,
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

"""Reshapes: dimensions of a tensor become one, or one becomes several, and nothing moves."""

from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.graph.tensor import Cotangents, MakeGradient, Tensor, gradient_of


@dataclass(frozen=True, slots=True)
class Reshape:
    """The elements of `input` in the same order under other dimensions, such as pixels as tokens.

    Dimensions that both have are kept; the others, next to each other, are merged or taken apart.
    """

    name: str
    input: Tensor
    output: Tensor
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operand."""
        return (self.input,)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result."""
        return (self.output,)

    @property
    def changed(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The dimensions that only the operand has, and those that only the result has."""
        before, after = self.input.dims, self.output.dims
        return tuple(d for d in before if d not in after), tuple(
            d for d in after if d not in before
        )

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Reshape, ...]":
        """Return the reshape of the gradient back to the dimensions of the operand."""
        if not self.input.differentiable:
            return ()
        given = gradient_of(self.output, cotangents).view(self.output.dims)
        made = gradient(self.input)
        return (Reshape(f"{self.name}/d", given, made, Phase.BACKWARD),)

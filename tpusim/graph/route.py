"""Tokens on their way to the experts' slots and back, by sorting.

Slots are [expert, batch, slot, ...]: the places of one expert for one sequence. Which tokens they
hold is the router's choice, so only sizes are known here: as many slots as choices.
"""

from dataclasses import dataclass

from tpusim.graph.tensor import Tensor
from tpusim.graph.transpose import Cotangents, MakeGradient, gradient_of
from tpusim.phase import Phase


@dataclass(frozen=True, slots=True)
class Route:
    """Tokens put into the slots of their experts (`dispatch`), or brought back and added up.

    The two are each other's transposes. gates: the experts of each token, and their weights.
    weighted: slots are scaled by their gates, as the combine of the forward pass has it.
    slots, gate_gradient: of that one's transpose, what it read, and the gates' gradient, which is
    the product of each slot with the gradient of its token.
    """

    name: str
    tokens: Tensor
    gates: Tensor
    output: Tensor
    dispatch: bool
    weighted: bool = False
    slots: Tensor | None = None
    gate_gradient: Tensor | None = None
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What is moved and the gates; for the gates' gradient also the slots."""
        return (self.tokens, self.gates, *((self.slots,) if self.slots else ()))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What was moved at its new place, and the gates' gradient."""
        return (self.output, *((self.gate_gradient,) if self.gate_gradient else ()))

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Route, ...]":
        """Combine the gradient of a dispatch, dispatch that of a combine."""
        given = gradient_of(self.output, cotangents)
        return (
            Route(
                f"{self.name}/d",
                given,
                self.gates,
                gradient(self.tokens),
                not self.dispatch,
                self.weighted,
                self.tokens if self.weighted else None,
                gradient(self.gates) if self.weighted else None,
                Phase.BACKWARD,
            ),
        )

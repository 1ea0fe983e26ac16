"""Dispatch of tokens to the experts' slots, and their combination, by sorting.

Slots are [expert, batch, slot, ...]: those of one expert for one sequence. The router chooses the
tokens in them, so only sizes are known here: as many slots as choices.
"""

from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.graph.tensor import Cotangents, MakeGradient, Tensor, gradient_of


@dataclass(frozen=True, slots=True)
class TokenRouting:
    """A dispatch of tokens into the slots of their experts, or a combine, its transpose.

    tokens: operand: tokens of a dispatch, slots of a combine.
    gates: experts of each token, and their weights.
    output: result: slots of a dispatch, tokens of a combine.
    dispatch: True for a dispatch, False for a combine.
    weighted: slots are scaled by their gates, as in the combine of the forward pass.
    slots: operand of the weighted combine whose transpose this is.
    gate_gradient: gradient of the gates that such a transpose makes, the dot product of each slot
        with the gradient of its token.
    fused: a kernel, in which the experts are computed too, sends each row to the device that needs
        it, in a message of its own.
    expert_seconds: least time of that kernel for each expert of a device.
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
    fused: bool = False
    expert_seconds: float = 0.0

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operand and the gates; for the gates' gradient also the slots."""
        return (self.tokens, self.gates, *((self.slots,) if self.slots else ()))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result, and the gates' gradient."""
        return (self.output, *((self.gate_gradient,) if self.gate_gradient else ()))

    def transpose(
        self, cotangents: Cotangents, gradient: MakeGradient
    ) -> "tuple[TokenRouting, ...]":
        """Return the combine of a dispatch's gradient, or the dispatch of a combine's."""
        if not (self.tokens.differentiable or (self.weighted and self.gates.differentiable)):
            return ()
        given = gradient_of(self.output, cotangents)
        return (
            TokenRouting(
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

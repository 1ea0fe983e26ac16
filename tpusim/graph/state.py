"""State: tensors that stay in HBM from step to step, and their updates in place."""

from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.graph.tensor import Cotangents, MakeGradient, Tensor


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """The write of a value into a state, such as the keys of a new token into a KV cache.

    state: the tensor that is updated, of the role `STATE`.
    value: what is written: all dimensions of the state, or without those along which it is written
        at one position.
    output: the state after the update, which later operations read; it has the state's buffer.

    An update has no gradient: a state is a constant to the step that reads it.
    """

    name: str
    state: Tensor
    value: Tensor
    output: Tensor
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The state and the value."""
        return (self.state, self.value)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The state after the update."""
        return (self.output,)

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> tuple[()]:
        """Return no operations."""
        return ()

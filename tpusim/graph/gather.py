"""Gather and scatter of rows by their ids: an embedding lookup and its transpose.

A dimension that table and ids share is one of examples, each with rows of its own: the positions of
a sequence that a loss reads are rows of [batch, seq, embed] at ids [batch, predictions].
"""

from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.graph.tensor import Cotangents, MakeGradient, Tensor, gradient_of


@dataclass(frozen=True, slots=True)
class Gather:
    """The rows of `table` at `ids` along `dim`; an embedding lookup where the table is a weight."""

    name: str
    table: Tensor
    ids: Tensor
    output: Tensor
    dim: str
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The table and the ids."""
        return (self.table, self.ids)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The rows."""
        return (self.output,)

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Scatter, ...]":
        """Return the scatter-add of the rows' gradients into the table's."""
        if not self.table.differentiable:
            return ()
        given = gradient_of(self.output, cotangents)
        return (Scatter(f"{self.name}/dw", given, self.ids, gradient(self.table), self.dim),)


@dataclass(frozen=True, slots=True)
class Scatter:
    """A scatter-add of rows into a table at `ids` along `dim`."""

    name: str
    rows: Tensor
    ids: Tensor
    output: Tensor
    dim: str
    phase: Phase = Phase.BACKWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The rows and the ids."""
        return (self.rows, self.ids)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The table."""
        return (self.output,)

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Scatter, ...]":
        """Raise NotImplementedError: only gradients are scattered, and none is differentiated."""
        raise NotImplementedError("a scatter is itself a gradient")

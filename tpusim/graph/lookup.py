"""Rows of a table by their ids: an embedding lookup and its transpose."""

from dataclasses import dataclass

from tpusim.graph.tensor import Tensor
from tpusim.graph.transpose import Cotangents, MakeGradient, gradient_of
from tpusim.phase import Phase


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of `table` picked by `ids` along `dim`: an embedding lookup, or its transpose."""

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
        """A scatter-add of the rows' gradients into the table's."""
        given = gradient_of(self.output, cotangents)
        return (
            Scatter(
                f"{self.name}/dw", given, self.ids, gradient(self.table), self.dim, Phase.BACKWARD
            ),
        )


@dataclass(frozen=True, slots=True)
class Scatter:
    """Rows added into a table at `ids` along `dim`."""

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
        """Only gradients are scattered; nothing differentiates them again."""
        raise NotImplementedError("a scatter is itself a gradient")

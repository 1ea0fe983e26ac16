"""The operations of a graph: what is computed, over which named dimensions.

Each operation knows its transposes: given the gradients of its outputs it returns the operations
that make the gradients of its inputs. Reverse-mode differentiation (`backward.py`) needs no more,
so a model is written forward only. A scan is differentiated there, as its body has to be.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tpusim.graph.attention import Attention
from tpusim.graph.lookup import Gather, Scatter
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.products import Convolution, Einsum
from tpusim.graph.route import Route
from tpusim.graph.tensor import Tensor
from tpusim.phase import Phase


@dataclass(frozen=True, slots=True)
class Scan:
    """`trips` runs of `body`, each on its own slice of the stacked parameters.

    carries: (outside before, inside before, inside after, outside after) of each carried tensor.
    saves: tensors of the body that are stacked over the trips for the backward scan.
    loads: tensors that the backward scan reads from those stacks.
    slices: (outside, inside) where a trip reads its own part of a tensor.
    stacks: (inside, outside) where a trip writes its own part of a tensor.
    shared: what all trips read alike. sums: (inside, outside) of what the trips' results add up to.
    recomputed: the backward scan computes the body again, whatever else is kept.
    deferred: it makes gradients of weights alone, from what the backward scan has saved for it.
    """

    name: str
    trips: int
    body: "tuple[Op, ...]"
    carries: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...] = ()
    saves: tuple[Tensor, ...] = ()
    loads: tuple[Tensor, ...] = ()
    slices: tuple[tuple[Tensor, Tensor], ...] = ()
    stacks: tuple[tuple[Tensor, Tensor], ...] = ()
    shared: tuple[Tensor, ...] = ()
    sums: tuple[tuple[Tensor, Tensor], ...] = ()
    recomputed: bool = False
    deferred: bool = False
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the first trip starts from, what each takes a part of, and what all read."""
        carried = (before for before, *_ in self.carries)
        return (*carried, *(outside for outside, _ in self.slices), *self.shared)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What the last trip leaves, what the trips wrote parts of, and what they added up."""
        carried = (after for *_, after in self.carries)
        return (*carried, *(outside for _, outside in (*self.stacks, *self.sums)))


Op: TypeAlias = Einsum | Convolution | Pointwise | Gather | Scatter | Attention | Route | Scan

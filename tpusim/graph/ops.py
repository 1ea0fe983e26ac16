"""The operations of a graph, over named dimensions.

Each operation knows its transposes: given the gradients of its outputs it returns the operations
that make the gradients of its inputs. Reverse-mode differentiation (`backward.py`) needs no more,
so a model is written forward only. A scan is differentiated there, with its body.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.graph.attention import Attention
from tpusim.graph.cached_attention import CachedAttention
from tpusim.graph.contractions import Einsum
from tpusim.graph.convolution import Convolution, Pool
from tpusim.graph.gather import Gather, Scatter
from tpusim.graph.linear_attention import LinearAttention
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.reshape import Reshape
from tpusim.graph.state import StateUpdate
from tpusim.graph.tensor import Tensor
from tpusim.graph.token_routing import TokenRouting


@dataclass(frozen=True, slots=True)
class Scan:
    """`trips` iterations of `body`, each on its own slice of the stacked parameters.

    carries: (outside before, inside before, inside after, outside after) of each carried tensor.
    saves: tensors of the body that are stacked over the iterations for the backward scan.
    loads: tensors that the backward scan reads from those stacks.
    slices: (outside, inside) of each tensor of which an iteration reads its own part.
    stacks: (inside, outside) of each tensor of which an iteration writes its own part.
    shared: tensors that all iterations read alike.
    sums: (inside, outside) of each result that is added up over the iterations.
    steps: of a recurrence, the dimension that its iterations step along, which its slices and
        stacks lack; empty for other scans. Their weights are shared.
    weights_after: of a recurrence, gradients of weights are matmuls over all of its steps, after
        the backward scan, where its stacks have both operands.
    recomputed: the backward scan computes the body again, whatever else is saved.
    apart: each iteration gathers the shared tensors for itself, and reduces its own term of a sum;
        otherwise they are gathered before all iterations, and sums reduced after them.
    weights_only: the weight-gradient half of a split backward pass, which reads residuals that the
        other half has saved.
    unrolled: each iteration is written on its own, so that nothing is stacked.
    on_chip: what passes between its operations, and from one iteration to the next, may stay on the
        chip.
    checkpointed: a policy says what is saved; otherwise all that operations read is, as they read
        it.
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
    steps: str = ""
    weights_after: bool = False
    recomputed: bool = False
    apart: bool = False
    weights_only: bool = False
    unrolled: bool = False
    on_chip: bool = False
    checkpointed: bool = True
    phase: Phase = Phase.FORWARD

    @property
    def over_layers(self) -> bool:
        """True for a scan over layers, False for one over time or of the loss."""
        return not (self.recomputed or self.steps)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that the first iteration starts from, that are sliced, and that are shared."""
        carried = (before for before, *_ in self.carries)
        return (*carried, *(outside for outside, _ in self.slices), *self.shared)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Tensors that the last iteration leaves, that are stacked, and that are summed."""
        carried = (after for *_, after in self.carries)
        return (*carried, *(outside for _, outside in (*self.stacks, *self.sums)))


Op: TypeAlias = (
    Einsum
    | Convolution
    | Pool
    | Pointwise
    | Reshape
    | Gather
    | Scatter
    | Attention
    | CachedAttention
    | LinearAttention
    | TokenRouting
    | StateUpdate
    | Scan
)

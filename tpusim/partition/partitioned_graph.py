"""A partitioned step: operations and collectives of one device, without sizes.

It depends on the rules and on which axes are larger than one; their sizes decide only the numbers.
So one partitioned graph serves every mesh of its kind: `sizes.py` turns its extents into numbers,
for one mesh or for thousands at once.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.graph import Convolution, Einsum, Matrix, Op, Pointwise, Scan, Tensor
from tpusim.partition.layout import Arrangement, Layout, LocalShape
from tpusim.plan import Axes
from tpusim.program import CollectiveKind


class Purpose(StrEnum):
    """Contents of a collective; a lowering treats them differently."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    STATISTICS = "statistics"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A local tensor that an operation or a collective writes."""

    local: LocalShape
    dtype: str
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeNode:
    """A graph operation on the local shards, with the element-wise groups fused to it.

    split: the axes over which each dimension of its iteration space is divided.
    reads, writes: keys of buffers.
    parts: the operations that were fused, each as it would run on its own.
    generated: groups that a matmul computes as it reads, in place of an operand in memory.
    arrangement: of the images that it works on, where they are cut.
    half_tiles: rows of a weight that a matmul brings into whole tiles as it reads it; a dimension.
    """

    name: str
    op: Op
    split: tuple[tuple[str, Axes], ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    epilogue: tuple[Pointwise, ...] = ()
    parts: "tuple[ComputeNode, ...]" = ()
    generated: tuple[Pointwise, ...] = ()
    arrangement: Arrangement | None = None
    half_tiles: str = ""

    @property
    def phase(self) -> Phase:
        """The part of the step."""
        return self.op.phase

    @property
    def multiplies(self) -> bool:
        """True for a convolution or a matmul, but not for a kernel of grouped matmuls."""
        op = self.op
        return isinstance(op, Convolution) or (isinstance(op, Einsum) and not op.ragged)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveNode:
    """A logical collective: `payload` is the full tensor on one device.

    maker: the operation whose result it reduces; empty for a sum of several.
    tensor: the graph's name of the tensor that it moves.
    dim: the dimension that is gathered or scattered.
    asked: false for an implicit resharding, which no rule or annotation asks for.

    A permute moves one side of a halo: its payload is the rows that arrive (`payload.edge`). If it
    has none, it is of whole shards to the device as far from the other end.
    """

    name: str
    phase: Phase
    kind: CollectiveKind
    axes: Axes
    payload: LocalShape
    dtype: str
    purpose: Purpose
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    tensor: str
    dim: str = ""
    maker: str = ""
    asked: bool = True

    @property
    def over(self) -> Axes:
        """Its axes, those of an all-reduce sorted: in any order, their devices add up the same."""
        return tuple(sorted(self.axes)) if self.kind is CollectiveKind.ALL_REDUCE else self.axes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopNode:
    """A scan's body, run `scan.trips` times.

    carried: (buffer that an iteration reads, buffer that it leaves for the next one).
    saves: buffers of the body that are stacked over the iterations.
    loads: buffers of the body that are read from such a stack.
    gradients: (weight, buffer) of those that are stacked for the optimizer.
    outside: buffers of the program around it that the body reads or adds to.
    """

    scan: Scan
    body: "tuple[Node, ...]"
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    carried: tuple[tuple[str, str], ...]
    saves: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the scan."""
        return self.scan.name

    @property
    def phase(self) -> Phase:
        """The part of the step."""
        return self.scan.phase

    @property
    def copied(self) -> tuple[tuple[Tensor, str], ...]:
        """Saved tensors that are copied out of their stacks, each with its buffer.

        A checkpoint bars fusion with what it saved. Outside of one, a group slices what it alone
        reads, element by element, itself (activation functions on v5p 2x2x4 and v6e 4x4, libtpu
        0.0.42.1). Layers that are not scanned have no stacks.
        """
        if self.scan.unrolled:
            return ()
        readers = Counter(tensor.name for op in self.scan.body for tensor in op.inputs)
        sliced = {
            tensor.name
            for op in self.scan.body
            if isinstance(op, Pointwise) and op.fusible
            for tensor in op.residuals
            if readers[tensor.name] == 1
        }
        pairs = zip(self.scan.loads, self.loads, strict=True)
        return tuple((tensor, key) for tensor, key in pairs if tensor.name not in sliced)


Node: TypeAlias = ComputeNode | CollectiveNode | LoopNode


@dataclass(frozen=True, slots=True)
class UnreducedGradient:
    """A weight's gradient as the backward pass leaves it: a term on each device.

    partial: axes over which the terms are still to be summed.
    """

    local: LocalShape
    partial: Axes


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A parameter as the step reads it: its local shape and how many the model has of it.

    matrix: its dimensions as those of a layer's matrix; None for all other weights.
    unreduced: its gradient where microbatches leave terms of it; None where each reduces it.
    trained: it has a gradient; a frozen one has no state of the optimizer and no update.
    update: its local shape between steps, where it is updated in smaller parts than the step reads.
    dtype: in which it is stored and read, where the graph says so; else that of all weights.
    """

    name: str
    local: LocalShape
    copies: int
    matrix: Matrix | None = None
    unreduced: UnreducedGradient | None = None
    trained: bool = True
    update: LocalShape | None = None
    dtype: str = ""

    @property
    def updated(self) -> LocalShape:
        """The local shape of its reduced gradient and of its moments, and of what is updated."""
        return self.update or self.local

    @property
    def summed(self) -> LocalShape:
        """The local shape of its gradient as microbatches add it up."""
        return self.unreduced.local if self.unreduced else self.updated


STATE = "state"
"""Memory category of what stays in HBM from step to step, besides weights and moments."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state of the model: its local shape, its dtype, and how many the model has of it."""

    name: str
    local: LocalShape
    dtype: str
    copies: int


@dataclass(frozen=True, slots=True)
class PartitionedGraph:
    """A step, or its forward pass, on one device.

    gradients: (weight, buffer) of the weights outside of all loops.
    layouts: the layout of every forward tensor.
    dropped: dimensions that are replicated because they are smaller than their axis, as
        (dimension, size, axis, size).
    passes: indices of the nodes at which a pass that runs on its own begins, without the first.
    states: tensors that stay in HBM from step to step and are updated in place.
    """

    name: str
    nodes: tuple[Node, ...]
    buffers: dict[str, Buffer]
    weights: tuple[StoredWeight, ...]
    gradients: tuple[tuple[str, str], ...]
    layouts: dict[str, Layout]
    axes: Axes = ()
    dropped: tuple[tuple[str, int, str, int], ...] = ()
    passes: tuple[int, ...] = ()
    states: tuple[StoredState, ...] = ()

    @property
    def groups(self) -> "tuple[tuple[Node, ...], ...]":
        """The nodes of each pass."""
        return tuple(self.nodes[a:b] for a, b in pairwise((0, *self.passes, len(self.nodes))))


def body_nodes(nodes: tuple[Node, ...]) -> "list[tuple[ComputeNode | CollectiveNode, int]]":
    """Return every node that is not a loop, with the number of times that it runs."""
    found: list[tuple[ComputeNode | CollectiveNode, int]] = []
    for node in nodes:
        if isinstance(node, LoopNode):
            found.extend((inner, n * node.scan.trips) for inner, n in body_nodes(node.body))
        else:
            found.append((node, 1))
    return found

"""The structure of a partitioned step: what runs and what is communicated, without sizes.

A structure depends on the rules and on which axes are larger than one; how large they are decides
only the numbers. So one structure serves every mesh of its kind: `sizes.py` turns its extents into
numbers, for one mesh or for thousands at once.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TypeAlias

from tpusim.graph import Op, Pointwise, Scan, Tensor
from tpusim.partition.layout import Axes, Layout, Local
from tpusim.phase import Phase
from tpusim.program import CollectiveKind


class Purpose(StrEnum):
    """What a collective moves; a lowering treats them differently."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    STATISTICS = "statistics"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A local tensor that an operation or a collective writes."""

    local: Local
    dtype: str
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calc:
    """A graph operation on the local shards, with the element-wise groups fused to it.

    split: the axes over which each dimension of its iteration space is divided.
    reads, writes: keys of buffers. parts: what was fused, each as it would run on its own.
    generated: groups that a product computes as it reads, in place of an operand in memory.
    """

    name: str
    op: Op
    split: tuple[tuple[str, Axes], ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    epilogue: tuple[Pointwise, ...] = ()
    parts: "tuple[Calc, ...]" = ()
    generated: tuple[Pointwise, ...] = ()

    @property
    def phase(self) -> Phase:
        """The part of the step."""
        return self.op.phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """A logical collective: `payload` is the full tensor on one device.

    maker: the operation whose result alone it reduces, empty when it is a sum of several.
    tensor: what is communicated, as the graph names it. dim: the dimension that is gathered or
    scattered. asked: false where no rule or annotation asks for it.
    """

    name: str
    phase: Phase
    kind: CollectiveKind
    axes: Axes
    payload: Local
    dtype: str
    purpose: Purpose
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    tensor: str
    dim: str = ""
    maker: str = ""
    asked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """A scan's body, run `scan.trips` times.

    carried: (what a trip reads, what it leaves for the next one). saves: buffers of the body that
    are stacked over the trips. loads: buffers of the body that are read from such a stack.
    gradients: (weight, buffer) of those that are stacked for the optimizer. outside: buffers of the
    program around it that the body reads or adds to.
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
    def copied(self) -> tuple[tuple[Tensor, str], ...]:
        """The saved tensors that are copied out of their stacks, each with its buffer.

        A checkpoint bars fusion with what it saved. Outside of one, a group slices what it alone
        reads, element by element, itself (activation functions on v5p 2x2x4 and v6e 4x4, libtpu
        0.0.42.1).
        """
        readers = Counter(tensor.name for op in self.scan.body for tensor in op.inputs)
        sliced = {
            tensor.name
            for op in self.scan.body
            if isinstance(op, Pointwise) and op.fusible
            for tensor in op.tape
            if readers[tensor.name] == 1
        }
        pairs = zip(self.scan.loads, self.loads, strict=True)
        return tuple((tensor, key) for tensor, key in pairs if tensor.name not in sliced)


Node: TypeAlias = Calc | Comm | Nest


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter as it is stored: its local shape and how many the model has of it."""

    name: str
    local: Local
    copies: int


@dataclass(frozen=True, slots=True)
class Template:
    """The structure of a training step on one device.

    gradients: (weight, buffer) of the weights outside of all scans. layouts: the layout of every
    forward tensor. dropped: dimensions that are replicated because
    they are smaller than their axis, as (dimension, size, axis, size). passes: the places of nodes
    at which a pass that runs on its own begins, but for the first one.
    """

    name: str
    nodes: tuple[Node, ...]
    buffers: dict[str, Buffer]
    weights: tuple[Weight, ...]
    gradients: tuple[tuple[str, str], ...]
    layouts: dict[str, Layout]
    axes: Axes = ()
    dropped: tuple[tuple[str, int, str, int], ...] = ()
    passes: tuple[int, ...] = ()

    @property
    def groups(self) -> "tuple[tuple[Node, ...], ...]":
        """The nodes of each pass."""
        return tuple(self.nodes[a:b] for a, b in pairwise((0, *self.passes, len(self.nodes))))


def body_nodes(nodes: tuple[Node, ...]) -> "list[tuple[Calc | Comm, int]]":
    """Every node that is not a nest, with the number of times that it runs."""
    found: list[tuple[Calc | Comm, int]] = []
    for node in nodes:
        if isinstance(node, Nest):
            found.extend((inner, n * node.scan.trips) for inner, n in body_nodes(node.body))
        else:
            found.append((node, 1))
    return found

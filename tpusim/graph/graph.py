"""The graph of a model: its step as operations over named dimensions, before partitioning."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from tpusim.base.errors import ModelError
from tpusim.base.phase import Phase
from tpusim.base.plain_text import plain
from tpusim.graph.attention import Attention
from tpusim.graph.cached_attention import CachedAttention
from tpusim.graph.contractions import Einsum
from tpusim.graph.convolution import Convolution
from tpusim.graph.linear_attention import LinearAttention
from tpusim.graph.ops import Op, Scan
from tpusim.graph.state import StateUpdate
from tpusim.graph.tensor import (
    JOINT,
    DimSizes,
    Tensor,
    TensorRole,
    is_sequence,
    plain_dim,
    whole_dim,
)

LOSS = "loss"
"""The name of the output that a backward pass starts from."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight or a state, and how many the model has: one per layer for those of a scan."""

    tensor: Tensor
    copies: int


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in topological order, with the size of each dimension that they name.

    dims: (name, size) of each dimension.
    ops: operations, each after those that make its inputs.
    outputs: (name, tensor) of each output; the loss is one, if there is one.
    gradients: (parameter's name, its gradient) pairs of a training step.
    results: names of tensors that are read elsewhere.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    ops: tuple[Op, ...]
    outputs: tuple[tuple[str, Tensor], ...] = ()
    gradients: tuple[tuple[str, Tensor], ...] = ()
    results: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return dict(self.dims)

    @property
    def loss(self) -> Tensor:
        """The tensor that a backward pass starts from. Raise ModelError if there is none."""
        if LOSS not in (found := dict(self.outputs)):
            named = ", ".join(found) or "nothing"
            raise ModelError(
                f"the graph {self.name} has no loss to train by, only {named}; return a tensor "
                "from `forward`"
            )
        return found[LOSS]

    @property
    def states(self) -> tuple[Parameter, ...]:
        """The states in order of first use, as `parameters`: one per iteration of a scan."""
        found: dict[str, Parameter] = {}
        for state in _held(self.ops, TensorRole.STATE):
            found.setdefault(state.tensor.name, state)
        made = {op.output.name for op, _ in walk(self.ops) if isinstance(op, StateUpdate)}
        return tuple(state for name, state in found.items() if name not in made)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The weights in order of first use; a weight used twice is there once."""
        found: dict[str, Parameter] = {}
        for parameter in _held(self.ops, TensorRole.PARAM):
            found.setdefault(parameter.tensor.name, parameter)
        return tuple(found.values())

    @property
    def parameter_count(self) -> int:
        """The exact number of weights of the model."""
        return self._elements(self.parameters)

    @property
    def trained_count(self) -> int:
        """The number of weights of a training step that have a gradient."""
        trained = dict(self.gradients)
        return self._elements(p for p in self.parameters if p.tensor.name in trained)

    def _elements(self, parameters: Iterable[Parameter]) -> int:
        sizes = self.sizes
        return sum(p.copies * prod(sizes[d] for d in p.tensor.dims) for p in parameters)

    @property
    def given(self) -> tuple[Tensor, ...]:
        """What the host gives the step, in order of first use; not the parts that a scan cuts."""
        read = (tensor for tensor in _read_whole(self.ops) if not tensor.primal)
        return tuple(dict.fromkeys(t for t in read if t.role is TensorRole.INPUT))

    @property
    def tokens(self) -> int:
        """Tokens of a step: examples x the lengths of their sequences; 0 where there are none."""
        lengths = (
            size
            for dim, size in self.dims
            if is_sequence(dim, keys=False)
            and whole_dim(dim) == dim
            and not plain_dim(dim).startswith(JOINT)
        )
        return self.sizes["batch"] * sum(lengths)

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.dims)
        return "\n".join([f"graph {plain(self.name)}: {sizes}", *_lines(self.ops, "  ")])

    def model_flops(self) -> int:
        """Return the FLOPs that the model needs for this graph, without recomputation."""
        return sum(
            trips * model_flops(op, self.sizes)
            for op, trips in walk(self.ops)
            if op.phase is not Phase.RECOMPUTE
        )


def _lines(ops: tuple[Op, ...], indent: str) -> Iterator[str]:
    for op in ops:
        if isinstance(op, Scan):
            yield f"{indent}scan {op.name} x{op.trips} ({op.phase})"
            yield from _lines(op.body, indent + "  ")
            continue
        kind = type(op).__name__.lower()
        made = ", ".join(map(str, op.outputs))
        read = ", ".join(tensor.name for tensor in op.inputs)
        yield f"{indent}{op.phase:<9} {made} = {kind} {op.name}({read})"


def walk(ops: tuple[Op, ...], trips: int = 1) -> Iterator[tuple[Op, int]]:
    """Yield every operation that is not a scan, with the number of times that it runs."""
    for op in ops:
        if isinstance(op, Scan):
            yield from walk(op.body, trips * op.trips)
        else:
            yield op, trips


def _read_whole(ops: tuple[Op, ...]) -> Iterator[Tensor]:
    """Yield the tensors that operations read, those that scans slice in place of their slices."""
    for op in ops:
        yield from op.inputs
        if isinstance(op, Scan):
            slices = {inside.name for _, inside in op.slices}
            yield from (tensor for tensor in _read_whole(op.body) if tensor.name not in slices)


def _held(ops: tuple[Op, ...], role: TensorRole) -> Iterator[Parameter]:
    """Yield the weights or states that operations read: one per iteration, unless shared."""
    for op in ops:
        yield from (Parameter(tensor, 1) for tensor in op.inputs if tensor.role is role)
        if isinstance(op, Scan):
            own = {tensor.name for tensor in op.shared}
            for inner in _held(op.body, role):
                if inner.tensor.name not in own:
                    yield replace(inner, copies=op.trips * inner.copies)


def executed_flops(op: Op, sizes: DimSizes) -> int:
    """Return the matrix FLOPs that an operation executes; vector work counts none, as in MFU."""
    if isinstance(op, Einsum | Convolution | Attention | CachedAttention | LinearAttention):
        return op.flops(sizes)
    return 0


def model_flops(op: Op, sizes: DimSizes) -> int:
    """Return the part of `executed_flops` that the model needs: half of causal scores."""
    share = op.model_share if isinstance(op, Einsum) else 1.0
    flops = executed_flops(op, sizes)
    return flops if share == 1.0 else int(flops * share)

"""A model's step as operations over named dimensions, before anything is partitioned."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tpusim.graph.attention import Attention
from tpusim.graph.ops import Op, Scan
from tpusim.graph.products import Convolution, Einsum
from tpusim.graph.tensor import Role, Sizes, Tensor
from tpusim.phase import Phase


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight, and how many of its kind the model has (one a layer for those of a scan)."""

    tensor: Tensor
    copies: int


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in topological order, with the size of each dimension that they name.

    gradients: (parameter's name, its gradient) pairs, once the graph is a training step.
    results: names of tensors that are read elsewhere.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    ops: tuple[Op, ...]
    loss: Tensor
    gradients: tuple[tuple[str, Tensor], ...] = ()
    results: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return dict(self.dims)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The weights in order of first use; a weight used twice is there once."""
        found: dict[str, Parameter] = {}
        for parameter in _parameters(self.ops):
            found.setdefault(parameter.tensor.name, parameter)
        return tuple(found.values())

    @property
    def parameter_count(self) -> int:
        """How many weights the model has, exactly."""
        sizes = self.sizes
        return sum(p.copies * prod(sizes[d] for d in p.tensor.dims) for p in self.parameters)

    @property
    def tokens(self) -> int:
        """Tokens of a step: sequences x their length."""
        return prod(self.sizes[dim] for dim in ("batch", "seq"))

    def __str__(self) -> str:
        from tpusim.graph.text import text

        return text(self)

    def model_flops(self) -> int:
        """FLOPs that the model needs for this graph; what is computed again is not counted."""
        return sum(
            trips * model_flops(op, self.sizes)
            for op, trips in walk(self.ops)
            if op.phase is not Phase.RECOMPUTE
        )


def walk(ops: tuple[Op, ...], trips: int = 1) -> Iterator[tuple[Op, int]]:
    """Every operation that is not a scan, with the number of times that it runs."""
    for op in ops:
        if isinstance(op, Scan):
            yield from walk(op.body, trips * op.trips)
        else:
            yield op, trips


def _parameters(ops: tuple[Op, ...]) -> Iterator[Parameter]:
    """The weights that operations read: one a trip of a scan, but for those that it shares."""
    for op in ops:
        yield from (Parameter(tensor, 1) for tensor in op.inputs if tensor.role is Role.PARAM)
        if isinstance(op, Scan):
            own = {tensor.name for tensor in op.shared}
            for inner in _parameters(op.body):
                if inner.tensor.name not in own:
                    yield replace(inner, copies=op.trips * inner.copies)


def executed_flops(op: Op, sizes: Sizes) -> int:
    """Matrix FLOPs that an operation executes; vector work counts as none, as MFU has it."""
    if isinstance(op, Einsum | Convolution | Attention):
        return op.flops(sizes)
    return 0


def model_flops(op: Op, sizes: Sizes) -> int:
    """The part of `executed_flops` that the model needs: half of causal scores."""
    share = op.model_share if isinstance(op, Einsum) else 1.0
    flops = executed_flops(op, sizes)
    return flops if share == 1.0 else int(flops * share)

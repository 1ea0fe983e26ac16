"""Weights of layers as matrices: the dimensions that their layer sums over, and those it makes."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.graph.contractions import Einsum
from tpusim.graph.graph import Graph, walk
from tpusim.graph.ops import Scan
from tpusim.graph.tensor import Tensor, TensorRole


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight as a matrix, or as several where it has further dimensions, such as experts.

    rows: dimensions that are contracted with the layer's input.
    columns: dimensions of the layer's output.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]


def layer_matrices(graph: Graph) -> dict[str, Matrix]:
    """Return the matrices among the weights of layers, by name.

    Each is a factor of an einsum in a scan whose iterations have one each. Norms' scales are
    vectors, and the embedding and the head are outside of the layers.
    """
    found: dict[str, Matrix] = {}
    for op in graph.ops:
        if isinstance(op, Scan) and op.over_layers and op.phase is Phase.FORWARD:
            for weight, other, output in _products(op):
                found.setdefault(weight.name, _matrix(weight, other, output))
    return found


def _products(scan: Scan) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield weight, other factor and result of each einsum with a weight of an iteration."""
    shared = {tensor.name for tensor in scan.shared}
    for op, _ in walk(scan.body):
        if isinstance(op, Einsum):
            for weight, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                if weight.role is TensorRole.PARAM and weight.name not in shared:
                    yield weight, other, op.output


def _matrix(weight: Tensor, other: Tensor, output: Tensor) -> Matrix:
    return Matrix(
        tuple(dim for dim in weight.dims if dim in other.dims and dim not in output.dims),
        tuple(dim for dim in weight.dims if dim not in other.dims),
    )

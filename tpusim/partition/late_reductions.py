"""Reductions after the last microbatch, of gradients that devices have added up on their own.

A backward pass that leaves gradients as terms (`emit(late=True)`) has no collective of a weight's
gradient. Each term has the layout in which its matmul made it: where the weight was gathered for
the matmul, it is whole. (PyTorch's `FSDP.no_sync` accumulates so: "the full model gradients
(instead of gradient shards) until the eventual sync".) The terms of all microbatches are added up
in that layout, and one resharding, of all layers at once, leads to the layout in which the weight
is updated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tpusim.base.phase import Phase
from tpusim.graph import Tensor, TensorRole
from tpusim.partition.asked_sizes import AskedSizes
from tpusim.partition.body_builder import BodyBuilder, ShardedValue
from tpusim.partition.layout import Layout, LocalShape
from tpusim.partition.partitioned_graph import Buffer, PartitionedGraph, StoredWeight
from tpusim.partition.sizes import Sizes

ACCUMULATORS = "gradient accumulators"
"""Memory category of the sums of gradients over microbatches."""


@dataclass(frozen=True, slots=True)
class LateReductions:
    """The reductions as a partitioned graph of their own, with the sizes of its dimensions."""

    graph: PartitionedGraph
    sizes: Sizes


def late_reductions(
    weights: Sequence[StoredWeight], accumulators: Mapping[str, str], dtype: str, sizes: Sizes
) -> LateReductions:
    """Return the reductions of the weights whose gradients were left as terms.

    accumulators: weight -> buffer of the sum of its terms over the microbatches, of all copies.
    dtype: of the accumulators, in which they are reduced.
    """
    left = [w for w in weights if w.unreduced is not None and w.name in accumulators]
    sizes = replace(sizes, dims={**sizes.dims, **{_copies(w): w.copies for w in left}})
    names = frozenset(weight.name for weight in left)
    builder = BodyBuilder({}, names, {}, AskedSizes(sizes.dims))
    builder.phase = Phase.BACKWARD
    builder.copies = frozenset(map(_copies, left))
    gradients = tuple(
        (weight.name, _reduced(builder, weight, accumulators[weight.name], dtype))
        for weight in left
    )
    nodes = tuple(builder.nodes)
    graph = PartitionedGraph(
        "late reductions", nodes, builder.buffers, tuple(weights), gradients, {}
    )
    return LateReductions(graph, sizes)


def _stacked(local: LocalShape) -> Layout:
    """Return the layout of all copies of a tensor at once."""
    return ((), *local.layout)


def _copies(weight: StoredWeight) -> str:
    return f"{weight.copies} copies"


def _reduced(builder: BodyBuilder, weight: StoredWeight, accumulator: str, dtype: str) -> str:
    """Emit the collectives from the accumulator to the weight's layout; return the result's key."""
    assert weight.unreduced is not None
    source, target = _stacked(weight.unreduced.local), _stacked(weight.updated)
    dims = (_copies(weight), *weight.local.dims)
    tensor = Tensor(f"d({weight.name})", dims, TensorRole.GRADIENT, dtype, weight.name)
    builder.buffers[accumulator] = Buffer(LocalShape(dims, source), dtype, ACCUMULATORS)
    value = ShardedValue(accumulator, tensor, source, weight.unreduced.partial)
    return builder.reshard(value, target).key

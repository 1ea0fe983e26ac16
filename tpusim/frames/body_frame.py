"""What every frame has around its bodies: sizes, stored weights, and the infeed of a batch."""

from collections.abc import Iterable

from tpusim.base.phase import Phase
from tpusim.graph import Graph
from tpusim.lowering import BodyChoices
from tpusim.partition import (
    DTYPE_BYTES,
    STATE,
    LocalShape,
    PartitionedGraph,
    Sizes,
    StoredState,
    StoredWeight,
    buffers_of,
    loads,
)
from tpusim.plan import Numerics
from tpusim.program import Alloc, Compute, Transfer, TransferKind, VectorWork

CAST = "cast_weights"
"""The name of the operation that casts weights, and of its result."""


def sizes_of(graph: Graph, choices: BodyChoices) -> Sizes:
    """Return the sizes of the graph's dimensions and of the mesh axes."""
    sharding, numerics, compiler, *_ = choices
    experts = sharding.experts
    return Sizes(
        graph.sizes,
        sharding.active_axes,
        numerics.compute,
        numerics.param,
        loads(graph.sizes.get("expert", 0), experts.skew, experts.seed),
        buffers_of(experts, graph.sizes),
        experts.tiles,
        compiler.attention_kernel,
        experts.sort_gradient == "scatter",
    )


def stored_weights(
    weights: Iterable[StoredWeight], numerics: Numerics, sizes: Sizes
) -> tuple[Alloc, ...]:
    """Return the allocations of weights as they are stored between steps."""
    allocs = []
    for weight in weights:
        item = DTYPE_BYTES[weight.dtype or numerics.param]
        stored = item * weight.copies * sizes.elements(weight.updated)
        padding = sizes.padding(weight.updated)
        allocs.append(Alloc(weight.name, stored, "weights", stored * padding))
    return tuple(allocs)


def stored_states(states: Iterable[StoredState], sizes: Sizes) -> tuple[Alloc, ...]:
    """Return the allocations of states, which steps update in place."""
    allocs = []
    for state in states:
        nbytes = state.copies * sizes.nbytes(state.local, state.dtype)
        allocs.append(Alloc(state.name, nbytes, STATE, nbytes * sizes.padding(state.local)))
    return tuple(allocs)


def cast_weights(
    weights: tuple[StoredWeight, ...], numerics: Numerics, sizes: Sizes
) -> Compute | None:
    """Return the cast of these local weights to the compute dtype, once per step.

    None where they are stored so, or where there are none.
    """
    if numerics.param == numerics.compute or not weights:
        return None
    counts = [weight.copies * sizes.elements(weight.updated) for weight in weights]
    elements = sum(counts)
    empty = sum(n * sizes.padding(w.updated) for n, w in zip(counts, weights, strict=True))
    item = DTYPE_BYTES[numerics.compute]
    return Compute(
        name=CAST,
        phase=Phase.FORWARD,
        scope=CAST,
        work=VectorWork(elements * DTYPE_BYTES[numerics.param], elements * item, elements),
        allocs=(Alloc(CAST, elements * item, "cast weights", empty * item),),
    )


def infeed(
    graph: Graph,
    partitioned: PartitionedGraph,
    sizes: Sizes,
    times: int = 1,
    *,
    host_s: float = 0.0,
    after_step: bool = False,
) -> Transfer:
    """Return the infeed of the next step's batch: one device's part of what the graph is given.

    Devices that share a part are each sent it, as each has its own copy. (The gradient of the loss
    is an input of the backward pass, but a constant.)

    times: parts of the batch, such as microbatches, that come in at once.
    host_s: seconds that the host needs to make the batch.
    after_step: the host makes it after the step, not beside it.
    """
    part = sum(
        sizes.nbytes(LocalShape(tensor.dims, partitioned.layouts[tensor.name]), tensor.dtype)
        for tensor in graph.given
    )
    return Transfer(
        name="input",
        phase=Phase.FORWARD,
        kind=TransferKind.INPUT,
        scope="input",
        bytes=part * times,
        host_s=host_s,
        after_step=after_step,
    )

"""Sequences sharded over context axes: how attention kernels get all keys and values.

Three exchanges, one for each axis where there are several (USP, arXiv:2405.07719):

gather: each device gathers the keys and values, as MaxText does.
ring: they go from device to device while the kernel works on those that are there (ring
    attention, Liu et al., arXiv:2310.01889).
all-to-all: the kernel's tensors are sharded by heads instead of by tokens (Ulysses, Jacobs et al.,
    arXiv:2309.14509), so the exchanges follow from layouts alone. K/V heads that are too few for
    their axes are repeated first, or, where there is one per device, gathered.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import TypeGuard

from tpusim.base.errors import PlanError, nearest
from tpusim.base.phase import Phase
from tpusim.base.units import format_mesh
from tpusim.graph import COPIES, NARROW, Attention, Graph, Op, Scan, is_sequence, walk, whole_dim
from tpusim.partition.layout import Layout
from tpusim.plan import ALL_TO_ALL, GATHER, RING, Axes, Context, Sharding

CONTEXT = "context"
"""The axis that shards sequences where no other is named."""


def named_axes(context: Context, mesh: Mapping[str, int]) -> Axes:
    """Return the axes that the plan names for sequences, all-to-alls last; or `context`."""
    exchanges = context.exchange
    if isinstance(exchanges, str):
        return (CONTEXT,)
    for axis in exchanges:
        if axis not in mesh:
            raise PlanError(
                f"plan.context_exchange names {axis!r}, which is no axis of the mesh: "
                f"{nearest(axis, mesh)}"
            )
    return tuple(sorted(exchanges, key=lambda axis: exchanges[axis] == ALL_TO_ALL))


def exchange_over(context: Context, axis: str) -> str:
    """Return the exchange by which keys and values cross an axis."""
    exchanges = context.exchange
    return exchanges if isinstance(exchanges, str) else exchanges.get(axis, GATHER)


def exchanged_by(context: Context, axes: Axes, exchange: str) -> Axes:
    """Return the axes over which keys and values cross by this exchange."""
    return tuple(axis for axis in axes if exchange_over(context, axis) == exchange)


def sends_keys_round(context: Context, axes: Axes) -> bool:
    """Return True if keys and values that are gathered over `axes` go round a ring instead."""
    return all(exchange_over(context, axis) == RING for axis in axes)


def kernel_tensors(graph: Graph) -> frozenset[str]:
    """Return the names of the tensors that attention kernels read and write."""
    kernels = (op for op, _ in walk(graph.ops) if _is_forward_kernel(op))
    return frozenset(t.name for op in kernels for t in (*op.inputs, *op.outputs))


def kernel_residuals(
    graph: Graph, sharding: Sharding, found: Mapping[str, Layout]
) -> Iterator[tuple[str, Layout]]:
    """Yield keys and values that are saved as their kernel reads them, each with that layout.

    A kernel runs in a `shard_map`, which its residuals leave as they are inside: gathered, unless a
    checkpoint saves them by name or computes them again (4 of 4 programs without a checkpoint on
    v5p and v6e, `context` of 4 and 8; libtpu 0.0.42.1). In a ring no device has all of them.

    found: layout of each tensor of the forward pass.
    """
    for scan in graph.ops:
        if not isinstance(scan, Scan) or scan.checkpointed:
            continue
        saved = {tensor.name for tensor in scan.saves}
        for op in filter(_is_forward_kernel, scan.body):
            for tensor in (op.key, op.value):
                batch, sequence, *rest = found[tensor.name]
                if tensor.name in saved and not sends_keys_round(sharding.context, sequence):
                    yield tensor.name, (batch, (), *rest)


def _is_forward_kernel(op: Op) -> TypeGuard[Attention]:
    return isinstance(op, Attention) and op.phase is Phase.FORWARD


def kernel_rules(sharding: Sharding, graph: Graph, table: Mapping[str, Axes]) -> dict[str, Axes]:
    """Return the rules of the kernels' tensors, whose axes move from tokens to heads.

    Raise PlanError if no kernel can be divided so.
    """
    sequence = table["act_seq"]
    exchanges = {exchange_over(sharding.context, axis): axis for axis in sequence}
    kernels = [op for op, _ in walk(graph.ops) if _is_forward_kernel(op)]
    moved = exchanged_by(sharding.context, sequence, ALL_TO_ALL)
    if any(op.causal for op in kernels):
        own = tuple(axis for axis in sequence if axis not in moved)
        _check_balance(sharding, own, graph.sizes.get("seq", 0))
    if not exchanges.keys() & {RING, ALL_TO_ALL}:
        return {}
    if not kernels:
        raise PlanError(
            f'plan.context_exchange is "{next(e for e in exchanges if e != GATHER)}", which takes '
            'the keys to an attention kernel, but the model has none; write attention = "flash", '
            'or context_exchange = "gather"'
        )
    if {RING, GATHER} <= exchanges.keys():
        raise PlanError(
            f"plan.context_exchange has a ring over {exchanges[RING]!r} and a gather over "
            f"{exchanges[GATHER]!r}; one kernel takes its keys by one of these methods: write the "
            "same for both, or an all-to-all for one"
        )
    if not moved:
        return {}
    rules = {key.replace("act_", "kernel_"): axes for key, axes in table.items()}
    rules["kernel_seq"] = tuple(axis for axis in sequence if axis not in moved)
    for dim in dict.fromkeys(t.dims[2] for op in kernels for t in (op.query, op.key)):
        rules[f"kernel_{dim}"] = _heads(sharding, dim, graph.sizes[dim], table, moved)
    return rules


def few_heads(
    sharding: Sharding, graph: Graph, table: Mapping[str, Axes]
) -> list[tuple[str, int, str, int]]:
    """Return (dimension, size, axis, size) where K/V heads are too few for an exchange."""
    dims = {op.key.dims[2] for op, _ in walk(graph.ops) if _is_forward_kernel(op)}
    if dims.isdisjoint((NARROW, COPIES)):
        return []
    kept = table[f"kernel_{NARROW}"] if NARROW in dims else table[f"act_{NARROW}"]
    moved = exchanged_by(sharding.context, table["act_seq"], ALL_TO_ALL)
    size = graph.sizes[NARROW]
    return [(NARROW, size, axis, sharding.mesh[axis]) for axis in moved if axis not in kept]


def _heads(sharding: Sharding, dim: str, size: int, table: Mapping[str, Axes], moved: Axes) -> Axes:
    """Return the axes of heads in a kernel, without those that do not divide K/V heads."""
    axes = tuple(dict.fromkeys((*table.get(f"act_{dim}", ()), *moved)))
    while dim != "heads" and size % prod(sharding.mesh[axis] for axis in axes):
        axes = axes[:-1]
    if size % prod(sharding.mesh[axis] for axis in axes):
        named = format_mesh(sharding.mesh, axes)
        raise PlanError(
            f"plan.context_exchange shards the {size} {dim} of the model over {named}, "
            "which does not divide them; write a smaller axis for the all-to-all, and a ring or a "
            "gather over another"
        )
    return axes


def _check_balance(sharding: Sharding, axes: Axes, seq_len: int) -> None:
    """Raise PlanError for a sequence without an early and a late part for each device."""
    parts = 2 * prod(sharding.mesh[axis] for axis in axes)
    if axes and sharding.context.balanced and seq_len % parts:
        named = format_mesh(sharding.mesh, axes)
        raise PlanError(
            f"plan.context_balanced gives each device of {named} an early and a late part of a "
            f"sequence, but its {seq_len} tokens do not divide into {parts}; write a multiple "
            f"of {parts}, or context_balanced = false"
        )


def check_exchange(sharding: Sharding, table: Mapping[str, Axes]) -> None:
    """Raise PlanError for an exchange over an axis that shards the batch."""
    exchanges = sharding.context.exchange
    named = () if isinstance(exchanges, str) else exchanges
    batch = table["act_batch"]
    for axis in named:
        if axis in batch:
            others = [other for other in batch if other != axis]
            raise PlanError(
                f"plan.context_exchange names {axis!r}, which shards the batch, so it cannot shard "
                f"the sequence too; name another axis, or write rules.act_batch = {others}"
            )


def check_sequence(sharding: Sharding, table: Mapping[str, Axes], sizes: Mapping[str, int]) -> None:
    """Raise PlanError for a sequence that its axes do not divide."""
    for dim, length in sizes.items():
        if not is_sequence(dim, keys=False):
            continue
        for key in ("act", "act_residual"):
            axes = table.get(f"{key}_{whole_dim(dim)}", ())
            shards = prod(sharding.mesh[axis] for axis in axes)
            if length % shards:
                named = format_mesh(sharding.mesh, axes)
                given = "plan.seq_len" if dim == "seq" else f"the model's {dim}"
                raise PlanError(_does_not_divide(given, length, shards, named))


def _does_not_divide(given: str, length: int, parts: int, named: str) -> str:
    """Return the message, with the nearest lengths that divide."""
    nearby = sorted({max(length // parts, 1) * parts, -(-length // parts) * parts})
    small = "is shorter than" if length < parts else "does not divide by"
    return (
        f"{given} is {length}, which {small} the {parts} shards of its axes ({named}); write "
        f"a multiple, such as {' or '.join(map(str, nearby))}"
    )

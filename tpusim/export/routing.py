"""Experts whose tokens are sorted, as JAX expressions: routing, and grouped matmuls."""

from dataclasses import replace
from math import prod

from tpusim.export.names import call, constant_name, entry, spec, unsaid, value_name
from tpusim.export.served_weights import is_narrow
from tpusim.export.step_context import StepContext, row_layout
from tpusim.graph import CachedAttention, Einsum, Op, Tensor, TokenRouting
from tpusim.partition import buffers_of
from tpusim.partition.split import Split, route
from tpusim.plan import Axes

KERNEL_ROWS = 128
"""The kernel of grouped matmuls takes a multiple of this many rows."""

SIZES, MOVES = "sizes", "moves"
"""What a dispatch makes besides its rows: how many each expert has, and where they come from."""


def made_besides(op: Op, context: StepContext) -> list[str]:
    """Return the variables that an operation makes besides its results."""
    if isinstance(op, CachedAttention):
        return ["kv_cache"]
    if not isinstance(op, TokenRouting) or not op.dispatch:
        return []
    ragged = context.in_rows(op.output)
    return [_beside(op.output, name) for name in ((SIZES, MOVES) if ragged else (MOVES,))]


def _beside(tensor: Tensor, name: str) -> str:
    """Return the variable of a layer that has one of its tensors."""
    return value_name(replace(tensor, name=f"{tensor.name.rpartition('/')[0]}/{name}"))


def routed(op: TokenRouting, given: list[str], context: StepContext) -> str:
    """Return the dispatch of tokens to experts, or the combination of their results.

    given: expressions of its operands.
    """
    slots = op.output if op.dispatch else op.tokens
    moves = [] if op.dispatch else [_beside(slots, MOVES)]
    exchange = context.plan.experts.exchange
    _check_stages(op, slots, context)
    if not context.in_rows(slots):
        return _by_slots(op, [*given, *moves], context)
    if exchange == "ring":
        raise unsaid(
            op.name, "a sort of tokens that a ring gathers (write expert_exchange = 'gather')"
        )
    split = _split(op, context)
    over, width = _split_over(slots, context), split[op.tokens.dims[-1]]
    rows = (row_layout(context.layouts[slots.name])[0], width)
    shared = split["batch"]
    gathered = exchange == "gather"
    whole = context.served is not None and _token_axes(op, context) == shared
    if not whole:
        _check_devices(op, slots, context)
        _check_rows(op, slots, context)
    tokens = spec(((*shared, *over) if gathered and not whole else shared, split["seq"], width))
    options = ["whole=True"] if whole and over else []
    gates = [context.spec(op.gates)] if gathered else []
    axes = entry(over)
    if not op.dispatch:
        function = "scatter_rows" if gathered else "unsort_tokens"
        return call(function, *given, *moves, spec(rows), *gates, tokens, axes, *options)
    function, count = ("pick_tokens", "CHOICE") if gathered else ("sort_tokens", "EXPERT")
    factor = f"{_buffer_factor(over, context):g}"
    return call(function, *given, count, tokens, *gates, spec(rows), axes, factor, *options)


def _split(op: TokenRouting, context: StepContext) -> Split:
    layouts = context.layouts
    return route(op, layouts[op.tokens.name], layouts[op.gates.name])


def _split_over(slots: Tensor, context: StepContext) -> Axes:
    """Return the axes that shard the experts of slots."""
    return context.layouts[slots.name][slots.dims.index("expert")]


def _buffer_factor(over: Axes, context: StepContext) -> float:
    """Return the rows of a device's buffer over the mean."""
    buffers = buffers_of(context.plan.experts, context.graph.sizes)
    assert buffers is not None
    return float(buffers.over(prod(context.plan.mesh[axis] for axis in over), 1.0))


def _check_stages(op: TokenRouting, slots: Tensor, context: StepContext) -> None:
    """Raise PlanError for a sort in a pipeline, but of tokens that are gathered.

    JAX's `vmap` over stages does not take the `shard_map` of a sort, which mixes what differs by
    stage with what does not.
    """
    rows = context.in_rows(slots)
    if context.plan.stages > 1 and not (rows and context.plan.experts.exchange == "gather"):
        instead = "expert_exchange = 'gather'" if rows else "plan.dispatch = 'one_hot'"
        raise unsaid(op.name, f"a sort of tokens within a stage of a pipeline (write {instead})")


def _check_devices(op: TokenRouting, slots: Tensor, context: StepContext) -> None:
    """Raise PlanError unless the devices that exchange tokens are those that share the experts.

    They exchange tokens among themselves, so what else shards tokens shards slots too.
    """
    split, over = _split(op, context), _split_over(slots, context)
    _, batch, slot, _ = context.layouts[slots.name]
    alike = _token_axes(op, context) == (*split["batch"], *over)
    if context.plan.experts.exchange == "all-to-all":
        alike = set(split["batch"]) == {*batch, *over}
    if not alike or split["seq"] != slot:
        raise unsaid(
            op.name,
            f"an exchange of tokens over {_listed(over)} that does not shard the batch (write a "
            "rule that does)",
        )


def _check_rows(op: TokenRouting, slots: Tensor, context: StepContext) -> None:
    """Raise PlanError for rows that the kernel does not take; buffers are rounded up."""
    sizes, split = context.graph.sizes, _split(op, context)
    parts = prod(context.plan.mesh[axis] for axis in (*split["batch"], *split["seq"]))
    rows = sizes["batch"] * sizes["seq"] * sizes["choice"] // parts
    if rows % KERNEL_ROWS and not _split_over(slots, context):
        raise unsaid(
            op.name,
            f"a grouped kernel over the {rows} rows of a device, which it takes in blocks of "
            f"{KERNEL_ROWS} (write a plan.seq_len that {KERNEL_ROWS} divides)",
        )


def _token_axes(op: TokenRouting, context: StepContext) -> Axes:
    """Return the axes that shard the sequences of the tokens that are routed."""
    tokens = op.tokens if op.dispatch else op.output
    return context.layouts[tokens.name][0]


def _listed(axes: Axes) -> str:
    return " x ".join(axes) or "no axis"


def _by_slots(op: TokenRouting, given: list[str], context: StepContext) -> str:
    """Return the routing to a fixed number of slots, which GSPMD exchanges."""
    if context.plan.experts.exchange != "all-to-all":
        raise unsaid(
            op.name,
            "a sort into a fixed number of slots of tokens that are gathered (write plan.dispatch "
            "= 'one_hot', or expert_exchange = 'all-to-all')",
        )
    split = _split(op, context)
    tokens = spec((split["batch"], split["seq"], split[op.tokens.dims[-1]]))
    if not op.dispatch:
        return call("slots_to_tokens", *given, tokens)
    slots = constant_name("slot")
    return call("tokens_to_slots", *given, "EXPERT", slots, tokens)


def grouped_matmul(op: Einsum, rows: str, weight: str, context: StepContext) -> str:
    """Return a matmul of rows with the weights of their experts.

    rows, weight: expressions of its operands.
    """
    if is_narrow(op.rhs):
        raise unsaid(op.name, f"a grouped matmul with a weight in {op.rhs.dtype}")
    _check_dtypes(op, context)
    layouts = context.layouts
    given, made = (row_layout(layouts[tensor.name]) for tensor in (op.lhs, op.output))
    experts, contracted, width = layouts[op.rhs.name]
    if experts != layouts[op.lhs.name][0]:
        raise unsaid(
            op.name,
            f"a grouped matmul of experts over {_listed(experts)} with rows over "
            f"{_listed(layouts[op.lhs.name][0])}",
        )
    summed, kept = _common(contracted, given[1]), _common(width, made[1])
    for axes, own in ((contracted, summed), (width, kept)):
        if axes[: len(own)] != own:
            raise unsaid(op.name, f"a grouped matmul whose weight is divided over {_listed(axes)}")
    specs = (spec((given[0], summed)), context.spec(op.rhs), spec((made[0], kept)))
    blocks = [f"block={context.plan.experts.tiles[0]}"] if context.served else []
    return call("grouped_matmul", rows, _beside(op.lhs, SIZES), weight, *specs, *blocks)


def _check_dtypes(op: Einsum, context: StepContext) -> None:
    """Raise PlanError for dtypes that the kernel of grouped matmuls is not called with."""
    if context.plan.dtypes.quantised:
        what = "a grouped matmul in a narrow dtype"
    elif context.moves_weights_apart:
        what = "a grouped matmul whose weight is gathered or reduced in a dtype of its own"
    else:
        return
    raise unsaid(op.name, f"{what} (write a plan.capacity_factor, such as 1.25)")


def _common(axes: Axes, others: Axes) -> Axes:
    return tuple(axis for axis in axes if axis in others)

"""Operations of a graph as JAX expressions."""

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from keyword import iskeyword
from string import ascii_letters, ascii_lowercase

from tpusim.base.errors import PlanError
from tpusim.export.cached_source import cached_attention
from tpusim.export.names import (
    call,
    constant_name,
    entry,
    quoted,
    spec,
    target_name,
    unsaid,
    value_name,
    weight_name,
)
from tpusim.export.routing import grouped_matmul, routed
from tpusim.export.served_weights import is_narrow, scale_of
from tpusim.export.step_context import StepContext
from tpusim.export.windows import convolution, pool
from tpusim.graph import (
    Attention,
    CachedAttention,
    Convolution,
    Einsum,
    Function,
    Gather,
    Op,
    Pointwise,
    Pool,
    Reshape,
    Tensor,
    TensorRole,
    TokenRouting,
    plain_dim,
)
from tpusim.lowering.operand_dtypes import may_be_quantised
from tpusim.partition import Layout
from tpusim.partition.lookups import row_moves
from tpusim.partition.split import contraction
from tpusim.plan import AttentionKernel
from tpusim.program import ATTENTION_BLOCK, SPLASH

KEYS_BLOCK = 128
"""The kernel of fused attention takes a multiple of this many keys."""

MICROBATCH = "microbatch"
"""The first dimension of activations before and after the stages of a pipeline."""

ACTIVATIONS = {
    "relu": "jax.nn.relu",
    "relu2": "relu2",
    "gelu": "jax.nn.gelu",
    "silu": "jax.nn.silu",
}
"""The function of each activation: JAX's, or one of the library."""

_LETTERS = {
    "batch": "b", "seq": "s", "kv_seq": "t", "embed": "e", "heads": "h", "kv_heads": "k",
    "head_dim": "d", "mlp": "f", "expert_mlp": "f", "vocab": "v", "expert": "x", "slot": "c",
    "patches": "s", "kv_patches": "t", "frames": "s", "kv_frames": "t",
}  # fmt: skip
"""The usual letters of dimensions in an einsum; others have one of their own."""


def read(tensor: Tensor, context: StepContext) -> str:
    """Return the expression of an operand in the dtype of activations."""
    if tensor.role is TensorRole.PARAM:
        cast = ".astype(COMPUTE)" if context.casts_weights or is_narrow(tensor) else ""
        return f"w[{quoted(weight_name(tensor))}]{cast}"
    return value_name(tensor)


def _passed(tensor: Tensor, context: StepContext) -> str:
    """Return the expression of an operand, which passes no gradient on where that is stopped."""
    given = read(tensor, context)
    return f"lax.stop_gradient({given})" if tensor.stopped else given


@singledispatch
def expression(op: Op, context: StepContext) -> str:
    """Return the JAX expression of the result of an operation; of several, a tuple.

    Raise PlanError for an operation that has no JAX here.
    """
    raise unsaid(op.name, f"a {type(op).__name__}")


@expression.register
def _(op: Einsum, context: StepContext) -> str:
    if op.ragged:
        return grouped_matmul(op, read(op.lhs, context), read(op.rhs, context), context)
    dtype = context.dtype(op.output)
    if dtype != "COMPUTE" and "vocab" in map(plain_dim, op.output.dims):
        return _product(op, context, (f"preferred_element_type={dtype}",))
    product = _product(op, context)
    if (scale := scale_of(op)) is not None:
        product = f"{product} * {read(scale, context)}"
        return product if dtype == "COMPUTE" else f"({product}).astype({dtype})"
    return product if dtype == "COMPUTE" else f"{product}.astype({dtype})"


def _product(op: Einsum, context: StepContext, options: tuple[str, ...] = ()) -> str:
    weight = next((tensor for tensor in op.inputs if tensor.role is TensorRole.PARAM), None)
    narrow = context.plan.dtypes.quantised and may_be_quantised(op)
    if weight is not None and (context.moves_weights_apart or narrow):
        if op.rhs is not weight:
            op = replace(op, lhs=op.rhs, rhs=op.lhs)
        return _product_of_weight(op, context, narrow, options)
    factors = (_factor(tensor, context) for tensor in (op.lhs, op.rhs))
    return call("jnp.einsum", quoted(formula(op, context)), *factors, *options)


def read_layout(op: Einsum, context: StepContext) -> Layout:
    """Return the layout in which a matmul reads its weight, the right operand."""
    operands = [(tensor, context.layouts[tensor.name]) for tensor in op.inputs]
    split = contraction(operands, op.output, context.layouts[op.output.name])
    return tuple(split.get(dim, ()) for dim in op.rhs.dims)


def _product_of_weight(
    op: Einsum, context: StepContext, narrow: bool, options: tuple[str, ...]
) -> str:
    """Return the call that multiplies by a weight, the right operand, in dtypes of its own.

    narrow: one of its matmuls is in a narrow dtype.
    """
    layouts, subscripts = context.layouts, formula(op, context)
    operands = [(tensor, layouts[tensor.name]) for tensor in op.inputs]
    split = contraction(operands, op.output, layouts[op.output.name])
    weight = f"w[{quoted(weight_name(op.rhs))}]"
    factors = [quoted(subscripts), _factor(op.lhs, context), weight]
    if narrow:
        of_operands = subscripts.partition("->")[0].replace(",", "")
        letters = dict(zip((*op.lhs.dims, *op.rhs.dims), of_operands, strict=True))
        axes = [f"{letters[dim]}={entry(split[dim])}" for dim in letters if split.get(dim)]
        if context.plan.dtypes.gathers_quantised:
            return call("narrow_weight_einsum", *factors, context.spec(op.rhs), *axes)
        return call("quantised_einsum", *factors, *axes)
    if context.gathers_apart:
        factors.append(spec(tuple(split.get(dim, ()) for dim in op.rhs.dims)))
    return call("weight_einsum", *factors, *options)


def _factor(tensor: Tensor, context: StepContext) -> str:
    given = _passed(tensor, context)
    if tensor.stopped and "slot" in tensor.dims:
        return f"({given} > 0).astype(COMPUTE)"
    plain = tensor.role is TensorRole.PARAM or context.dtype(tensor) == "COMPUTE"
    return given if plain else f"{given}.astype(COMPUTE)"


def formula(op: Einsum, context: StepContext) -> str:
    """Return the subscripts of an einsum, one letter for each dimension."""
    letters: dict[str, str] = {}
    lhs, rhs, made = (_dims(tensor, context) for tensor in (op.lhs, op.rhs, op.output))
    dims = list(dict.fromkeys((*lhs, *rhs)))
    for dim in sorted(dims, key=lambda dim: plain_dim(dim) not in _LETTERS):
        own = "".join(filter(ascii_letters.__contains__, dim))
        wanted = _LETTERS.get(plain_dim(dim), "") + own + ascii_lowercase
        letters[dim] = next(letter for letter in wanted if letter not in letters.values())
    left, right, result = ("".join(letters[dim] for dim in each) for each in (lhs, rhs, made))
    return f"{left},{right}->{result}"


def _dims(tensor: Tensor, context: StepContext) -> tuple[str, ...]:
    """Return the dimensions of a tensor in the source: outside of stages, also microbatches."""
    several = context.stages and tensor.role is not TensorRole.PARAM
    return (MICROBATCH, *tensor.dims) if several else tensor.dims


@expression.register
def _(op: Gather, context: StepContext) -> str:
    ids, shared = read(op.ids, context), op.table.dims.index(op.dim)
    if op.table.dims[:shared] != op.ids.dims[:shared]:
        raise unsaid(op.name, f"a lookup along {op.dim}, which is not the table's first dimension")
    if shared:
        return call("rows_of_examples", read(op.table, context), ids)
    if context.moves_weights_apart:
        gathered = [spec(_table_layout(op, context))] if context.gathers_apart else []
        return call("lookup", f"w[{quoted(weight_name(op.table))}]", ids, *gathered)
    return f"{read(op.table, context)}[{ids}]"


def _table_layout(op: Gather, context: StepContext) -> Layout:
    """Return the layout in which a table is read: its rows are whole, or they are exchanged."""
    layout = context.layouts[op.table.name]
    plan = context.plan
    style, late = plan.compiler.style, plan.training.reduces_once
    moves = row_moves(context.graph, plan.sharding, style, context.layouts, late)
    if op.table.name in moves.exchanged:
        return layout
    return tuple(
        axes if dim == op.dim else () for dim, axes in zip(op.table.dims, layout, strict=True)
    )


@expression.register
def _(op: Attention, context: StepContext) -> str:
    keys = context.graph.sizes[op.key.dims[1]]
    if keys % KEYS_BLOCK:
        raise unsaid(
            op.name,
            f"a fused kernel over {keys} keys, which it takes in blocks of {KEYS_BLOCK} (write a "
            f'plan.seq_len that {KEYS_BLOCK} divides, or model.attention = "dot")',
        )
    query, key = (context.layouts[tensor.name][:3] for tensor in (op.query, op.key))
    key = (query[0], (), *key[2:])
    if key[2] not in (query[2], ()):
        raise unsaid(op.name, f"a kernel with heads over {query[2]} and K/V heads over {key[2]}")
    if context.plan.attention_kernel.library != SPLASH:
        raise unsaid(
            op.name,
            f"a kernel of {context.plan.attention_kernel.library}, which no exported step has",
        )
    given = [read(tensor, context) for tensor in (op.query, op.key, op.value)]
    options = ["causal=True"] if op.causal else []
    options += [f"window={op.window}"] if op.window else []
    options += ["order=ORDER"] if op.causal and context.order > 1 else []
    options += _kernel_options(context.plan.attention_kernel)
    saved = op.output.short
    options += [f"saved_as={quoted(saved)}"] if saved in context.named else []
    return call("flash_attention", *given, spec(query), spec(key), *options)


def names_residual(op: Op) -> bool:
    """Return True if an operation names what a policy saves of it, so that its result needs none.

    The kernel of fused attention does: a second name, of the result in the layout of activations,
    would be a second stack of the same values.
    """
    return isinstance(op, Attention)


def _kernel_options(kernel: AttentionKernel) -> list[str]:
    """Return the blocks of a kernel, and one for the backward pass, where they are not JAX's."""
    blocks = [kernel.block_of(backward=late) for late in (False, True)]
    named = zip(("block", "block_backward"), blocks, strict=True)
    usual = (ATTENTION_BLOCK, ATTENTION_BLOCK)
    written = [f"{name}={block}" for name, block in named if block != usual]
    return [*written, *(["fused=True"] if kernel.fused else [])]


@expression.register
def _(op: CachedAttention, context: StepContext) -> str:
    given = [read(tensor, context) for tensor in (op.query, op.key, op.value)]
    return cached_attention(op, given, context)


@expression.register
def _(op: TokenRouting, context: StepContext) -> str:
    return routed(op, [read(tensor, context) for tensor in op.inputs], context)


@expression.register
def _(op: Convolution, context: StepContext) -> str:
    activation, kernel = (read(tensor, context) for tensor in op.inputs)
    return convolution(op, activation, kernel, context.graph.sizes)


@expression.register
def _(op: Reshape, context: StepContext) -> str:
    given, sizes = _passed(op.input, context), context.graph.sizes
    first = f"{given}.shape[0]" if op.input.dims[0] == op.output.dims[0] else "-1"
    return f"{given}.reshape({', '.join([first, *(str(sizes[d]) for d in op.output.dims[1:])])})"


@expression.register
def _(op: Pool, context: StepContext) -> str:
    return pool(op, read(op.activation, context), context.graph.sizes)


@expression.register
def _(op: Pointwise, context: StepContext) -> str:
    if op.function is None:
        raise unsaid(op.name, "an element-wise group that says its cost alone")
    given = [_passed(tensor, context) for tensor in op.inputs]
    if op.function.name in ACTIVATIONS:
        return " * ".join([f"{ACTIVATIONS[op.function.name]}({given[0]})", *given[1:]])
    if op.on_device and context.plan.devices > 1:
        raise unsaid(op.name, "a norm of what one device has")
    special = _SPECIAL.get(op.function.name)
    return special(op, op.function, context, given) if special else called(op.function, given)


def called(of: Function, given: list[str], *more: str, last: str = "") -> str:
    """Return the call of a library function; names of dimensions stand for their sizes.

    more: arguments that follow the operands. last: that which follows all.
    """
    words = (of.name, *(name for name, _ in of.constants))
    if not all(word.isidentifier() and not iskeyword(word) for word in words):
        raise PlanError(f"the function {of} has a name that is no identifier, so it has no JAX")
    sizes = [constant_name(value) for _, value in of.constants if isinstance(value, str)]
    others = [f"{n}={v}" for n, v in of.constants if v and not isinstance(v, str)]
    return call(of.name, *given, *more, *sizes, *others, *filter(None, (last,)))


def _top_k(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    """Write the choice, with the weights by expert besides where they are asked for."""
    if len(op.outputs) == 1:
        return called(of, given)
    return called(replace(of, name="top_k_of_experts"), given, last="EXPERT")


def _add(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    """Write the sum; a term that lacks other dimensions than the first is repeated along them."""
    dims = op.outputs[0].dims
    return " + ".join(
        one
        if len(dims) == len(own) or dims[len(dims) - len(own) :] == own
        else f"{one}[{', '.join(':' if dim in own else 'None' for dim in dims)}]"
        for own, one in zip((tensor.dims for tensor in op.inputs), given, strict=True)
    )


def _zeros(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    (made,) = op.outputs
    sizes = ", ".join(map(constant_name, made.dims))
    return f"jnp.zeros(({sizes},), {context.dtype(made)})"


def _repeat(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    (tensor,) = op.inputs
    sizes, made = context.graph.sizes, given[0]
    for narrow, wide in op.repeats:
        times, place = sizes[wide] // sizes[narrow], tensor.dims.index(narrow)
        made = f"jnp.repeat({made}, {times}, {place})"
    return made


def _with_dtype(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    return called(of, given, context.dtype(op.outputs[0]))


def _cast(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    return f"{given[0]}.astype({context.dtype(op.outputs[0])})"


def _positioned(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    if context.served:
        return called(replace(of, name=of.name + "_at"), given, last="kv_positions")
    return called(of, given, last="ORDER" if context.order > 1 else "")


def _cross_entropy(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    caps = [f"{key}={value}" for key, value in of.constants]
    return call(of.name, given[0], target_name(op.inputs[1]), *caps)


def _slot_masks(op: Pointwise, of: Function, context: StepContext, given: list[str]) -> str:
    """Write the masks, the experts first where the result lists them so."""
    masks = called(of, given, last="COMPUTE")
    moved = [t.dims[0] == "expert" for t in op.outputs]
    if moved == [False, False]:
        return masks
    turned = (".transpose(2, 0, 1, 3)" if first else "" for first in moved)
    return ", ".join(f"{masks}[{n}]{turn}" for n, turn in enumerate(turned))


_SPECIAL: dict[str, Callable[[Pointwise, Function, StepContext, list[str]], str]] = {
    "add": _add,
    "zeros": _zeros,
    "cast": _cast,
    "repeat": _repeat,
    "softmax": _with_dtype,
    "one_hot_rows": _with_dtype,
    "top_k": _top_k,
    "rotary": _positioned,
    "norm_and_rotary": _positioned,
    "cross_entropy": _cross_entropy,
    "cross_entropy_by_index": _cross_entropy,
    "cross_entropy_by_take": _cross_entropy,
    "slot_masks": _slot_masks,
}
"""Functions whose expression is more than a call with the operands."""

"""Matmuls and lookups of weights whose gathers or gradients have a dtype of their own, as JAX."""

from dataclasses import replace

from tpusim.export.names import call, weight_name
from tpusim.export.shardings import entry, spec
from tpusim.export.step_context import StepContext
from tpusim.graph import Einsum, Gather, Tensor, TensorRole
from tpusim.lowering.passes.quantise import may_be_quantised
from tpusim.partition import Layout
from tpusim.partition.lookups import exchanged_tables
from tpusim.partition.split import Split, contraction


def weight_of(op: Einsum) -> Tensor | None:
    """Return the weight of a matmul; None where both operands are activations."""
    return next((tensor for tensor in op.inputs if tensor.role is TensorRole.PARAM), None)


def is_narrow(op: Einsum, context: StepContext) -> bool:
    """Return True for a matmul of a weight that multiplies in narrow dtypes, or its transposes."""
    return context.plan.dtypes.quantised and may_be_quantised(op)


def with_weight_last(op: Einsum) -> Einsum:
    """Return a matmul with its weight as the right operand."""
    return op if op.rhs is weight_of(op) else replace(op, lhs=op.rhs, rhs=op.lhs)


def product_of_weight(op: Einsum, formula: str, given: str, context: StepContext) -> str:
    """Return the call that multiplies by a weight, the right operand.

    formula, given: the subscripts, and the expression of the left operand.
    """
    split = _split(op, context)
    factors = [f'"{formula}"', given, f'w["{weight_name(op.rhs)}"]']
    if is_narrow(op, context):
        letters = dict(zip((*op.lhs.dims, *op.rhs.dims), _letters(formula), strict=True))
        axes = [f"{letters[dim]}={entry(split[dim])}" for dim in letters if split.get(dim)]
        if context.plan.dtypes.gathers_quantised:
            return call("narrow_weight_einsum", *factors, context.spec(op.rhs), *axes)
        return call("quantised_einsum", *factors, *axes)
    if context.gathers_apart:
        factors.append(spec(tuple(split.get(dim, ()) for dim in op.rhs.dims)))
    return call("weight_einsum", *factors)


def _split(op: Einsum, context: StepContext) -> Split:
    """Return the axes over which each dimension of a matmul is divided."""
    layouts = context.layouts
    operands = [(tensor, layouts[tensor.name]) for tensor in op.inputs]
    return contraction(operands, op.output, layouts[op.output.name])


def _letters(formula: str) -> str:
    """Return the letters of both operands."""
    return formula.partition("->")[0].replace(",", "")


def rows_of_table(op: Gather, ids: str, context: StepContext) -> str:
    """Return the call that looks up rows of a table."""
    gathered = [spec(_table_layout(op, context))] if context.gathers_apart else []
    return call("lookup", f'w["{weight_name(op.table)}"]', ids, *gathered)


def _table_layout(op: Gather, context: StepContext) -> Layout:
    """Return the layout in which a table is read: its rows are whole, or they are exchanged."""
    layout = context.layouts[op.table.name]
    if op.table.name in exchanged_tables(context.graph, context.plan, context.layouts):
        return layout
    return tuple(
        axes if dim == op.dim else () for dim, axes in zip(op.table.dims, layout, strict=True)
    )

"""The matrices of a weight as source: their shape and sharding while Muon makes them orthogonal."""

from collections.abc import Sequence

from tpusim.export.names import constant_name, unsaid
from tpusim.export.shardings import entry, spec
from tpusim.export.step_context import StepContext
from tpusim.graph import Tensor, layer_matrices
from tpusim.lowering import sizes_of
from tpusim.partition import LocalShape, StoredWeight, matrix_stack


def matrices_source(
    context: StepContext, tensor: Tensor, lead: Sequence[str], sizes: Sequence[str]
) -> tuple[str, str]:
    """Return shape and shardings of the matrices of a layer's weight; both empty if it has none.

    Whole matrices are exchanged where those of all layers are one dimension already.

    lead: entries of the sharding of its first dimensions, those of the layers.
    sizes: constants of all dimensions. Raise PlanError where axes do not divide the columns.
    """
    matrix = layer_matrices(context.graph).get(tensor.name)
    if context.plan.optimizer.name != "muon" or matrix is None:
        return "", ""
    copies = {parameter.tensor.name: parameter.copies for parameter in context.graph.parameters}
    local = LocalShape(tensor.dims, context.layouts[tensor.name])
    divided = LocalShape(tensor.dims, context.updates.get(tensor.name, local.layout))
    weight = StoredWeight(tensor.name, local, copies[tensor.name], matrix, update=divided)
    extents = sizes_of(context.graph, context.plan)
    stack = matrix_stack(weight, extents, context.plan.stages > 1)
    counted = len(sizes) - len(matrix.rows) - len(matrix.columns)
    outer = sizes[:counted]
    sides = [" * ".join(map(constant_name, dims)) for dims in (matrix.rows, matrix.columns)]
    if stack.whole:
        specs = ", ".join(spec(layout) for layout in (stack.stored, stack.divided))
        return f"({', '.join([' * '.join(outer), *sides])})", f"({specs})"
    axes = stack.divided[2]
    if stack.columns % extents.group(axes):
        what = f"a matrix of {stack.columns} columns, which {' x '.join(axes)} do not divide"
        raise unsaid(tensor.name, what)
    entries = [*lead, *map(entry, divided.layout[: counted - len(lead)]), "None", entry(axes)]
    return f"({', '.join([*outer, *sides])})", f"(P({', '.join(entries)}),)"

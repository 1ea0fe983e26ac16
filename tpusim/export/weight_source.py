"""The weights of an exported step: tables of shapes, of shardings, and of matrices for Muon."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpusim.export.names import constant_name, entry, quoted, spec, unsaid, weight_name
from tpusim.export.step_context import StepContext
from tpusim.export.step_line import StepLine, indented
from tpusim.frames import choices_of, sizes_of
from tpusim.graph import Tensor, layer_matrices
from tpusim.partition import LocalShape, StoredWeight, matrix_stack

SHAPES, SPECS, UPDATE_SPECS = "SHAPES", "SPECS", "UPDATE_SPECS"
MATRICES, MATRIX_SPECS = "MATRICES", "MATRIX_SPECS"
"""The tables: shape and sharding of each weight, its sharding while it is updated, and the same of
its matrices while Muon makes them orthogonal."""


@dataclass(frozen=True, slots=True)
class WeightSource:
    """A weight of the exported step.

    tensor: its name in the graph.
    group: the scan whose iterations have one each; empty for a weight of the model.
    entries: what each table has for it, as source.
    """

    group: str
    name: str
    tensor: str
    entries: Mapping[str, str]


def weight_source(context: StepContext, tensor: Tensor, group: str, staged: str) -> WeightSource:
    """Return a weight as source.

    staged: axes of the stages that its layers are on, as source; empty without a pipeline.
    """
    lead, outer = _lead(context, group, staged) if group else ((), ())
    sizes = (*outer, *map(constant_name, tensor.dims))
    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    if context.served is not None:
        shape = f"({shape}, {context.dtype(tensor)})"
    entries = {
        SHAPES: shape,
        SPECS: context.spec(tensor, *lead),
        UPDATE_SPECS: context.spec(tensor, *lead, update=True),
    }
    entries |= _matrices(context, tensor, lead, sizes) if group else {}
    return WeightSource(group, weight_name(tensor), tensor.name, entries)


def _lead(context: StepContext, group: str, staged: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sharding and the sizes of the first dimensions of the weights of layers.

    Layers that are not scanned have tables of weights of their own.
    """
    if not context.scans_layers:
        return (), ()
    if staged:
        return ("None", staged, "None"), ("REPEATS", "STAGES", constant_name(group))
    return ("None",), (constant_name(group),)


def _matrices(
    context: StepContext, tensor: Tensor, lead: Sequence[str], sizes: Sequence[str]
) -> dict[str, str]:
    """Return shape and shardings of the matrices of a layer's weight, if Muon updates it.

    Whole matrices are exchanged where those of all layers are one dimension already.

    lead: entries of the sharding of its first dimensions, those of the layers.
    sizes: constants of all dimensions. Raise PlanError where axes do not divide the columns.
    """
    matrix = layer_matrices(context.graph).get(tensor.name)
    if context.plan.optimizer.name != "muon" or matrix is None:
        return {}
    copies = {parameter.tensor.name: parameter.copies for parameter in context.graph.parameters}
    local = LocalShape(tensor.dims, context.layouts[tensor.name])
    divided = LocalShape(tensor.dims, context.updates.get(tensor.name, local.layout))
    weight = StoredWeight(tensor.name, local, copies[tensor.name], matrix, update=divided)
    extents = sizes_of(context.graph, choices_of(context.plan))
    stack = matrix_stack(weight, extents, context.plan.stages > 1)
    outer = sizes[: len(sizes) - len(matrix.rows) - len(matrix.columns)]
    sides = [" * ".join(map(constant_name, dims)) for dims in (matrix.rows, matrix.columns)]
    if stack.whole:
        specs = ", ".join(spec(layout) for layout in (stack.stored, stack.divided))
        shape = ", ".join([" * ".join(outer), *sides])
        return {MATRICES: f"({shape})", MATRIX_SPECS: f"({specs})"}
    axes = stack.divided[2]
    if stack.columns % extents.group(axes):
        what = f"a matrix of {stack.columns} columns, which {' x '.join(axes)} do not divide"
        raise unsaid(tensor.name, what)
    inner = map(entry, divided.layout[: len(outer) - len(lead)])
    specs = f"(P({', '.join([*lead, *inner, 'None', entry(axes)])}),)"
    return {MATRICES: f"({', '.join([*outer, *sides])})", MATRIX_SPECS: specs}


def weight_tables(weights: Iterable[WeightSource], *, listed: bool) -> list[StepLine]:
    """Return the tables that have a weight; of updates, if one is updated in other parts.

    listed: those of a scan are a list with one table for each iteration, not one table of all.
    """
    weights = tuple(weights)
    divided = any(each.entries[UPDATE_SPECS] != each.entries[SPECS] for each in weights)
    lines = []
    for name in (SHAPES, SPECS, *([UPDATE_SPECS] if divided else []), MATRICES, MATRIX_SPECS):
        if found := [weight for weight in weights if name in weight.entries]:
            lines += table_source(name, found, listed)
    return lines


def table_source(name: str, weights: Iterable[WeightSource], listed: bool) -> list[StepLine]:
    """Return one table, with the weights of each scan in a table of their own."""
    groups: dict[str, list[WeightSource]] = {}
    for weight in weights:
        groups.setdefault(weight.group or weight.name, []).append(weight)
    lines = []
    for key, members in groups.items():
        own = [StepLine(f"{quoted(one.name)}: {one.entries[name]},") for one in members]
        if members[0].group:
            start, end = ("[{", f"}}] * {constant_name(key)},") if listed else ("{", "},")
            own = [StepLine(f"{quoted(key)}: {start}"), *indented(own), StepLine(end)]
        lines += own
    return [StepLine(""), StepLine(f"{name} = {{"), *indented(lines), StepLine("}")]

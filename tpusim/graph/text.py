"""A graph as text, one line an operation."""

from collections.abc import Iterator

from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan


def text(graph: Graph) -> str:
    """The graph for a person: its dimensions, then its operations in order."""
    sizes = " ".join(f"{name}={size}" for name, size in graph.dims)
    return "\n".join([f"graph {graph.name}: {sizes}", *_lines(graph.ops, "  ")])


def _lines(ops: tuple[Op, ...], indent: str) -> Iterator[str]:
    for op in ops:
        if isinstance(op, Scan):
            yield f"{indent}scan {op.name} x{op.trips} ({op.phase})"
            yield from _lines(op.body, indent + "  ")
            continue
        kind = type(op).__name__.lower()
        made = ", ".join(map(str, op.outputs))
        read = ", ".join(tensor.name for tensor in op.inputs)
        yield f"{indent}{op.phase:<9} {made} = {kind} {op.name}({read})"

"""The forward pass alone: what a graph computes for its outputs besides the loss."""

from dataclasses import replace

from tpusim.base.errors import ModelError
from tpusim.graph.graph import LOSS, Graph
from tpusim.graph.ops import Op
from tpusim.graph.state import StateUpdate


def forward_pass(graph: Graph) -> Graph:
    """Return the operations of a forward graph that its outputs and states need, without the loss.

    Raise ModelError for a graph that has no output but the loss, and no state.
    """
    outputs = tuple((name, tensor) for name, tensor in graph.outputs if name != LOSS)
    if not outputs and not any(isinstance(op, StateUpdate) for op in graph.ops):
        raise ModelError(
            f"{graph.name} has no output but its loss; name one where it is written, by "
            "w.output(name, tensor)"
        )
    wanted = {tensor.name for _, tensor in outputs}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if isinstance(op, StateUpdate) or not wanted.isdisjoint(t.name for t in op.outputs):
            kept.append(op)
            wanted.update(tensor.name for tensor in op.inputs)
    results = tuple(dict.fromkeys(tensor.name for _, tensor in outputs))
    return replace(graph, ops=tuple(reversed(kept)), outputs=outputs, results=results)

"""TensorFlow's operations: the layer, the pass and the lines of each, from the traced graph."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.base.phase import Phase
from tpusim.compiler.hlo.module import SourceFrame
from tpusim.compiler.tf.layer_names import GRADIENT_SCOPES, LayerNames

_TRACING = "polymorphic_function"
"""Part of the paths of the files that trace a function, beyond whose frames its own begin."""
_OWN = "/tensorflow/python/", "/tensorflow/compiler/", "__autograph_generated_file"
"""Parts of the paths of TensorFlow's own lines, which say no more than the operation's name."""
_DIFFERENTIATING = "/eager/backprop.py", "/ops/gradients_util.py"
"""Ends of the paths of the files in which `tf.GradientTape` and `tf.gradients` differentiate."""
_RECOMPUTING = "inner_recompute_grad"
"""Function of `tf.recompute_grad` that runs the forward pass again."""


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """What is known of one of TensorFlow's operations.

    name: with the name of its layer in place of its scope.
    phase: None where the data that it reads decides: in the forward pass, or the optimizer.
    frames: the lines that made it, or of which it is the gradient, innermost first.
    """

    name: str
    phase: Phase | None = None
    frames: tuple[SourceFrame, ...] = ()


def traced_operations(graph: Any, variables: Mapping[Any, str]) -> dict[str, TracedOperation]:
    """Return the operations of a `FuncGraph`, and of the graphs that it calls, by name.

    variables: their paths, by the `id` of the tensors in the graph that stand for them.
    """
    found = {op.name: op for each in _graphs(graph, set()) for op in each.get_operations()}
    names = LayerNames.of(_reads(found.values(), variables))
    stacks = {name: _stack(op) for name, op in found.items()}
    forward = {
        name: _kept(stack) for name, stack in stacks.items() if _phase(stack) is not Phase.BACKWARD
    }
    scopes: dict[str, tuple[SourceFrame, ...]] = {}
    for name, frames in forward.items():
        for scope in _prefixes(name):
            scopes.setdefault(scope, frames)
    made = {}
    for name, stack in stacks.items():
        phase = _phase(stack)
        frames = _kept(stack) if phase is not Phase.BACKWARD else _differentiated(name, scopes)
        made[name] = TracedOperation(names(name), phase, frames or _kept(stack))
    return made


def _graphs(graph: Any, seen: set[int]) -> Iterator[Any]:
    if id(graph) in seen or not hasattr(graph, "get_operations"):
        return
    seen.add(id(graph))
    yield graph
    for function in dict(getattr(graph, "_functions", {})).values():
        yield from _graphs(getattr(function, "graph", None), seen)


def _reads(operations: Iterable[Any], variables: Mapping[Any, str]) -> Iterator[tuple[str, str]]:
    for op in operations:
        if op.type == "ReadVariableOp" and id(op.inputs[0]) in variables:
            yield op.name, variables[id(op.inputs[0])]


def _stack(operation: Any) -> tuple[SourceFrame, ...]:
    """Return the frames of the traced function that made an operation, innermost first."""
    frames = [
        SourceFrame(frame.filename, frame.lineno, frame.name)
        for frame in reversed(list(operation.traceback or ()))
    ]
    ends = (at for at, frame in enumerate(frames) if _TRACING in frame.file)
    return tuple(frames[: next(ends, len(frames))])


def _kept(stack: Iterable[SourceFrame]) -> tuple[SourceFrame, ...]:
    return tuple(frame for frame in stack if not any(part in frame.file for part in _OWN))


def _phase(stack: Iterable[SourceFrame]) -> Phase | None:
    """Return the pass by the innermost frame that differentiates or recomputes; else None."""
    for frame in stack:
        if any(part in frame.file for part in _DIFFERENTIATING):
            return Phase.BACKWARD
        if frame.function == _RECOMPUTING:
            return Phase.RECOMPUTE
    return None


def _differentiated(
    name: str, scopes: Mapping[str, tuple[SourceFrame, ...]]
) -> tuple[SourceFrame, ...]:
    """Return the lines of the operation, or else of the scope, of which this is the gradient."""
    plain = "/".join(part for part in name.split("/") if part not in GRADIENT_SCOPES)
    return next((scopes[each] for each in _prefixes(plain) if each in scopes), ())


def _prefixes(name: str) -> Iterator[str]:
    """Yield a name and the scopes around it, innermost first."""
    while name:
        yield name
        name = name.rpartition("/")[0]

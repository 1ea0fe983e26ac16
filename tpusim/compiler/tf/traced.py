"""TensorFlow's operations: the layer, the pass and the lines of each, from the traced graph.

TensorFlow makes a scope unique within a graph by a number, and Keras opens each layer's scope more
than once, so the layer `block_0/dense` runs as `functional_1/block_0_1/dense_1`. An operation that
reads a variable tells which layer its scope is: a variable's path is the layer's, and its own name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpusim.base.phase import Phase
from tpusim.compiler.hlo.module import SourceFrame

_TRACING = "polymorphic_function"
"""Part of the paths of the files that trace a function, beyond whose frames its own begin."""
_OWN = "/tensorflow/python/", "/tensorflow/compiler/", "__autograph_generated_file"
"""Parts of the paths of TensorFlow's own lines, which say no more than the operation's name."""
_DIFFERENTIATING = "/eager/backprop.py", "/ops/gradients_util.py"
"""Ends of the paths of the files in which `tf.GradientTape` and `tf.gradients` differentiate."""
GRADIENT_SCOPES = ("gradient_tape", "gradients")
"""Scopes of what `tf.GradientTape` and `tf.gradients` add."""
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


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The layers of scopes; both are split at slashes."""

    layers: dict[tuple[str, ...], tuple[str, ...]]

    @classmethod
    def of(cls, reads: Iterable[tuple[str, str]]) -> "LayerNames":
        """Return the layers that are told by reads of variables.

        reads: name of an operation and path of the variable that it reads.
        """
        layers: dict[tuple[str, ...], tuple[str, ...]] = {}
        for operation, variable in reads:
            layer = variable.split("/")[:-1]
            scope = [part for part in operation.split("/") if part not in GRADIENT_SCOPES]
            start = _start(scope, layer)
            for depth in range(1, len(layer) + 1 if start is not None else 0):
                layers.setdefault(tuple(scope[: (start or 0) + depth]), tuple(layer[:depth]))
        return cls(layers)

    def __call__(self, operation: str) -> str:
        """Return an operation's name with its layer's name in place of its scope.

        >>> names = LayerNames.of([("functional_1/block_0_1/dense_1/Cast", "block_0/dense/kernel")])
        >>> names("functional_1/block_0_1/dense_1/MatMul")
        'block_0/dense/MatMul'
        """
        parts = tuple(part for part in operation.split("/") if part not in GRADIENT_SCOPES)
        for end in range(len(parts), 0, -1):
            if parts[:end] in self.layers:
                return "/".join((*self.layers[parts[:end]], *parts[end:]))
        return "/".join(parts)


def _start(scope: Sequence[str], layer: Sequence[str]) -> int | None:
    """Return where in the scope the layer's path begins; None if it is not in it."""
    if not layer:
        return None
    for start in range(len(scope) - len(layer)):
        if all(map(_same, scope[start:], layer)):
            return start
    return None


def _same(scope: str, layer: str) -> bool:
    return re.fullmatch(rf"{re.escape(layer)}(_\d+)*", scope) is not None

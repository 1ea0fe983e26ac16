"""Layers of TensorFlow's operations: its scopes, as the layers themselves are called.

TensorFlow makes a scope unique within a graph by a number, and Keras opens each layer's scope more
than once, so the layer `block_0/dense` runs as `functional_1/block_0_1/dense_1`. An operation that
reads a variable tells which layer its scope is: a variable's path is the layer's, and its own name.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GRADIENT_SCOPES = ("gradient_tape", "gradients")
"""Scopes of what `tf.GradientTape` and `tf.gradients` add."""


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


def is_gradient(operation: str) -> bool:
    """Return True for an operation that differentiation adds."""
    return any(part in GRADIENT_SCOPES for part in operation.split("/"))


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

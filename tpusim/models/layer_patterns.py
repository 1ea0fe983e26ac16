"""Patterns of layers: those of one iteration of a scan, one after the other."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tpusim.graph import LAYER_IN, GraphWriter, Tensor

Layer: TypeAlias = Callable[[GraphWriter, Tensor, Tensor], None]
"""Writes a layer, given a writer, its input, and the tensor that is its result."""


def in_turn(w: GraphWriter, x: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Write layers one after the other, and return the result of the last one.

    Each of several has a scope of its own, `0/`, `1/` and so on, and the input of each is named as
    one, so that remat saves it.
    """
    if len(layers) == 1:
        out = w.tensor("layer_out", x.dims)
        layers[0](w, x, out)
        return out
    for place, layer in enumerate(layers, start=1):
        last = place == len(layers)
        out = w.tensor("layer_out" if last else f"{place}/{LAYER_IN}", x.dims)
        layer(w.scope(str(place - 1)), x, out)
        x = out
    return x

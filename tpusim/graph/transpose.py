"""What reverse mode hands to an operation for its transposes."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tpusim.graph.tensor import Tensor

Cotangents: TypeAlias = Mapping[str, Tensor]
"""The gradient of each output, by the output's name."""

MakeGradient: TypeAlias = Callable[[Tensor], Tensor]
"""Makes the tensor that an operation's share of an input's gradient is written to."""


def gradient_of(output: Tensor, cotangents: Cotangents) -> Tensor:
    """The gradient of an output, over the output's own dimensions."""
    return cotangents[output.name].view(output.dims)

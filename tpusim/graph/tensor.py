"""Tensors over named dimensions.

A dimension is a name (`batch`, `embed`); the graph knows its size, the plan knows which mesh axes
shard it. Two tensors that share a name share the dimension, so an einsum needs no subscripts: what
only the operands have is contracted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

Sizes: TypeAlias = Mapping[str, int]
"""The size of each dimension."""

COMPUTE = "compute"
"""The dtype of activations and of weights in use; the plan says which one it is."""

STORED = "stored"
"""The dtype in which weights are kept between steps; the plan says which one it is."""

_OF = "/"


class Role(StrEnum):
    """What a tensor is to the training step."""

    PARAM = "param"
    INPUT = "input"
    ACTIVATION = "activation"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor; its name identifies it within the graph.

    primal: for a gradient, the name of the tensor whose gradient (or part of it) this is.
    narrow: the dtype of its gradient and of its saved copies, where that is another.
    stopped: this use of it passes no gradient on (JAX's `stop_gradient`).
    """

    name: str
    dims: tuple[str, ...]
    role: Role = Role.ACTIVATION
    dtype: str = COMPUTE
    primal: str = ""
    narrow: str = ""
    stopped: bool = False

    def gradient(self, name: str) -> "Tensor":
        """A tensor for its gradient, or for a part of that."""
        return Tensor(name, self.dims, Role.GRADIENT, self.saved_dtype, self.name)

    @property
    def differentiable(self) -> bool:
        """Whether it has a gradient: what is given, true or false, or stopped has none."""
        return not (self.role is Role.INPUT or self.dtype == "pred" or self.stopped)

    @property
    def saved_dtype(self) -> str:
        """The dtype in which it is saved for the backward pass."""
        return self.narrow or self.dtype

    def view(self, dims: tuple[str, ...]) -> "Tensor":
        """The same tensor with its dimensions called otherwise (keys run over `kv_seq`)."""
        return replace(self, dims=dims)

    @property
    def short(self) -> str:
        """The last part of the name, as save lists and annotations write it."""
        return self.name.rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.dims)}]"


def union_dims(*tensors: Tensor) -> tuple[str, ...]:
    """Every dimension of the tensors, in order of first appearance."""
    return tuple(dict.fromkeys(dim for tensor in tensors for dim in tensor.dims))


def part_of(dim: str, parts: int) -> str:
    """The name of one of `parts` equal parts of a dimension: `seq/4`; the whole is itself."""
    return f"{dim}{_OF}{parts}" if parts > 1 else dim


def whole_dim(dim: str) -> str:
    """The dimension that a part is of; it is sharded as its parts are."""
    return dim.partition(_OF)[0]

"""Tensors over named dimensions.

A dimension is a name (`batch`, `embed`); the graph knows its size, the plan knows which mesh axes
shard it. Two tensors that share a name share the dimension, so an einsum needs no subscripts: what
only the operands have is contracted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TypeAlias

DimSizes: TypeAlias = Mapping[str, int]
"""The size of each dimension."""

COMPUTE = "compute"
"""The dtype of activations and of weights in use, which the plan decides."""

STORED = "stored"
"""The dtype in which weights are stored between steps, which the plan decides."""

SEQUENCES = ("seq", "patches", "frames")
"""Dimensions that are positions of tokens; others are called so by their end, as `target_seq`."""

KEYS = "kv_"
"""Before a sequence: its keys, where queries of the same sequence attend to them."""

JOINT = "joint_"
"""Before a sequence: several sequences one after the other, whose tokens it counts again."""

INPUT = "in_"
"""Before a dimension of an operand whose result has the same dimension again."""

ADAPTER_RANK = "adapter_rank"
"""The dimension between the two matrices of an adapter, which no other weight has."""

PART_DOT = "."
"""Between a part of a model and its dimension: `image.embed`."""

_PART_MARK = "/"


class TensorRole(StrEnum):
    """The role of a tensor in a step.

    A state stays in HBM from step to step and is updated in place.
    """

    PARAM = "param"
    INPUT = "input"
    STATE = "state"
    ACTIVATION = "activation"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor; its name identifies it within the graph.

    dims: names of its dimensions, in order.
    dtype: dtype of its elements; `COMPUTE` and `STORED` are decided by the plan.
    primal: for a gradient, the name of the tensor whose gradient this is, or contributes to.
    narrow: dtype of its gradient and of its saved copies; "" if it is `dtype`.
    stopped: this use of it passes no gradient on (JAX's `stop_gradient`).
    frozen: it has no gradient, as no weight that is trained has made it; see `with_trainable`.
    """

    name: str
    dims: tuple[str, ...]
    role: TensorRole = TensorRole.ACTIVATION
    dtype: str = COMPUTE
    primal: str = ""
    narrow: str = ""
    stopped: bool = False
    frozen: bool = False

    def gradient(self, name: str) -> "Tensor":
        """Return a tensor for its gradient, or for a contribution to it."""
        return Tensor(name, self.dims, TensorRole.GRADIENT, self.saved_dtype, self.name)

    @property
    def differentiable(self) -> bool:
        """True if it has a gradient: inputs, states, booleans, frozen and stopped ones do not."""
        constant = self.role in (TensorRole.INPUT, TensorRole.STATE)
        return not (constant or self.dtype == "pred" or self.stopped or self.frozen)

    @property
    def saved_dtype(self) -> str:
        """The dtype in which it is saved for the backward pass."""
        return self.narrow or self.dtype

    def view(self, dims: tuple[str, ...]) -> "Tensor":
        """Return the same tensor with its dimensions under other names (keys run over `kv_seq`)."""
        return replace(self, dims=dims)

    @property
    def short(self) -> str:
        """The last part of the name, as save lists and annotations write it."""
        return self.name.rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.dims)}]"


def union_dims(*tensors: Tensor) -> tuple[str, ...]:
    """Return every dimension of the tensors, in order of first appearance."""
    return tuple(dict.fromkeys(dim for tensor in tensors for dim in tensor.dims))


def part_of(dim: str, parts: int) -> str:
    """Return the name of one of `parts` equal parts of a dimension: `seq/4`; `seq` for one."""
    return f"{dim}{_PART_MARK}{parts}" if parts > 1 else dim


@cache
def whole_dim(dim: str) -> str:
    """Return the dimension of which `dim` is a part; it is sharded as its parts are."""
    return dim.partition(_PART_MARK)[0]


Cotangents: TypeAlias = Mapping[str, Tensor]
"""The gradient of each output of an operation, by the output's name."""

MakeGradient: TypeAlias = Callable[[Tensor], Tensor]
"""Makes the tensor for an operation's contribution to the gradient of one of its inputs."""


@cache
def plain_dim(dim: str) -> str:
    """Return the dimension without the part of the model that it belongs to, and whole.

    >>> plain_dim("image.seq/4")
    'seq'
    """
    return whole_dim(dim).rpartition(PART_DOT)[2]


def renamed(mark: str, dim: str) -> str:
    """Return the name of another dimension of the same size and part: `image.in_channels`.

    >>> renamed(INPUT, "image.channels"), renamed(KEYS, "seq")
    ('image.in_channels', 'kv_seq')
    """
    part, dot, plain = dim.rpartition(PART_DOT)
    return f"{part}{dot}{mark}{plain}"


def is_sequence(dim: str, *, keys: bool = True) -> bool:
    """Return True if a dimension is positions of tokens: `seq`, `target_seq`, `patches`, `frames`.

    keys: count those of keys too, which have names of their own (`kv_seq`).

    >>> [is_sequence(dim) for dim in ("seq/4", "image.patches", "kv_target_seq", "height")]
    [True, True, True, False]
    """
    plain = plain_dim(dim)
    own = plain.removeprefix(KEYS) if keys else plain
    return own in SEQUENCES or (own.endswith(f"_{SEQUENCES[0]}") and not own.startswith(KEYS))


def gradient_of(output: Tensor, cotangents: Cotangents) -> Tensor:
    """Return the gradient of an output, over the output's own dimensions."""
    return cotangents[output.name].view(output.dims)

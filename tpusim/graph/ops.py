"""The operations of a graph: what is computed, over which named dimensions.

Each operation knows its transposes: given the gradients of its outputs it returns the operations
that make the gradients of its inputs. Reverse-mode differentiation (`backward.py`) needs no more,
so a model is written forward only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import TypeAlias

from tpusim.graph.route import Route
from tpusim.graph.tensor import Role, Tensor, union_dims
from tpusim.phase import Phase

Cotangents: TypeAlias = Mapping[str, Tensor]
"""The gradient of each output, by the output's name."""

MakeGradient: TypeAlias = Callable[[Tensor], Tensor]
"""Makes the tensor that an operation's share of an input's gradient is written to."""

Sizes: TypeAlias = Mapping[str, int]
"""The size of each dimension."""


@dataclass(frozen=True, slots=True)
class Einsum:
    """A product of two tensors, summed over the dimensions that the output lacks.

    model_share: the share of its FLOPs that the model needs; 1/2 for causal scores computed whole,
        exact where it is a fraction.
    ragged: the rows of each expert are as many as it has tokens, so it runs as a grouped kernel.
    """

    name: str
    lhs: Tensor
    rhs: Tensor
    output: Tensor
    model_share: float | Fraction = 1.0
    phase: Phase = Phase.FORWARD
    ragged: bool = False

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The two operands."""
        return (self.lhs, self.rhs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The product."""
        return (self.output,)

    def flops(self, sizes: Sizes) -> int:
        """2 x the product of all dimensions: a multiplication and an addition each."""
        return 2 * prod(sizes[dim] for dim in union_dims(self.lhs, self.rhs))

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Op, ...]":
        """An einsum's transposes are einsums: the gradient with the other operand."""
        given = cotangents[self.output.name]
        given = given.view(self.output.dims)
        return tuple(
            Einsum(
                f"{self.name}/d{side}",
                given,
                other,
                gradient(wanted),
                self.model_share,
                Phase.BACKWARD,
                self.ragged,
            )
            for side, wanted, other in (("x", self.lhs, self.rhs), ("w", self.rhs, self.lhs))
            if wanted.differentiable
        )


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension of a convolution: `taps` wide, one output every `stride` inputs."""

    in_dim: str
    out_dim: str
    tap_dim: str
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of `x` with `kernel` over `windows`, or one of its two transposes.

    The transposes run the same multiplications, so the FLOPs of the three are equal; `activation`,
    `kernel` and `output` are the forward ones in each, and `product` says which of them is made.
    """

    name: str
    activation: Tensor
    kernel: Tensor
    output: Tensor
    windows: tuple[Window, ...]
    product: str = "output"
    given: tuple[Tensor, ...] = ()
    made: tuple[Tensor, ...] = ()
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands."""
        return self.given or (self.activation, self.kernel)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The product."""
        return self.made or (self.output,)

    def flops(self, sizes: Sizes) -> int:
        """2 x outputs x taps x input channels."""
        spatial = {window.in_dim for window in self.windows}
        dims = dict.fromkeys((*self.output.dims, *self.kernel.dims))
        return 2 * prod(sizes[dim] for dim in dims if dim not in spatial)

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Op, ...]":
        """The gradients of the input and of the kernel."""
        given = cotangents[self.output.name].view(self.output.dims)
        pairs = (("x", self.activation, self.kernel), ("w", self.kernel, self.activation))
        return tuple(
            Convolution(
                f"{self.name}/d{side}",
                self.activation,
                self.kernel,
                self.output,
                self.windows,
                side,
                (given, other),
                (gradient(wanted),),
                Phase.BACKWARD,
            )
            for side, wanted, other in pairs
            if wanted.role is not Role.INPUT
        )


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A fused element-wise, normalisation, softmax or reduction group.

    flops: vector operations for each element of its largest tensor.
    over: dimensions that its statistics run over (a norm's `embed`, a softmax's keys).
    linear: a sum of its inputs, which passes gradients and partial sums through unchanged.
    keeps: what its backward pass reads: its `inputs`, its `outputs`, its `tape`, or nothing.
    tape: what its linearisation reads where no checkpoint computes it again, see `with_tape`; of a
        backward group, what it reads of that.
    repeats: (narrow, wide) pairs of dimensions that are sharded alike, for repeated K/V heads.
    alone: it rearranges elements (a rotation), so no matmul's epilogue can take it.
    generated: it makes much of little (a one-hot mask), so products can make it as they read it.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    flops: float
    over: tuple[str, ...] = ()
    linear: bool = False
    keeps: str = "inputs"
    repeats: tuple[tuple[str, str], ...] = ()
    alone: bool = False
    tape: tuple[Tensor, ...] = ()
    generated: bool = False
    phase: Phase = Phase.FORWARD

    @property
    def fusible(self) -> bool:
        """Whether it can run in the epilogue of the product that it follows.

        One that makes its tape does not: compiled steps without checkpoints read the product's
        result again for it (plain models on v5p 2x2x4 and v6e 4x4, libtpu 0.0.42.1).
        """
        return not (self.over or self.alone or self.taped)

    @property
    def copies(self) -> bool:
        """Whether it copies each operand, rearranged, and shares nothing between them."""
        return self.alone and [t.dims for t in self.inputs] == [t.dims for t in self.outputs]

    @property
    def taped(self) -> bool:
        """Whether it makes its tape, which its backward pass reads in place of operands."""
        return self.keeps == "tape"

    def with_tape(self) -> "Pointwise":
        """The group as it is differentiated outside of a checkpoint.

        What reverse mode reads of it is then an array of its own, a derivative or an intermediate
        value, and is written as a result (JAX's `linearize`).
        """
        made = tuple(t for t in self.tape if t not in (*self.inputs, *self.outputs))
        return replace(self, outputs=(*self.outputs, *made), keeps="tape")

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Op, ...]":
        """One group that reads the gradients and what was kept: about twice the arithmetic."""
        given = tuple(
            cotangents[tensor.name].view(tensor.dims)
            for tensor in self.outputs
            if tensor.name in cotangents
        )
        kinds = {"inputs": self.inputs, "outputs": self.outputs, "tape": self.tape}
        kept = kinds.get(self.keeps, ())
        wanted = tuple(gradient(t) for t in self.inputs if t.role is not Role.INPUT)
        return (
            Pointwise(
                f"{self.name}/d",
                given + kept,
                wanted,
                2 * self.flops,
                self.over,
                repeats=self.repeats,
                alone=self.alone,
                tape=self.tape if self.taped else (),
                phase=Phase.BACKWARD,
            ),
        )


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of `table` picked by `ids` along `dim`: an embedding lookup, or its transpose."""

    name: str
    table: Tensor
    ids: Tensor
    output: Tensor
    dim: str
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The table and the ids."""
        return (self.table, self.ids)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The rows."""
        return (self.output,)

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Op, ...]":
        """A scatter-add of the rows' gradients into the table's."""
        given = cotangents[self.output.name].view(self.output.dims)
        return (
            Scatter(
                f"{self.name}/dw", given, self.ids, gradient(self.table), self.dim, Phase.BACKWARD
            ),
        )


@dataclass(frozen=True, slots=True)
class Scatter:
    """Rows added into a table at `ids` along `dim`."""

    name: str
    rows: Tensor
    ids: Tensor
    output: Tensor
    dim: str
    phase: Phase = Phase.BACKWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The rows and the ids."""
        return (self.rows, self.ids)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The table."""
        return (self.output,)

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Op, ...]":
        """Only gradients are scattered; nothing differentiates them again."""
        raise NotImplementedError("a scatter is itself a gradient")


@dataclass(frozen=True, slots=True)
class Attention:
    """A fused attention kernel: scores, mask, softmax and weighted sum, never written to HBM.

    `query` is [batch, seq, heads, head_dim]; `key` and `value` run over `kv_seq` and `kv_heads`.
    Values, and with them the result, may be of another width than queries and keys.
    The backward kernel reads the operands, the result and its gradient, and computes the scores
    again (Dao et al., FlashAttention, arXiv:2205.14135, section 3.1).
    """

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    causal: bool
    window: int = 0
    gradient: Tensor | None = None
    gradients: tuple[Tensor, ...] = ()
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands; for the backward kernel also the result and its gradient."""
        operands = (self.query, self.key, self.value)
        return operands if self.gradient is None else (*operands, self.output, self.gradient)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result, or the three gradients."""
        return self.gradients or (self.output,)

    @property
    def backward(self) -> bool:
        """Whether this is the backward kernel."""
        return self.gradient is not None

    def flops(self, sizes: Sizes) -> int:
        """Model FLOPs: 2 b h q kv (d + d_v) forward, twice that backward; causal ones at half.

        Scores are products over the width d of queries and keys, the weighted sum has that of the
        values, d_v; backward, dQ and dK are over d, and dV and dP over d_v. A window of w keys
        counts w for each query.
        """
        queries = prod(sizes[dim] for dim in self.query.dims[:-1])
        widths = sizes[self.query.dims[-1]] + sizes[self.value.dims[-1]]
        keys = sizes[self.key.dims[1]]
        seen = min(keys, self.window) if self.window else keys
        whole = 2 * queries * seen * widths * (2 if self.backward else 1)
        return whole // 2 if self.causal and seen == keys else whole

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Op, ...]":
        """The backward kernel."""
        given = cotangents[self.output.name].view(self.output.dims)
        made = (gradient(self.query), gradient(self.key), gradient(self.value))
        return (
            Attention(
                f"{self.name}/d",
                self.query,
                self.key,
                self.value,
                self.output,
                self.causal,
                self.window,
                given,
                made,
                Phase.BACKWARD,
            ),
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """`trips` runs of `body`, each on its own slice of the stacked parameters.

    carries: (outside before, inside before, inside after, outside after) of each carried tensor.
    saves: tensors of the body that are stacked over the trips for the backward scan.
    loads: tensors that the backward scan reads from those stacks.
    slices: (outside, inside) where a trip reads its own part of a tensor.
    stacks: (inside, outside) where a trip writes its own part of a tensor.
    shared: what all trips read alike. sums: (inside, outside) of what the trips' results add up to.
    recomputed: the backward scan computes the body again, whatever else is kept.
    deferred: it makes gradients of weights alone, from what the backward scan has saved for it.
    """

    name: str
    trips: int
    body: "tuple[Op, ...]"
    carries: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...] = ()
    saves: tuple[Tensor, ...] = ()
    loads: tuple[Tensor, ...] = ()
    slices: tuple[tuple[Tensor, Tensor], ...] = ()
    stacks: tuple[tuple[Tensor, Tensor], ...] = ()
    shared: tuple[Tensor, ...] = ()
    sums: tuple[tuple[Tensor, Tensor], ...] = ()
    recomputed: bool = False
    deferred: bool = False
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the first trip starts from, what each takes a part of, and what all read."""
        carried = (before for before, *_ in self.carries)
        return (*carried, *(outside for outside, _ in self.slices), *self.shared)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What the last trip leaves, what the trips wrote parts of, and what they added up."""
        carried = (after for *_, after in self.carries)
        return (*carried, *(outside for _, outside in (*self.stacks, *self.sums)))


Op: TypeAlias = Einsum | Convolution | Pointwise | Gather | Scatter | Attention | Route | Scan

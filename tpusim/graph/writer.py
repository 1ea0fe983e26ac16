"""A writer of forward graphs: models say what they compute, and the writer keeps the operations.

    w = GraphWriter("mine", {"batch": 8, "seq": 1024, "embed": 512, "mlp": 2048})
    x = w.input("x", ("batch", "seq", "embed"), dtype="compute")
    h = w.dense("wi", x, "mlp")
    y = w.dense("wo", w.pointwise("relu", (h,), ("batch", "seq", "mlp"), flops=1.0), "embed")

A dimension is a name with a size. Sub-models with sizes of their own are parts: within
`w.part("image", embed=768)` the name `embed` means the dimension `image.embed`, which the plan can
shard by a rule of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

from tpusim.base.argument_types import in_words
from tpusim.base.errors import ModelError, nearest
from tpusim.base.shown_value import cut
from tpusim.graph.checked_pieces import (
    Count,
    Joinable,
    Some,
    check_declared,
    check_fields,
    check_made,
    checked_methods,
    written,
)
from tpusim.graph.contractions import Einsum
from tpusim.graph.function import ADD, ZEROS
from tpusim.graph.graph import LOSS, Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import LAYER_IN
from tpusim.graph.reshape import Reshape
from tpusim.graph.state import StateUpdate
from tpusim.graph.tensor import COMPUTE, INPUT, PART_DOT, Tensor, TensorRole, renamed
from tpusim.graph.written_ops import check_names, read_of_outside


@checked_methods
@dataclass(slots=True)
class GraphWriter:
    """Operations of a forward pass, in order.

    sizes: the size of each dimension; those of a part are `part.dimension`.
    prefix: text before the names of operations and tensors, such as `layer/`.
    within: the part whose dimensions are meant, such as `image`; empty for the whole model.
    outputs: the results so far that have a name besides the loss.
    """

    name: str
    sizes: dict[str, int]
    prefix: str = ""
    within: str = ""
    ops: list[Op] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.sizes, dict):
            raise ModelError(
                "a writer takes the model's name and a table of sizes; write "
                'GraphWriter("mine", {"batch": 8})'
            )

    def size(self, **sizes: int) -> None:
        """Declare dimensions of this part. Raise ModelError for a second size of one name."""
        for short, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ModelError(
                    f"{self.name} has the dimension {short} with size {cut(in_words(size))}; "
                    "write a whole number of at least 1"
                )
            dim = f"{self.within}{PART_DOT}{short}" if self.within else short
            if self.sizes.setdefault(dim, size) != size:
                raise ModelError(
                    f"{self.name} has the dimension {dim} with sizes {self.sizes[dim]} and {size}; "
                    "give the second a name of its own"
                )

    def dim(self, short: str) -> str:
        """Return the dimension of a name in this part. Raise ModelError for an unknown one."""
        return self._dim(short)

    def _dim(self, short: str) -> str:
        own = f"{self.within}{PART_DOT}{short}"
        found = own if self.within and own in self.sizes else short
        if found not in self.sizes:
            raise ModelError(
                f"{self.name} has no dimension {short}: {nearest(short, self.sizes)}, or declare "
                f"it by size({short}=...)"
            )
        return found

    def dims(self, shorts: Sequence[str]) -> tuple[str, ...]:
        """Return the dimensions of names in this part."""
        return tuple(map(self._dim, shorts))

    def extent(self, *shorts: str) -> int:
        """Return the product of the sizes of dimensions."""
        return prod(self.sizes[self._dim(short)] for short in shorts)

    def twin(self, mark: str, dim: str) -> str:
        """Declare another dimension of the size of `dim`, `kv_seq` for `seq`; return its name."""
        made = renamed(mark, dim)
        self.sizes[made] = self.sizes[self._dim(dim)]
        return made

    def scope(self, prefix: str) -> "GraphWriter":
        """Return a writer into the same graph that puts `prefix/` before names."""
        return replace(self, prefix=f"{self.prefix}{prefix}/")

    def marked(self, mark: str) -> "GraphWriter":
        """Return a writer into the same graph that puts `mark` before names: `cross_q` for `q`."""
        return replace(self, prefix=f"{self.prefix}{mark}")

    def part(self, name: str, **sizes: int) -> "GraphWriter":
        """Return a writer into the same graph for a sub-model with dimensions of its own."""
        inner = self.scope(name).sized(name)
        inner.size(**sizes)
        return inner

    def sized(self, name: str) -> "GraphWriter":
        """Return a writer into the same graph with the dimensions of a part, but no prefix."""
        return replace(self, within=name)

    def tensor(self, short: str, dims: Sequence[str], dtype: str = COMPUTE, **more: Any) -> Tensor:
        """Return a new activation, which the caller writes."""
        check_fields(self.name, short, Tensor, more)
        return Tensor(f"{self.prefix}{short}", self.dims(dims), dtype=dtype, **more)

    def weight(self, short: str, *dims: str) -> Tensor:
        """Return a weight."""
        return Tensor(f"{self.prefix}{short}", self.dims(dims), TensorRole.PARAM)

    def input(self, short: str, dims: Sequence[str], dtype: str = "s32") -> Tensor:
        """Return an input of each step."""
        return self.tensor(short, dims, dtype, role=TensorRole.INPUT)

    def output(self, short: str, x: Tensor) -> Tensor:
        """Name a result of the model, such as `logits`; return it.

        The forward pass alone makes these, and what only the loss needs is left out of it.
        """
        self.outputs[f"{self.prefix}{short}"] = x
        return x

    def state(self, short: str, *dims: str, dtype: str = COMPUTE) -> Tensor:
        """Return a tensor that stays in HBM between steps, such as a KV cache.

        A layer has one of its own, as it has of its weights.
        """
        return Tensor(f"{self.prefix}{short}", self.dims(dims), TensorRole.STATE, dtype)

    def update(self, short: str, state: Tensor, value: Tensor) -> Tensor:
        """Write the update of a state in place; return the state after it.

        value: has the dimensions of the state, or lacks those along which it is written at one
            position.

        Raise ModelError for a value of other dimensions, and for a tensor that is no state.
        """
        if state.role is not TensorRole.STATE:
            raise ModelError(f"{self.name} updates {state.name}, which is no state; see w.state")
        if more := [dim for dim in value.dims if dim not in state.dims]:
            raise ModelError(
                f"{self.name} writes {value} into {state}, which has no {', '.join(more)}; view it "
                "with the dimensions of the state"
            )
        made = replace(state, name=f"{self.prefix}{short}")
        self.write(StateUpdate(f"{self.prefix}{short}", state, value, made))
        return made

    def stop(self, x: Tensor) -> Tensor:
        """Return `x` without a gradient: the operations before it are frozen.

        Weights that only frozen tensors are made of have no gradient, no state of the optimizer
        and no update.
        """
        return replace(x, stopped=True)

    def write(self, *ops: Op) -> None:
        """Append operations. Raise ModelError for one over dimensions that are not declared."""
        for op in ops:
            check_declared(self.name, self.sizes, op)
        self.ops.extend(ops)

    def einsum(
        self,
        short: str,
        lhs: Tensor,
        rhs: Tensor,
        made: Tensor | Sequence[str],
        *,
        share: float | Fraction = 1.0,
        ragged: bool = False,
    ) -> Tensor:
        """Write a matmul of two tensors, summed over the dimensions that the result lacks.

        made: the result, or its dimensions; it is then named as the operation.
        share, ragged: see `Einsum`.
        """
        out = made if isinstance(made, Tensor) else self.tensor(short, made)
        check_made(self.name, short, (lhs, rhs), out)
        self.write(Einsum(f"{self.prefix}{short}", lhs, rhs, out, share, ragged=ragged))
        return out

    def dense(
        self,
        short: str,
        x: Tensor,
        *dims: str,
        out: str = "",
        over: Count = 1,
        share: float | Fraction = 1.0,
    ) -> Tensor:
        """Write the product of `x` with a weight, which replaces its last dimensions by `dims`.

        A dimension that is replaced by itself is called `in_...` in `x` and in the weight.

        short: name of the weight and of the operation; `out` is that of the result, if another.
        over: number of dimensions of `x` that are contracted, from the last.
        """
        wanted = self.dims(dims)
        if over > len(x.dims):
            raise ModelError(
                f"{self.name}: {short} contracts {over} dimensions of {x}, which has "
                f"{len(x.dims)}; write over = {len(x.dims)} or less"
            )
        given = tuple(self.twin(INPUT, d) if d in wanted else d for d in x.dims[-over:])
        x = x.view((*x.dims[:-over], *given))
        weight = self.weight(short, *given, *dims)
        made = self.tensor(out or f"{short}_out", (*x.dims[:-over], *dims))
        return self.einsum(short, x, weight, made, share=share)

    def pointwise(
        self,
        short: str,
        inputs: Sequence[Tensor],
        made: Tensor | Sequence[str],
        flops: float,
        **more: Any,
    ) -> Tensor:
        """Write an element-wise group with one result.

        made: the result, or its dimensions; it is then named as the operation.
        flops: vector operations per element of its largest tensor.
        more: other fields of `Pointwise`.
        """
        out = made if isinstance(made, Tensor) else self.tensor(short, made)
        check_fields(self.name, short, Pointwise, more)
        if "over" in more:
            more["over"] = self.dims(more["over"])
        self.write(Pointwise(f"{self.prefix}{short}", tuple(inputs), (out,), flops, **more))
        return out

    def add(self, short: str, first: Tensor, *terms: Tensor, out: Tensor | None = None) -> Tensor:
        """Write the sum of tensors, which may lack dimensions of the first."""
        made = out or self.tensor(short, first.dims)
        flops = float(len(terms))
        return self.pointwise(
            short, (first, *terms), made, flops, linear=True, keeps="", function=ADD
        )

    def reshape(self, short: str, x: Tensor, dims: Sequence[str]) -> Tensor:
        """Write `x` under other dimensions, of as many elements in the same order."""
        out = self.tensor(short, dims)
        self.write(Reshape(f"{self.prefix}{short}", x, out))
        return out

    def layers(
        self,
        name: str,
        trips: Count,
        x: Tensor,
        layer: "Callable[[GraphWriter, Tensor], Tensor]",
    ) -> Tensor:
        """Write a scan over `trips` equal layers, each with weights of its own.

        name: of one layer; the scan is called `{name}s`.
        layer: writes a layer, given a writer and its input, and returns its result. Tensors of
            outside that it reads (an encoder's result, in a decoder) are shared by all layers.

        Raise ModelError for no layers, and for a result of other dimensions than the input.
        """
        (made,) = self.streams(name, trips, (x,), layer)
        return made

    def streams(
        self,
        name: str,
        trips: Count,
        xs: Some,
        layer: "Callable[..., Tensor | Sequence[Tensor]]",
    ) -> tuple[Tensor, ...]:
        """Write `layers` that take and return several tensors.

        layer: writes a layer, given a writer and its inputs.
        """
        inner = replace(self.scope(name), ops=[])
        marks = ["", *(f"_{number}" for number in range(1, len(xs)))]
        entered = tuple(
            inner.tensor(f"{LAYER_IN}{mark}", x.dims) for mark, x in zip(marks, xs, strict=True)
        )
        left = written(self.name, name, layer, (inner, *entered), len(xs))
        for x, y in zip(xs, left, strict=True):
            if y.dims != x.dims:
                raise ModelError(
                    f"{self.name}: a layer called {name} takes {', '.join(x.dims)} and returns "
                    f"{', '.join(y.dims)}; return the dimensions of its input"
                )
        made = tuple(
            self.tensor(f"{name}s_out{mark}", x.dims) for mark, x in zip(marks, xs, strict=True)
        )
        carries = tuple(zip(xs, entered, left, made, strict=True))
        scan = f"{self.prefix}{name}s"
        shared = read_of_outside(inner.ops, entered)
        self.write(Scan(scan, trips, tuple(inner.ops), carries, shared=shared))
        return made

    def recurrence(
        self,
        name: str,
        x: Joinable,
        states: Sequence[str],
        dims: Sequence[str],
        step: "Callable[[GraphWriter, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]",
        *,
        emitted: Sequence[str],
        weights_after: bool = False,
    ) -> tuple[Tensor, ...]:
        """Write a scan over the steps of `x`; return the emitted states of all steps.

        x: [batch, steps, ...]; a step has [batch, ...] of it.
        states: names of the states that a step gets and leaves, [batch, *dims], zeros at first.
        step: writes a step, given a writer, its part of `x` and the states, and returns the new
            states. Its weights, and tensors of outside that it reads, are shared by all steps.
        emitted: the states of which all steps are kept, [batch, steps, *dims].
        weights_after: see `Scan`.
        """
        if unknown := [each for each in emitted if each not in states]:
            raise ModelError(
                f"{self.name}: {name} emits {unknown[0]!r}, which is no state of it; "
                f"{nearest(unknown[0], states)}"
            )
        batch, along, *rest = x.dims
        inner = replace(self.marked(f"{name}_"), ops=[])
        part = inner.tensor("part", (batch, *rest))
        own = (batch, *self.dims(dims))
        entered = tuple(inner.tensor(f"{state}_in", own) for state in states)
        left = written(self.name, name, step, (inner, part, entered), len(states))
        for state, made in zip(states, left, strict=True):
            if made.dims != own:
                raise ModelError(
                    f"{self.name}: a step of {name} returns {made.dims} for the state {state} of "
                    f"{', '.join(own)}; return the dimensions of the state"
                )
        before = tuple(self.tensor(f"{name}_{state}_zeros", own) for state in states)
        for zeros in before:
            self.pointwise(zeros.short, (), zeros, 0.0, linear=True, keeps="", function=ZEROS)
        after = tuple(self.tensor(f"{name}_{state}_last", own) for state in states)
        wholes = {
            state: (made, self.tensor(f"{name}_{state}_all", (batch, along, *own[1:])))
            for state, made in zip(states, left, strict=True)
            if state in emitted
        }
        read = (t for op in inner.ops for t in op.inputs if t.role is TensorRole.PARAM)
        weights = {tensor.name: tensor for tensor in read}.values()
        self.write(
            Scan(
                f"{self.prefix}{name}",
                self.sizes[along],
                tuple(inner.ops),
                tuple(zip(before, entered, left, after, strict=True)),
                slices=((x, part),),
                stacks=tuple(wholes.values()),
                shared=(*weights, *read_of_outside(inner.ops, (part, *entered))),
                steps=along,
                weights_after=weights_after,
            )
        )
        return tuple(wholes[state][1] for state in emitted)

    def graph(self, loss: Any = None) -> Graph:
        """Return the graph; its backward pass starts from `loss`.

        Raise ModelError for a loss that is no tensor, for a graph without loss and outputs, and
        for two operations or results of one name.
        """
        if not isinstance(loss, Tensor) and not (loss is None and self.outputs):
            raise ModelError(
                f"{self.name}: forward returns {cut(in_words(loss))}; return the loss, a tensor"
            )
        check_names(self.name, self.ops)
        outputs = dict(self.outputs) | ({LOSS: loss} if loss is not None else {})
        return Graph(self.name, tuple(self.sizes.items()), tuple(self.ops), tuple(outputs.items()))

"""Builder of one body of a partitioned graph: its nodes so far, and the value of each tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tpusim.base.phase import Phase
from tpusim.graph import (
    COPIES,
    NARROW,
    Op,
    Pointwise,
    Scan,
    StateUpdate,
    Tensor,
    TensorRole,
    is_sequence,
    plain_dim,
)
from tpusim.partition.asked_sizes import AskedSizes
from tpusim.partition.layout import Layout, LocalShape
from tpusim.partition.lookups import NO_MOVES, RowMoves
from tpusim.partition.norm_groups import NormGroups
from tpusim.partition.partitioned_graph import (
    STATE,
    Buffer,
    CollectiveNode,
    ComputeNode,
    Node,
    Purpose,
    UnreducedGradient,
)
from tpusim.partition.reshard import ReshardStep, moves_apart, reshard
from tpusim.partition.split import Split
from tpusim.plan import Axes
from tpusim.program import CollectiveKind

HEADS = ("heads", NARROW, COPIES)


@dataclass(frozen=True, slots=True)
class ShardedValue:
    """A tensor as one device holds it at some point of the program.


    partial: axes over which its terms are still to be added up.
    maker: name of the operation that made it; empty once a collective or a sum has touched it.
    """

    key: str
    tensor: Tensor
    layout: Layout
    partial: Axes = ()
    maker: str = ""


class BodyBuilder:
    """Nodes of a body so far, and the sharded values that it holds.

    wanted: the layout that the plan gives each forward tensor; a gradient has its primal's.
    sizes: of the dimensions.
    prefix: of names in a backward body, to distinguish them from those of the forward one.
    outer: the builder of the body around a loop's, with what all iterations of the loop share.
    moves: tables whose rows move, see `lookups.row_moves`.
    late: True if gradients of weights leave the step's backward pass as terms.
    updates: layouts of weights that are updated in smaller parts, see `update_layouts`.
    groups: axes of the sums of batch norms over groups of examples, see `norm_groups`.
    kept: layouts of what loops save otherwise than it is made, see `kernel_residuals`.

    Its `unreduced` has those gradients, by weight; its `copies` are the dimensions that count the
    copies of a tensor.
    """

    def __init__(
        self,
        wanted: Mapping[str, Layout],
        weights: frozenset[str],
        buffers: dict[str, Buffer],
        sizes: AskedSizes,
        prefix: str = "",
        outer: "BodyBuilder | None" = None,
        moves: RowMoves = NO_MOVES,
        late: bool = False,
        updates: Mapping[str, Layout] | None = None,
        groups: NormGroups = (),
        kept: Mapping[str, Layout] | None = None,
    ) -> None:
        self.wanted = wanted
        self.sizes = sizes
        self.weights = weights
        self.buffers = buffers
        self.prefix = prefix
        self.outer = outer
        self.moves = moves
        self.late = late
        self.updates = updates or {}
        self.groups = groups
        self.kept = kept or {}
        self.unreduced: dict[str, UnreducedGradient] = {}
        self.copies: frozenset[str] = frozenset()
        self.phase = Phase.FORWARD
        self.nodes: list[Node] = []
        self.held: dict[str, ShardedValue] = {}
        self.outside: dict[str, None] = {}
        self._shared: frozenset[str] = frozenset()
        self._apart = False
        self._summed: frozenset[str] = frozenset()
        self._copies: dict[tuple[str, Layout], ShardedValue] = {}
        self._readers: dict[str, list[Op]] = {}
        self._rows: set[str] = set()

    def inner(self, prefix: str, scan: Scan) -> "BodyBuilder":
        """Return a builder for the body of `scan` that writes to the same table of buffers."""
        made = BodyBuilder(
            self.wanted,
            self.weights,
            self.buffers,
            self.sizes,
            prefix,
            self,
            self.moves,
            self.late,
            self.updates,
            self.groups,
            self.kept,
        )
        made.unreduced = self.unreduced
        made._shared = frozenset(tensor.name for tensor in scan.shared)
        made._apart = scan.apart
        made._summed = frozenset(inside.name for inside, _ in scan.sums)
        return made

    def begin_pass(self) -> None:
        """Begin a pass of the step, with nodes and gathered copies of its own."""
        self.nodes = []
        self._copies = {}

    def note_readers(self, ops: Sequence[Op]) -> None:
        """Record the readers of each tensor before the operations are emitted."""
        for op in ops:
            for tensor in op.inputs:
                self._readers.setdefault(tensor.name, []).append(op)

    def note_rows(self, tensor: Tensor) -> None:
        """Record that the rows of an exchanged table are to be exchanged, or their gradients."""
        self._rows.add(tensor.name)

    def layout_of(self, tensor: Tensor) -> Layout:
        """Return the layout that the plan gives a tensor; a gradient has that of the update."""
        return self.updates.get(tensor.primal) or self.stored_layout_of(tensor)

    def stored_layout_of(self, tensor: Tensor) -> Layout:
        """Return the layout that the plan gives a tensor, or that of which it is the gradient."""
        return self.wanted[tensor.primal or tensor.name]

    def is_weight_gradient(self, tensor: Tensor) -> bool:
        """Return True if the tensor is the gradient of a parameter, or a contribution to it."""
        return tensor.primal in self.weights

    def stays_partial(self, tensor: Tensor) -> bool:
        """Return True for a tensor of which devices keep their terms to the end of the pass."""
        return self.late and self.is_weight_gradient(tensor)

    def finished(self, tensor: Tensor) -> ShardedValue:
        """Return the value of a tensor as it leaves the body: reduced, or the terms of it."""
        return self.value_of(tensor) if self.stays_partial(tensor) else self.reduced(tensor)

    def leave(self, weight: str, gradient: Tensor) -> str:
        """Return the key of a weight's gradient as it leaves the pass; note terms that are left."""
        value = self.finished(gradient)
        if self.late:
            local = LocalShape(gradient.dims, value.layout)
            self.unreduced[weight] = UnreducedGradient(local, value.partial)
        return value.key

    def add_input(self, tensor: Tensor, part: ShardedValue | None = None) -> ShardedValue:
        """Add a tensor from outside this body, in the layout that the plan gives it.

        part: the part of it that an iteration of a loop leaves; terms stay terms.
        """
        value = ShardedValue(self.prefix + tensor.name, tensor, self.layout_of(tensor))
        if part is not None and self.stays_partial(tensor):
            value = replace(value, layout=part.layout, partial=part.partial)
        self.held[tensor.name] = value
        category = STATE if tensor.role is TensorRole.STATE else "activations"
        self.buffers.setdefault(
            value.key, Buffer(LocalShape(tensor.dims, value.layout), tensor.dtype, category)
        )
        return value

    def saved(self, tensor: Tensor) -> ShardedValue:
        """Return the value of a tensor that a loop saves, in the layout in which it does."""
        layout = self.kept.get(tensor.name)
        if layout is None:
            return self.reduced(tensor)
        return self.value_for(tensor, dict(zip(tensor.dims, layout, strict=True)))

    def add_load(self, tensor: Tensor) -> ShardedValue:
        """Add a tensor that a loop saved, in the layout in which it did."""
        value = self.add_input(tensor)
        layout = self.kept.get(tensor.name)
        if layout is not None:
            value = replace(value, layout=layout)
            self.held[tensor.name] = value
            self.buffer(value.key, LocalShape(tensor.dims, layout), tensor.dtype, "activations")
        return value

    def value_of(self, tensor: Tensor) -> ShardedValue:
        """Return the current value of a tensor, which may still be partial."""
        if self.outer and tensor.name in self._shared:
            return self.outer.value_of(tensor)
        return self.held.get(tensor.name) or self.add_input(tensor)

    def reduced(self, tensor: Tensor) -> ShardedValue:
        """Return the value of a tensor with all its terms added up."""
        value = self.value_of(tensor)
        return self.settle(value) if value.partial else value

    def buffer_for(self, tensor: Tensor, split: Split) -> str:
        """Return the key of a buffer with the tensor divided as `split` says, or less divided."""
        return self.value_for(tensor, split).key

    def value_for(self, tensor: Tensor, split: Split) -> ShardedValue:
        """Return the tensor divided as `split` says, or less divided.

        Tensors that all iterations of a loop share are resharded once, before the loop, unless
        the iterations stand `apart`.
        """
        if self.outer and tensor.name in self._shared:
            apart = self._apart
            value = self.outer.reduced(tensor) if apart else self.outer.value_for(tensor, split)
            self.outside[value.key] = None
            if not apart:
                return value
        else:
            value = self.reduced(tensor)
        target = tuple(split.get(dim, ()) for dim in tensor.dims)
        steps = list(reshard(value.layout, (), target))
        if not steps:
            return value
        wanted = (tensor.name, steps[-1].after)
        if wanted not in self._copies:
            needed = frozenset(axis for axes in split.values() for axis in axes)
            self._copies[wanted] = self.reshard(value, target, needed)
        return self._copies[wanted]

    def unused(self, key: str) -> str:
        """Return a key of a buffer that is not declared yet."""
        while key in self.buffers:
            key += "'"
        return key

    def settle(self, value: ShardedValue) -> ShardedValue:
        """Bring a fresh result into the layout that the plan gives it."""
        settled = self.reshard(value, self.layout_of(value.tensor))
        self.held[value.tensor.name] = settled
        return settled

    def reduced_term(self, term: ShardedValue, target: Layout, kept: Axes = ()) -> ShardedValue:
        """Bring a term of a sum to `target`; later readers (to save it) get it in that layout.

        kept: axes over which it stays partial.
        """
        left = tuple(axis for axis in term.partial if axis not in kept)
        settled = replace(self.reshard(replace(term, partial=left), target), partial=kept)
        if self.held.get(term.tensor.name) is term and self.layout_of(term.tensor) == target:
            self.held[term.tensor.name] = settled
        return settled

    def settle_results(self, values: Sequence[ShardedValue]) -> None:
        """Settle results at once, unless a later sum adds up their terms first.

        Sums over the iterations of a loop are settled after the loop.
        """
        for value in values:
            if value.tensor.name in self._summed or self.stays_partial(value.tensor):
                continue
            readers = self._readers.get(value.tensor.name, ())
            summed = readers and all(isinstance(op, Pointwise) and op.linear for op in readers)
            if not (value.partial and summed):
                self.settle(value)

    def reshard(
        self, value: ShardedValue, target: Layout, needed: frozenset[str] = frozenset()
    ) -> ShardedValue:
        """Emit the collectives that bring a value to the layout `target`.

        needed: axes that the reader divides other dimensions over.
        """
        whole = value
        rows = value.tensor.name in self._rows
        if rows and not value.partial and moves_apart(value.layout, target):
            pairs = zip(value.layout, target, strict=True)
            stays = tuple(tuple(a for a in have if a in want) for have, want in pairs)
            (step,) = reshard(value.layout, (), stays)
            value = self._collective(value, step, asked=True)
        for step in reshard(
            value.layout, value.partial, target, lambda: self._spare(whole, target)
        ):
            value = self._collective(value, step, _is_requested(value, step, needed, rows))
        return replace(value, layout=target, partial=())

    def _spare(self, value: ShardedValue, target: Layout) -> int:
        """Return the index of the largest dimension, of unsharded ones if there are any.

        Copies of a tensor are divided only where it has no dimensions.
        """
        one = [dim not in self.copies for dim in value.tensor.dims]
        free = [not have and not want for have, want in zip(value.layout, target, strict=True)]
        return self.sizes.largest(value.tensor.dims, tuple(zip(one, free, strict=True)))

    def _collective(self, value: ShardedValue, step: ReshardStep, asked: bool) -> ShardedValue:
        tensor = value.tensor
        key = self.unused(f"{value.key}@{'+'.join(step.axes)}")
        self.nodes.append(
            CollectiveNode(
                name=f"{step.kind}/{key}",
                phase=self.phase,
                kind=step.kind,
                axes=step.axes,
                payload=LocalShape(tensor.dims, _payload(tensor, step)),
                dtype=tensor.dtype,
                purpose=self._purpose(tensor),
                reads=(value.key,),
                writes=(key,),
                tensor=tensor.name,
                dim=_changed(tensor, value, step),
                maker="" if step.sharing else value.maker,
                asked=asked,
            )
        )
        category = "gathered weights" if tensor.role is TensorRole.PARAM else self._category(tensor)
        self.buffer(key, LocalShape(tensor.dims, step.after), tensor.dtype, category)
        return ShardedValue(key, tensor, step.after)

    def compute(
        self, op: Op, split: Split, reads: Sequence[str], name: str = ""
    ) -> tuple[ShardedValue, ...]:
        """Emit an operation; results are sharded as it is divided, partial over what it sums."""
        values = tuple(
            ShardedValue(
                self.prefix + (f"{name}:{t.name}" if name else t.name),
                t,
                tuple(split.get(dim, ()) for dim in t.dims),
                _summed(op, t, split),
                op.name,
            )
            for t in op.outputs
        )
        for value in values:
            tensor = value.tensor
            local = LocalShape(tensor.dims, value.layout)
            self.buffer(value.key, local, tensor.dtype, self._category(tensor))
            self.held[tensor.name] = value
        self.nodes.append(
            ComputeNode(
                name=self.prefix + (name or op.name),
                op=op,
                split=tuple((dim, axes) for dim, axes in split.items() if axes),
                reads=tuple(dict.fromkeys(reads)),
                writes=tuple(p.key for p in values),
            )
        )
        return values

    def accumulate(self, total: ShardedValue, op: Op, split: Split, term: ShardedValue) -> None:
        """Emit `op`, which adds `term` to `total`, a value of the outer builder."""
        self.outside[total.key] = None
        self.nodes.append(
            ComputeNode(
                name=self.prefix + op.name,
                op=op,
                split=tuple((dim, axes) for dim, axes in split.items() if axes),
                reads=(total.key, term.key),
                writes=(total.key,),
            )
        )

    def write_over(self, state: ShardedValue, op: StateUpdate, split: Split, value: str) -> None:
        """Emit `op`, which writes a value into a state; later operations read it from there."""
        self.nodes.append(
            ComputeNode(
                name=self.prefix + op.name,
                op=op,
                split=tuple((dim, axes) for dim, axes in split.items() if axes),
                reads=(state.key, value),
                writes=(state.key,),
            )
        )
        self.held[op.output.name] = replace(state, tensor=op.output)

    def buffer(self, key: str, local: LocalShape, dtype: str, category: str) -> None:
        """Declare a buffer that a node writes."""
        self.buffers[key] = Buffer(local, dtype, category)

    def _category(self, tensor: Tensor) -> str:
        return "unreduced gradients" if self.is_weight_gradient(tensor) else "activations"

    def _purpose(self, tensor: Tensor) -> Purpose:
        if tensor.role is TensorRole.PARAM:
            return Purpose.WEIGHT
        return Purpose.GRADIENT if self.is_weight_gradient(tensor) else Purpose.ACTIVATION


def _is_requested(
    value: ShardedValue, step: ReshardStep, needed: frozenset[str], rows: bool
) -> bool:
    """Return True if rules or annotations ask for a collective, False if it is implicit.

    Sums are what contraction over a sharded dimension means, and a gather frees an axis that the
    operation divides another dimension over (FSDP's batch, the heads of tensor parallelism). Any
    other gather or exchange between dimensions is an implicit resharding, except that tokens for
    experts have to leave the batch's axis for theirs, that heads are sharded in place of tokens
    only where the plan says so, and that `rows` of a table are how the compiler looks them up.
    """
    if step.kind is CollectiveKind.ALL_GATHER and not step.sharing:
        return needed.issuperset(step.axes)
    if step.kind is CollectiveKind.ALL_TO_ALL:
        changed = {plain_dim(dim) for dim in _dims_changed(value.tensor, value, step)}
        heads = not changed.isdisjoint(HEADS) and any(map(is_sequence, changed))
        return rows or "expert" in changed or heads
    return True


def _changed(tensor: Tensor, value: ShardedValue, step: ReshardStep) -> str:
    """Return the first dimension whose axes the collective changes."""
    return next(iter(_dims_changed(tensor, value, step)), "")


def _dims_changed(tensor: Tensor, value: ShardedValue, step: ReshardStep) -> tuple[str, ...]:
    triples = zip(tensor.dims, value.layout, step.after, strict=True)
    return tuple(dim for dim, before, after in triples if before != after)


def _payload(tensor: Tensor, step: ReshardStep) -> Layout:
    """Return the layout of the tensor that a collective moves; with experts, on their side.

    That side may be uneven: the busiest device receives the most.
    """
    to_experts = step.kind is CollectiveKind.ALL_TO_ALL and "expert" in tensor.dims
    if to_experts and step.after[tensor.dims.index("expert")]:
        return step.after
    return step.payload


def _summed(op: Op, output: Tensor, split: Split) -> Axes:
    """Return the axes over which `output` is a partial sum, of dimensions that only operands have.

    Sums that a group exchanges itself (`over`) are complete, and so are those of repeated heads
    where the narrow dimension is sharded like the wide one. A copy sums nothing.
    """
    if isinstance(op, Pointwise) and op.copies:
        return ()
    whole = set(output.dims)
    over: tuple[str, ...] = ()
    if isinstance(op, Pointwise):
        over = () if op.phase is Phase.BACKWARD else op.over
        whole.update(wide for narrow, wide in op.repeats if split.get(narrow) == split.get(wide))
    missing = {dim for t in op.inputs for dim in t.dims if dim not in whole and dim not in over}
    kept = {axis for dim in output.dims for axis in split.get(dim, ())}
    missing_axes = (axis for dim, axes in split.items() if dim in missing for axis in axes)
    return tuple(dict.fromkeys(axis for axis in missing_axes if axis not in kept))

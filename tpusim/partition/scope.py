"""One body of the program in the making: what has been emitted, and where each tensor lies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tpusim.graph import COPIES, NARROW, Op, Pointwise, Role, Scan, Tensor, whole_dim
from tpusim.partition.layout import Axes, Layout, Local, Step, reshard
from tpusim.partition.split import Split
from tpusim.partition.template import Buffer, Calc, Comm, Node, Purpose
from tpusim.phase import Phase
from tpusim.program import CollectiveKind

HEADS, TOKENS = ("heads", NARROW, COPIES), ("seq", "kv_seq")


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor as one device holds it at some point of the program.

    partial: axes over which its terms are still to be added up. maker: the operation that made it,
    empty once a collective or a sum has touched it.
    """

    key: str
    tensor: Tensor
    layout: Layout
    partial: Axes = ()
    maker: str = ""


class Scope:
    """The nodes of a body so far, and the pieces that it holds.

    wanted: the layout that the plan gives each forward tensor; a gradient lies as its primal.
    sizes: of the dimensions.
    prefix: sets the names of a backward body apart from the forward ones that it repeats.
    outer: the scope of the body around a loop's, which has what all of the loop's trips share.
    """

    def __init__(
        self, wanted: Mapping[str, Layout], weights: frozenset[str],
        buffers: dict[str, Buffer], sizes: Mapping[str, int], prefix: str = "",
        outer: "Scope | None" = None,
    ) -> None:  # fmt: skip
        self.wanted = wanted
        self.sizes = sizes
        self.weights = weights
        self.buffers = buffers
        self.prefix = prefix
        self.outer = outer
        self.phase = Phase.FORWARD
        self.nodes: list[Node] = []
        self.held: dict[str, Piece] = {}
        self.outside: dict[str, None] = {}
        self._shared: frozenset[str] = frozenset()
        self._summed: frozenset[str] = frozenset()
        self._copies: dict[tuple[str, Layout], Piece] = {}
        self._readers: dict[str, list[Op]] = {}

    def inner(self, prefix: str, scan: Scan) -> "Scope":
        """A scope for the body of `scan`, writing to the same table of buffers."""
        made = Scope(self.wanted, self.weights, self.buffers, self.sizes, prefix, self)
        made._shared = frozenset(tensor.name for tensor in scan.shared)
        made._summed = frozenset(inside.name for inside, _ in scan.sums)
        return made

    def begin(self) -> None:
        """Begin a pass of the step: its nodes are its own, and so are the copies it gathers."""
        self.nodes = []
        self._copies = {}

    def read_by(self, ops: Sequence[Op]) -> None:
        """Note who reads what, before the operations are emitted."""
        for op in ops:
            for tensor in op.inputs:
                self._readers.setdefault(tensor.name, []).append(op)

    def want(self, tensor: Tensor) -> Layout:
        """The layout that the plan gives a tensor."""
        return self.wanted[tensor.primal or tensor.name]

    def is_weight_gradient(self, tensor: Tensor) -> bool:
        """Whether the tensor is the gradient of a parameter, or a share of it."""
        return tensor.primal in self.weights

    def hold(self, tensor: Tensor) -> Piece:
        """Take a tensor that comes from outside of this body, lying as wanted."""
        piece = Piece(self.prefix + tensor.name, tensor, self.want(tensor))
        self.held[tensor.name] = piece
        self.buffers.setdefault(
            piece.key, Buffer(Local(tensor.dims, piece.layout), tensor.dtype, "activations")
        )
        return piece

    def piece(self, tensor: Tensor) -> Piece:
        """The tensor as it lies now, its terms perhaps not added up."""
        if self.outer and tensor.name in self._shared:
            return self.outer.piece(tensor)
        return self.held.get(tensor.name) or self.hold(tensor)

    def whole(self, tensor: Tensor) -> Piece:
        """The tensor with all its terms added up."""
        piece = self.piece(tensor)
        return self.settle(piece) if piece.partial else piece

    def need(self, tensor: Tensor, split: Split) -> str:
        """The key of a buffer that holds the tensor divided as `split` says, or less divided.

        What the trips of a loop share is brought to lie so before the loop, once.
        """
        if self.outer and tensor.name in self._shared:
            key = self.outer.need(tensor, split)
            self.outside[key] = None
            return key
        piece = self.whole(tensor)
        target = tuple(split.get(dim, ()) for dim in tensor.dims)
        steps = list(reshard(piece.layout, (), target))
        if not steps:
            return piece.key
        wanted = (tensor.name, steps[-1].after)
        if wanted not in self._copies:
            needed = frozenset(axis for axes in split.values() for axis in axes)
            self._copies[wanted] = self.reshard(piece, target, needed)
        return self._copies[wanted].key

    def settle(self, piece: Piece) -> Piece:
        """Bring a fresh result to lie as the plan wants it."""
        settled = self.reshard(piece, self.want(piece.tensor))
        self.held[piece.tensor.name] = settled
        return settled

    def added_up(self, term: Piece, target: Layout) -> Piece:
        """Bring a term of a sum to `target`; who reads it later (to save it) finds it so."""
        settled = self.reshard(term, target)
        if self.held.get(term.tensor.name) is term and self.want(term.tensor) == target:
            self.held[term.tensor.name] = settled
        return settled

    def finish(self, pieces: Sequence[Piece]) -> None:
        """Settle results at once, unless a sum is going to add up their terms first.

        What a loop adds up over its trips is settled behind the loop.
        """
        for piece in pieces:
            if piece.tensor.name in self._summed:
                continue
            readers = self._readers.get(piece.tensor.name, ())
            summed = readers and all(isinstance(op, Pointwise) and op.linear for op in readers)
            if not (piece.partial and summed):
                self.settle(piece)

    def reshard(self, piece: Piece, target: Layout, needed: frozenset[str] = frozenset()) -> Piece:
        """Emit the collectives that bring a piece to `target`.

        needed: axes that the reader divides other dimensions over.
        """
        spare = self._spare(piece, target)
        for step in reshard(piece.layout, piece.partial, target, spare):
            piece = self._collective(piece, step, _asked(piece, step, needed))
        return replace(piece, layout=target, partial=())

    def _spare(self, piece: Piece, target: Layout) -> int:
        """The largest dimension, if there is one among those that nothing shards."""
        free = [not have and not want for have, want in zip(piece.layout, target, strict=True)]
        sizes = [self.sizes[dim] for dim in piece.tensor.dims]
        return max(range(len(sizes)), key=lambda dim: (free[dim], sizes[dim]), default=0)

    def _collective(self, piece: Piece, step: Step, asked: bool) -> Piece:
        tensor = piece.tensor
        key = f"{piece.key}@{'+'.join(step.axes)}"
        while key in self.buffers:
            key += "'"
        self.nodes.append(
            Comm(
                name=f"{step.kind}/{key}", phase=self.phase, kind=step.kind, axes=step.axes,
                payload=Local(tensor.dims, _payload(tensor, step)), dtype=tensor.dtype,
                purpose=self._purpose(tensor), reads=(piece.key,), writes=(key,),
                tensor=tensor.name, dim=_changed(tensor, piece, step),
                maker="" if step.sharing else piece.maker, asked=asked,
            )
        )  # fmt: skip
        category = "gathered weights" if tensor.role is Role.PARAM else self._category(tensor)
        self.buffer(key, Local(tensor.dims, step.after), tensor.dtype, category)
        return Piece(key, tensor, step.after)

    def calc(self, op: Op, split: Split, reads: Sequence[str], name: str = "") -> tuple[Piece, ...]:
        """Emit an operation; its results lie as it is divided, partial over what it summed."""
        pieces = tuple(
            Piece(
                self.prefix + (f"{name}:{t.name}" if name else t.name), t,
                tuple(split.get(dim, ()) for dim in t.dims), _summed(op, t, split), op.name,
            )
            for t in op.outputs
        )  # fmt: skip
        for piece in pieces:
            tensor = piece.tensor
            local = Local(tensor.dims, piece.layout)
            self.buffer(piece.key, local, tensor.dtype, self._category(tensor))
            self.held[tensor.name] = piece
        self.nodes.append(
            Calc(
                name=self.prefix + (name or op.name), op=op,
                split=tuple((dim, axes) for dim, axes in split.items() if axes),
                reads=tuple(dict.fromkeys(reads)), writes=tuple(p.key for p in pieces),
            )
        )  # fmt: skip
        return pieces

    def add_to(self, total: Piece, op: Op, split: Split, share: Piece) -> None:
        """Emit `op`, which adds `share` to `total`, a piece of the scope around this one."""
        self.outside[total.key] = None
        self.nodes.append(
            Calc(
                name=self.prefix + op.name, op=op,
                split=tuple((dim, axes) for dim, axes in split.items() if axes),
                reads=(total.key, share.key), writes=(total.key,),
            )
        )  # fmt: skip

    def buffer(self, key: str, local: Local, dtype: str, category: str) -> None:
        """Declare a buffer that a node writes."""
        self.buffers[key] = Buffer(local, dtype, category)

    def _category(self, tensor: Tensor) -> str:
        return "unreduced gradients" if self.is_weight_gradient(tensor) else "activations"

    def _purpose(self, tensor: Tensor) -> Purpose:
        if tensor.role is Role.PARAM:
            return Purpose.WEIGHT
        return Purpose.GRADIENT if self.is_weight_gradient(tensor) else Purpose.ACTIVATION


def _asked(piece: Piece, step: Step, needed: frozenset[str]) -> bool:
    """Whether rules or annotations ask for a collective.

    Sums are what contraction over a sharded dimension means, and a gather frees an axis that the
    operation divides another dimension over (FSDP's batch, the heads of tensor parallelism). A
    gather for any other reason, and an exchange between dimensions, nobody asks for; but what goes
    to experts and comes back has to leave the batch's axis for theirs, and heads are sharded in
    place of tokens only where the plan says so.
    """
    if step.kind is CollectiveKind.ALL_GATHER and not step.sharing:
        return needed.issuperset(step.axes)
    if step.kind is CollectiveKind.ALL_TO_ALL:
        changed = {whole_dim(dim) for dim in _dims_changed(piece.tensor, piece, step)}
        heads = not changed.isdisjoint(HEADS) and not changed.isdisjoint(TOKENS)
        return "expert" in changed or heads
    return True


def _changed(tensor: Tensor, piece: Piece, step: Step) -> str:
    """The first dimension whose axes the collective changes."""
    return next(iter(_dims_changed(tensor, piece, step)), "")


def _dims_changed(tensor: Tensor, piece: Piece, step: Step) -> tuple[str, ...]:
    triples = zip(tensor.dims, piece.layout, step.after, strict=True)
    return tuple(dim for dim, before, after in triples if before != after)


def _payload(tensor: Tensor, step: Step) -> Layout:
    """The layout of what a collective moves; an exchange with experts, as these have it.

    That side may be uneven: the busiest device receives the most.
    """
    to_experts = step.kind is CollectiveKind.ALL_TO_ALL and "expert" in tensor.dims
    if to_experts and step.after[tensor.dims.index("expert")]:
        return step.after
    return step.payload


def _summed(op: Op, output: Tensor, split: Split) -> Axes:
    """The axes over which `output` is a partial sum: of dimensions that only the operands have.

    Sums that a group exchanges itself (`over`) are whole, and so are repeated heads' where the
    narrow dimension is sharded like the wide one. A copy sums nothing of the tensors beside it.
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
    return tuple(
        axis for dim, axes in split.items() if dim in missing for axis in axes if axis not in kept
    )

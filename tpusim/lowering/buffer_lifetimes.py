"""Buffer lifetimes of a program, over all of its bodies."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.graph import Attention, Einsum, Tensor, is_sequence, plain_dim
from tpusim.lowering.body_entries import (
    CollectiveMatmul,
    Entry,
    HostCopy,
    LayerParts,
    PlannedCollective,
)
from tpusim.lowering.body_lifetimes import BodyLifetimes, BufferEvents
from tpusim.lowering.op_work import Buffers, buffer_bytes, padding_bytes
from tpusim.lowering.rotations import rotations
from tpusim.lowering.row_sums import row_sums
from tpusim.partition import DTYPE_BYTES, ComputeNode, LoopNode, Node, Sizes
from tpusim.program import (
    LANES,
    SUBLANES,
    Alloc,
    CollectiveKind,
    Mode,
    Number,
    at_least,
    matrix_elements,
    round_up,
)

_SAVED_CATEGORIES = {
    Phase.FORWARD: "saved activations",
    Phase.BACKWARD: "saved for weight gradients",
}
"""The name of saved tensors in the memory table, by the pass that saves them."""


class _Kernels(NamedTuple):
    """The tensors that attention kernels read and write, and the dimensions of their lanes.

    A kernel has the elements of a head in the lanes, and so do stacks of queries, keys and values.
    Narrower heads leave lanes empty: of heads of 64, these take twice their bytes (a diffusion
    U-Net on v4, v5p and v6e, language models that save them on v5p and v5e; libtpu 0.0.42.1).
    """

    tensors: frozenset[str]
    dims: frozenset[str]

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "_Kernels":
        """Return those of all loops."""
        found = [n for n in nodes if isinstance(n, ComputeNode) and isinstance(n.op, Attention)]
        inner = [cls.of(node.body) for node in nodes if isinstance(node, LoopNode)]
        return cls(
            frozenset(k for n in found for k in (*n.reads, *n.writes)).union(
                *(each.tensors for each in inner)
            ),
            frozenset(n.op.inputs[i].dims[-1] for n in found for i in (0, 2)).union(
                *(each.dims for each in inner)
            ),
        )


def _tiled(one: Alloc, nbytes: Number) -> Alloc:
    """Return an allocation with the bytes that it takes in tiles."""
    return replace(one, bytes=nbytes, padded=one.padded + nbytes - one.bytes)


def _matrices(nodes: Sequence[Node]) -> dict[str, tuple[str, str]]:
    """Return what the matmuls of attention through HBM read and write, each with its matrix.

    That is its two dimensions that are not batched. One is in the lanes and the other in the
    sublanes, as it takes less (libtpu 0.0.42.1): of 197 positions and heads of 64, the positions
    (256 of 197); scores of 197 x 197 take 200 x 256.
    """
    found: dict[str, tuple[str, str]] = {}
    for node in nodes:
        if isinstance(node, LoopNode):
            found |= _matrices(node.body)
        elif isinstance(node, ComputeNode) and isinstance(node.op, Einsum):
            op = node.op
            batched = {*op.lhs.dims} & {*op.rhs.dims} & {*op.output.dims}
            tensors = zip((*node.reads[:2], *node.writes[:1]), (*op.inputs, op.output), strict=True)
            for key, tensor in tensors if len(batched) > 1 else ():
                apart = [dim for dim in tensor.dims if dim not in batched]
                if len(apart) > 1:
                    found[key] = apart[0], apart[-1]
    return found


class BufferLifetimes:
    """The buffers of one program, over all of its bodies.

    finished: gradients outside of all loops, which wait for the optimizer.
    sliced_late: those of which the optimizer takes its part, as nothing adds them up before.
    gradients: weight -> tensor that holds its gradients inside of a loop.
    apart: weight -> iterations that have a tensor each for its gradient, in place of a stack.
    offload: saved tensors that no loop stacks.
    last_loader: saved tensor -> the loop that is the last to read it.
    whole: weight -> the whole gradient of a layer that is held, see `_sliced_by_reader`.
    taken_over: gradient -> the given buffer that it was written over.
    names: of the last body, the name under which each buffer was allocated.
    ahead: of the last body, the buffers that are there for all iterations before the first.
    inside: of the last body, the results that their readers compute.
    """

    def __init__(
        self,
        sizes: Sizes,
        buffers: Buffers,
        grad_dtype: str,
        gradients: frozenset[str],
        offload: Collection[str] = (),
        nodes: Sequence[Node] = (),
        repeated: bool = False,
        observed: bool = True,
    ) -> None:
        """Take what all bodies share.

        repeated: the gradients are added to those of other microbatches.
        observed: bodies hold what compiled programs alone show, see `rotations.py`.
        """
        self.sizes = sizes
        self.buffers = buffers
        self.grad_dtype = grad_dtype
        self.finished = gradients
        self.sliced_late = frozenset() if repeated else gradients
        self.offload = frozenset(offload)
        self.gradients: dict[str, str] = {}
        self.apart: dict[str, int] = {}
        self.last_loader = {
            tensor.name: node.scan.name
            for node in nodes
            if isinstance(node, LoopNode)
            for tensor in node.scan.loads
        }
        self.taken_over: dict[str, str] = {}
        self.whole: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.ahead: dict[str, Alloc] = {}
        self.inside: Collection[str] = ()
        self._saved: dict[str, str] = {}
        self._bytes: dict[str, Number] = {}
        self._allocs: dict[str, Alloc] = {}
        self._kernels = _Kernels.of(nodes)
        self._matrices = _matrices(nodes)
        self._observed = observed

    def lives(
        self,
        passes: Sequence[Sequence[Entry]],
        kept: Sequence[str],
        loads: Sequence[str] = (),
        outside: Collection[str] = (),
        given: Collection[str] = (),
        loop_node: LoopNode | None = None,
    ) -> list[list[BufferEvents]]:
        """Return the events of each entry: a buffer lives from its writer to its last reader.

        The passes of the body of `loop_node` are those of `LayerParts` where it is not scanned.

        Buffers in `kept` outlive the body, and those in `outside` are allocated and freed around
        it; those in `given` are there before it, and end with their last reader. `loads` are copied
        out of their stacks by their first reader. A result that comes an
        iteration late goes to its stack at once, and is read from there.
        """
        entries = [entry for one in passes for entry in one]
        apart = loop_node is not None and loop_node.scan.unrolled
        first = len(passes[0]) if apart else 0
        saved, read = self._left_apart(loop_node, entries)
        rings = {i: e for i, e in enumerate(entries) if apart and _is_ahead(e)}
        self.ahead = {
            key: saved.get(key, self.alloc(key)) for ring in rings.values() for key in ring.writes
        }
        read |= {key: key for key in self.ahead}
        waits = self._waiting_inputs(loop_node, passes)
        carried = {} if apart or loop_node is None else self.carries(loop_node)
        before = {**dict.fromkeys((*given, *carried.values())), **read}
        before |= {key: a.tensor for key, a in waits.items()}
        body = BodyLifetimes(self, entries, kept, loads, outside, before, saved, carried)
        if waits:
            body.lives[first].allocs.extend(waits.values())
        body.saved = {key: one for key, one in saved.items() if key not in self.ahead}
        for place, ring in rings.items():
            body.lives[place].frees.extend(_second(key) for key in ring.writes if key in saved)
        for place, entry in enumerate(entries):
            body.load(place, entry)
            body.write(place, entry)
            if isinstance(entry, LoopNode):
                self._stacks(entry, body.lives[place])
            if isinstance(entry, HostCopy):
                body.leave(place, entry)
        beside = (
            *row_sums(entries, self.buffers, self.sizes),
            *(rotations(entries, self.buffers, self.sizes) if self._observed else ()),
        )
        for begin, end, one in beside:
            body.lives[begin].allocs.append(one)
            body.lives[end].frees.append(one.tensor)
        if body.saved:
            body.lives[first].allocs.extend(body.saved.values())
        self.names, self.inside = body.names, body.inside
        rest = iter(body.lives)
        return [[next(rest) for _ in one] for one in passes]

    def carries(self, loop_node: LoopNode) -> dict[str, str]:
        """Return what an iteration leaves to the next, each with the buffer that it enters in.

        Left out is what no iteration reads, and what changes its size on the way.
        """
        read = {key for node in loop_node.body for key in node.reads}
        ways = zip(loop_node.reads, loop_node.carried, loop_node.writes, strict=False)
        return {
            left: entered
            for before, (entered, left), after in ways
            if entered in read and left != entered
            if all(bool(self.size(k) == self.size(entered)) for k in (before, left, after))
        }

    def size(self, key: str) -> Number:
        """Return the bytes of a buffer on one device."""
        found = self._bytes.get(key)
        if found is None:
            found = self._bytes[key] = buffer_bytes(self.buffers[key], self.sizes)
        return found

    def alloc(self, key: str) -> Alloc:
        """Return the allocation of a buffer; finished gradients have the dtype of their stacks."""
        found = self._allocs.get(key)
        if found is None:
            found = self._allocs[key] = self._new_alloc(key)
        return found

    def _new_alloc(self, key: str) -> Alloc:
        buffer = self.buffers[key]
        one = Alloc(key, self.size(key), buffer.category, padding_bytes(buffer, self.sizes))
        if key in self._kernels.tensors:
            one = self._in_lanes(one, key)
        elif key in self._matrices:
            one = self._in_tiles(one, key)
        else:
            one = self._in_sublanes(one, key)
        return self._as_gradient(one, key) if key in self.finished else one

    def stacked(self, key: str) -> Alloc:
        """Return the allocation of a buffer within a stack, in HBM or on the host.

        One on the host has the same tiles, so what is copied there and back moves with its padding:
        21 of 21 programs, and kernels' heads of 32 and 64 in the lanes of the host's stacks in five
        more (15 of 15 stacks; v4, v5e, v5p and v6e, libtpu 0.0.42.1).
        """
        one = self.alloc(key)
        dims = self.buffers[key].local.dims
        if dims and dims[-1] in self._kernels.dims and any(map(is_sequence, dims)):
            return self._in_lanes(one, key)
        return one

    def _in_lanes(self, one: Alloc, key: str) -> Alloc:
        """Return the allocation of a tensor with the elements of a head in the lanes."""
        local = self.buffers[key].local
        width = self.sizes.extent(local.dims[-1], local.split().get(local.dims[-1], ()))
        tiled = self.size(key) * (-(-width // LANES) * LANES / width)
        return _tiled(one, tiled)

    def _in_tiles(self, one: Alloc, key: str) -> Alloc:
        """Return the allocation of a tensor in the tiles of its matrices."""
        split = self.buffers[key].local.split()
        rows, columns = (self.sizes.extent(d, split.get(d, ())) for d in self._matrices[key])
        tiled = self.size(key) * (matrix_elements(rows, columns) / (rows * columns))
        return _tiled(one, tiled)

    def _in_sublanes(self, one: Alloc, key: str) -> Alloc:
        """Return the allocation of an activation with its positions in the sublanes.

        From more than half a tile's lanes on, the examples are in the sublanes.
        """
        local = self.buffers[key].local
        if (
            len(local.dims) < 3
            or plain_dim(local.dims[0]) != "batch"
            or not is_sequence(local.dims[1])
        ):
            return one
        split = local.split()
        examples, rows = (self.sizes.extent(d, split.get(d, ())) for d in local.dims[:2])
        few = 1 - at_least(examples, LANES // 2 + 1)
        tiled = self.size(key) * (1 + few * (round_up(rows, SUBLANES) / rows - 1))
        return _tiled(one, tiled)

    def _as_gradient(self, one: Alloc, key: str) -> Alloc:
        """Return the allocation in the dtype in which gradients are kept for the optimizer."""
        narrow = DTYPE_BYTES[self.grad_dtype] / self.sizes.itemsize(self.buffers[key].dtype)
        return replace(
            one, category="gradients", bytes=one.bytes * narrow, padded=one.padded * narrow
        )

    def _stacks(self, loop_node: LoopNode, life: BufferEvents) -> None:
        """Add the stacks of a loop: tensors saved for a later loop, and the layers' gradients.

        The last loop that reads a stack frees it.
        """
        scan = loop_node.scan
        if scan.unrolled:
            for tensor, key in zip(scan.saves, loop_node.saves, strict=True):
                self._saved[tensor.name] = self._saved_apart(tensor, key, scan.phase).tensor
            for weight, key in loop_node.gradients:
                self.gradients[weight] = self._gradient_apart(key).tensor
                self.apart[weight] = scan.trips
            return
        for tensor in scan.loads:
            if tensor.name in self._saved and self.last_loader.get(tensor.name) == scan.name:
                life.frees.append(self._saved.pop(tensor.name))
        for tensor, key in zip(scan.saves, loop_node.saves, strict=True):
            if tensor.short not in self.offload:
                stack = self._as_saved(
                    self._stack(key, scan.trips, _SAVED_CATEGORIES[scan.phase]), tensor
                )
                self._saved[tensor.name] = stack.tensor
                life.allocs.append(stack)
        for weight, key in loop_node.gradients:
            stack = self._as_gradient(self._stack(key, loop_node.scan.trips, "gradients"), key)
            self.gradients[weight] = stack.tensor
            life.allocs.append(stack)

    def allocated_ahead(self, gradients: Collection[str]) -> tuple[Alloc, ...]:
        """Return what an iteration of the last body has before the first: results of its rings.

        A ring for one of the `gradients` adds up two parts, one for each direction.
        """
        seconds = (
            replace(self.alloc(key), tensor=_second(key)) for key in self.ahead if key in gradients
        )
        return (*self.ahead.values(), *seconds)

    @property
    def layer_gradients(self) -> dict[str, str]:
        """The tensor that holds a weight's gradients inside of a loop, by weight."""
        return self.gradients | self.whole

    def _left_apart(
        self, loop_node: LoopNode | None, entries: Sequence[Entry]
    ) -> tuple[dict[str, Alloc], dict[str, str]]:
        """Return what each layer leaves and reads without stacks, where layers are not scanned.

        The allocations that an iteration leaves, by buffer: saved tensors, and gradients; and the
        buffers of which it has the last reader, each with the name under which it was left.
        """
        if loop_node is None or not loop_node.scan.unrolled:
            return {}, {}
        scan = loop_node.scan
        saves = zip(scan.saves, loop_node.saves, strict=True)
        left = {key: self._saved_apart(tensor, key, scan.phase) for tensor, key in saves}
        whole = _sliced_by_reader(entries)
        for weight, key in loop_node.gradients:
            if key in whole:
                self.whole[weight] = whole[key]
                left[whole[key]] = replace(self.alloc(whole[key]), category="gradients")
            else:
                left[key] = self._gradient_apart(key)
        loads = zip(scan.loads, loop_node.loads, strict=True)
        read = {
            key: self._saved[tensor.name]
            for tensor, key in loads
            if tensor.name in self._saved and self.last_loader.get(tensor.name) == scan.name
        }
        return left, read

    def _waiting_inputs(
        self, loop_node: LoopNode | None, passes: Sequence[Sequence[Entry]]
    ) -> dict[str, Alloc]:
        """Return the allocations of what an iteration leaves to the next and what waits reads."""
        if loop_node is None or not loop_node.scan.unrolled:
            return {}
        read = {key for entry in LayerParts(*passes).after for key in entry.reads}
        carried = [key for key, _ in loop_node.carried if key in read]
        return {key: replace(self.alloc(key), tensor=f"{key} (waiting)") for key in carried}

    def _saved_apart(self, tensor: Tensor, key: str, phase: Phase) -> Alloc:
        one = replace(self.alloc(key), category=_SAVED_CATEGORIES[phase])
        return self._kept(self._as_saved(one, tensor))

    def _gradient_apart(self, key: str) -> Alloc:
        return self._kept(self._as_gradient(self.alloc(key), key))

    def _kept(self, one: Alloc) -> Alloc:
        """Return what a layer leaves: under a name of its own if it is a copy in another dtype."""
        copied = not bool(one.bytes == self.size(one.tensor))
        return replace(one, tensor=f"{one.tensor} (copy)") if copied else one

    def _as_saved(self, stack: Alloc, tensor: Tensor) -> Alloc:
        """Return a stack in the dtype in which the tensor is saved."""
        narrow = self.sizes.itemsize(tensor.saved_dtype) / self.sizes.itemsize(tensor.dtype)
        return replace(stack, bytes=stack.bytes * narrow, padded=stack.padded * narrow)

    def _stack(self, key: str, trips: int, category: str) -> Alloc:
        one = self.stacked(key)
        return Alloc(f"{key} x{trips}", trips * one.bytes, category, trips * one.padded)


def _is_ahead(entry: Entry) -> bool:
    """Return True for a ring whose result has its buffer before the first iteration."""
    return isinstance(entry, CollectiveMatmul) and entry.ahead


def _second(key: str) -> str:
    """Return the name of the other accumulator of a ring that scatters: one for each direction."""
    return f"{key} (other way)"


def _sliced_by_reader(entries: Sequence[Entry]) -> dict[str, str]:
    """Return shards that the optimizer slices, each with the whole gradient that is held for it.

    As of `_sliced_late`: where layers are not scanned, nothing copies the shard to a stack (v4, v5p
    and v6e without rings, 5 of 5: one layer's weights more for each layer; libtpu 0.0.42.1).
    """
    return {
        key: collective.reads[0]
        for entry in entries
        if isinstance(entry, PlannedCollective)
        and entry.algorithm == CollectiveKind.ALL_REDUCE
        and entry.mode is Mode.SYNC
        for collective in entry.collectives
        if collective.kind is CollectiveKind.REDUCE_SCATTER
        for key in collective.writes
    }

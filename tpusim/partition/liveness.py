"""When each buffer is taken and given back, from the order of a body's entries."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tpusim.graph import Pointwise
from tpusim.partition.passes import Entry, HostCopy, Planned, Ring, late_results, on_core
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.template import Calc, Nest
from tpusim.partition.work import Buffers, buffer_bytes, padding_bytes
from tpusim.phase import Phase
from tpusim.program import Alloc, Number


@dataclass(slots=True)
class Life:
    """What an entry takes when it starts and gives back when it ends."""

    allocs: list[Alloc] = field(default_factory=list)
    frees: list[str] = field(default_factory=list)


class Memory:
    """The buffers of one program, over all of its bodies.

    finished: gradients outside of all loops, which wait for the optimizer. gradients: what holds
    those of each weight inside of one. offload: saved tensors that no loop stacks.
    """

    def __init__(
        self, sizes: Sizes, buffers: Buffers, grad_dtype: str, gradients: frozenset[str],
        offload: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.sizes = sizes
        self.buffers = buffers
        self.grad_dtype = grad_dtype
        self.finished = gradients
        self.offload = frozenset(offload)
        self.gradients: dict[str, str] = {}
        self._saved: list[tuple[str, ...]] = []

    def lives(self, entries: Sequence[Entry], kept: Sequence[str]) -> list[Life]:
        """The life of each entry: a buffer lives from its writer to its last reader.

        An element-wise group writes over an operand that nobody reads after it. Buffers in `kept`
        outlive the body. A result that comes a trip late goes to its stack at once, and is read
        from there. A copy from the host is taken a trip before the one that gives it back. A loop
        takes nothing itself: what it needs all the while is taken by the operation before it, and
        given back by the one after it.
        """
        late = late_results(entries)
        last = {
            key: place
            for place, entry in enumerate(entries)
            for key in entry.reads
            if key not in late
        }
        result = [Life() for _ in entries]
        names: dict[str, str] = {}
        for place, entry in enumerate(entries):
            over = self._overwritten(entry, place, last, names, kept)
            for key in entry.writes:
                end = None if key in kept else last.get(key, place)
                names[key] = over.pop(key, key)
                if names[key] == key:
                    result[place].allocs.append(self._alloc(key))
                else:
                    result[place].frees.remove(names[key])
                if end is not None:
                    result[end].frees.append(names[key])
            if isinstance(entry, Nest):
                self._stacks(entry, result[place])
            if isinstance(entry, HostCopy) and not names.keys() >= set(entry.reads):
                before = (i for i in range(place) if on_core(entries[i]))
                copied = self._as_copy(entry)
                result[max(before, default=place)].allocs.append(copied)
                result[place].frees.append(copied.tensor)
        return _beside_loops(entries, result)

    def _overwritten(
        self, entry: Entry, place: int, last: dict[str, int], names: dict[str, str],
        kept: Sequence[str],
    ) -> dict[str, str]:  # fmt: skip
        """Which results take the place of which operands: of the same size, and dead after it.

        What outlives the body keeps its own name, by which it is freed later.
        """
        if not (isinstance(entry, Calc) and isinstance(entry.op, Pointwise)):
            return {}
        dying = [key for key in entry.reads if last.get(key) == place and key in names]
        pairs = {}
        for key in (key for key in entry.writes if key not in kept):
            match = next((k for k in dying if self._size(k) == self._size(key)), None)
            if match is not None:
                dying.remove(match)
                pairs[key] = names[match]
        return pairs

    def _as_copy(self, copy: HostCopy) -> Alloc:
        """The copy of what a trip was given, which the next trip writes over."""
        return replace(self._alloc(copy.key), tensor=f"{copy.key} (to host)")

    def _size(self, key: str) -> Number:
        return buffer_bytes(self.buffers[key], self.sizes)

    def _alloc(self, key: str) -> Alloc:
        buffer = self.buffers[key]
        one = Alloc(
            key, buffer_bytes(buffer, self.sizes), buffer.category,
            padding_bytes(buffer, self.sizes),
        )  # fmt: skip
        return self._as_gradient(one, key) if key in self.finished else one

    def _as_gradient(self, one: Alloc, key: str) -> Alloc:
        """The allocation in the dtype in which gradients wait for the optimizer."""
        narrow = DTYPE_BYTES[self.grad_dtype] / self.sizes.itemsize(self.buffers[key].dtype)
        return replace(
            one, category="gradients", bytes=one.bytes * narrow, padded=one.padded * narrow
        )

    def _stacks(self, nest: Nest, life: Life) -> None:
        """What a loop stacks: activations saved for the backward loop, gradients of all layers.

        Backward loops come in the reverse order of the forward ones.
        """
        if nest.scan.phase is Phase.BACKWARD:
            life.frees.extend(self._saved.pop())
        else:
            kept = zip(nest.scan.saves, nest.saves, strict=True)
            keys = (key for tensor, key in kept if tensor.short not in self.offload)
            stacks = [self._stack(key, nest.scan.trips, "saved activations") for key in keys]
            self._saved.append(tuple(stack.tensor for stack in stacks))
            life.allocs.extend(stacks)
        for weight, key in nest.gradients:
            stack = self._as_gradient(self._stack(key, nest.scan.trips, "gradients"), key)
            self.gradients[weight] = stack.tensor
            life.allocs.append(stack)

    def _stack(self, key: str, trips: int, category: str) -> Alloc:
        one = self._alloc(key)
        return Alloc(f"{key} x{trips}", trips * one.bytes, category, trips * one.padded)


def _beside_loops(entries: Sequence[Entry], lives: list[Life]) -> list[Life]:
    """Move the lives of loops to the operations of the core next to them."""
    plain = [place for place, entry in enumerate(entries) if on_core(entry)]
    for place, entry in enumerate(entries):
        if not isinstance(entry, Ring | Nest) or not plain:
            continue
        life, lives[place] = lives[place], Life()
        for alloc in life.allocs:
            lives[_taken_at(entries, place, plain, alloc.tensor)].allocs.append(alloc)
        after = min((i for i in plain if i > place), default=plain[-1])
        lives[after].frees.extend(life.frees)
    return lives


def _taken_at(entries: Sequence[Entry], place: int, plain: Sequence[int], key: str) -> int:
    """Which entry takes what the loop at `place` writes: the last operation of the core before it.

    Where the body begins with the loop, it is the first operation of the core, or a collective
    beside the core that reads it sooner and gives it back.
    """
    before = max((i for i in plain if i < place), default=None)
    if before is not None:
        return before
    following = range(place + 1, plain[0])
    sooner = (i for i in following if isinstance(entries[i], Planned) and key in entries[i].reads)
    return next(sooner, plain[0])

"""Buffers that a step keeps on the chip, from the operation that makes them to their last reader.

What is on the chip moves nothing to HBM. The compiler places buffers in CMEM where a chip has it,
and otherwise in what operations leave of VMEM (XLA's memory space assignment).
In 19 programs of systems of text and images (`experiments/plan_vs_compiler`, libtpu 0.0.42.1), of
the results of fusions that are read within four operations, those of 2 to 16 MiB are on the chip on
v4, v5e and v6e in 655 of 717 cases, of 16 to 32 MiB in 134 of 211, and of 64 MiB and more in 18 of
72; of those of 2 to 16 MiB that live longer, half are, and others come and go (`on_chip_visits`).
On v3 none is, and on v5p 79 of 264, by a rule that sizes do not tell.

Plans have it outside of loops, as of the layers of nets of images, and in the layers of servers,
which engines write out: with it a layer of Llama 3.1 70B on eight v6e takes 260 us for 512 tokens,
without 321, and 253 by the compiler's estimates (libtpu 0.0.42.1; all-reduces and attention
aside). In loops over layers programs compute element-wise groups again in each matmul that reads
them, which plans do not have; with neither of the two, scanned systems, 500 transformers and
published runs of small models are nearer than with the first alone. HBM is without those of all
bodies that are read within four operations: the others are copied there while they wait.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tpusim.graph import Attention, TokenRouting
from tpusim.hardware import Chip
from tpusim.lowering.body_entries import Entry, HostCopy, PlannedCollective
from tpusim.lowering.body_lifetimes import BufferEvents
from tpusim.partition import ComputeNode, LoopNode
from tpusim.plan import Compiler
from tpusim.program import Mode

MIB = 2.0**20

LARGEST = 64 * MIB
"""Bytes of the largest buffer that is placed on the chip. In five programs of ResNet-50 and SSD
(v4, v5e and v6e, 16 to 128 images a device; libtpu 0.0.42.1) 43 of 127 results of fusions of 32 to
64 MiB are there, and 8 of 59 larger ones. What programs read and write in HBM is nearest with it.
"""

LARGEST_OFF_HBM = 32 * MIB
"""Bytes of the largest buffer that no HBM is counted for."""


def on_chip_room(chip: Chip, compiler: Compiler) -> float:
    """Return the bytes that the buffers of a program can take on a chip.

    None in MaxText's style, whose recipes leave VMEM to operations (96 of 128 MiB on v6e). An ideal
    compiler has what it has without such flags. The chip's file says how many (`on_chip_room`).
    """
    if compiler.lowering != "ideal" and compiler.style != "plain":
        return 0.0
    return chip.compiler_rules.on_chip_room


NEAR = 4
"""Operations within which a buffer is read that takes no HBM."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The entries over which a buffer lives, and its bytes.

    length: the entries from the first to the last, without copies to and from the host.
    """

    first: int
    last: int
    bytes: float
    length: int


def placed_on_chip(
    entries: Sequence[Entry],
    lives: Sequence[BufferEvents],
    names: Mapping[str, str],
    room: float,
) -> dict[str, int]:
    """Return the buffers of a body that stay on the chip all of their life, each with 1.

    lives: the events of the entries.
    names: the name under which each buffer is allocated.
    room: bytes on the chip.

    Those that live shortest come first, and of equally short ones the smaller.
    """
    spans = _movable(entries, lives, names) if room else {}
    return dict.fromkeys(_that_fit(room, spans), 1)


def handed_on_chip(
    entries: Sequence[Entry], sizes: Mapping[str, float], names: Mapping[str, str], room: float
) -> dict[str, int]:
    """Return the buffers that a layer hands on to the next on the chip, each with 1.

    sizes: bytes of each of them. The smaller ones come first.
    names, room: see `placed_on_chip`.
    """
    touched = in_hbm(entries, names)
    placed: dict[str, int] = {}
    for key in sorted(sizes, key=lambda key: sizes[key]):
        if key not in touched and sizes[key] <= min(room, LARGEST):
            room -= sizes[key]
            placed[key] = 1
    return placed


def taken_on_chip(
    entries: Sequence[Entry], lives: Sequence[BufferEvents], placed: Collection[str]
) -> list[float]:
    """Return the bytes on the chip at each entry, of the buffers that are allocated as `placed`."""
    taken = [0.0] * len(entries)
    for name, span in _spans(entries, lives).items():
        if name in placed:
            for place in range(span.first, span.last + 1):
                taken[place] += span.bytes
    return taken


def take_off_hbm(
    entries: Sequence[Entry], lives: Sequence[BufferEvents], names: Mapping[str, str], room: float
) -> None:
    """Remove from the events of entries the buffers on the chip that are read soon.

    Loops have the room of the chip for themselves.
    """
    loops = [place for place, entry in enumerate(entries) if isinstance(entry, LoopNode)]
    near = {
        name: span
        for name, span in (_movable(entries, lives, names) if room else {}).items()
        if span.length <= NEAR and not any(span.first <= place <= span.last for place in loops)
    }
    small = {name: span for name, span in near.items() if span.bytes <= LARGEST_OFF_HBM}
    placed = frozenset(_that_fit(room, small))
    for life in lives if placed else ():
        life.allocs[:] = [one for one in life.allocs if one.tensor not in placed]
        life.frees[:] = [name for name in life.frees if name not in placed]


def _movable(
    entries: Sequence[Entry], lives: Sequence[BufferEvents], names: Mapping[str, str]
) -> dict[str, _Span]:
    """Return the spans of the buffers that operations of the core alone touch."""
    spans = _spans(entries, lives)
    for name in in_hbm(entries, names):
        spans.pop(name, None)
    return spans


def _that_fit(room: float, spans: Mapping[str, _Span]) -> Iterator[str]:
    """Yield the buffers that find room in each entry of their life beside those before."""
    left = [room] * (1 + max((span.last for span in spans.values()), default=0))
    for name in sorted(spans, key=lambda name: (spans[name].length, spans[name].bytes)):
        first, last, nbytes = spans[name].first, spans[name].last, spans[name].bytes
        if nbytes <= LARGEST and min(left[first : last + 1]) >= nbytes:
            for place in range(first, last + 1):
                left[place] -= nbytes
            yield name


def _spans(entries: Sequence[Entry], lives: Sequence[BufferEvents]) -> dict[str, _Span]:
    """Return the spans of the buffers that are allocated and freed in a body."""
    passed = [*accumulate(not isinstance(entry, HostCopy) for entry in entries)]
    taken = {a.tensor: (i, float(a.bytes)) for i, life in enumerate(lives) for a in life.allocs}
    freed = {name: i for i, life in enumerate(lives) for name in life.frees}
    return {
        name: _Span(first, freed[name], nbytes, passed[freed[name]] - passed[first])
        for name, (first, nbytes) in taken.items()
        if name in freed and freed[name] >= first
    }


def in_hbm(entries: Sequence[Entry], names: Mapping[str, str]) -> Collection[str]:
    """Return the names of the buffers that other entries than operations of the core touch."""
    touched = (
        key
        for entry in entries
        if not _reads_on_chip(entry)
        for key in (*entry.reads, *entry.writes)
    )
    return {names.get(key, key) for key in touched}


def _reads_on_chip(entry: Entry) -> bool:
    if isinstance(entry, PlannedCollective):
        return entry.mode is Mode.SYNC
    if not isinstance(entry, ComputeNode) or isinstance(entry.op, Attention):
        return False
    return not (isinstance(entry.op, TokenRouting) and entry.op.fused)

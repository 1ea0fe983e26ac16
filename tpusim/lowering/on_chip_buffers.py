"""Buffers that a step keeps on the chip, from the operation that makes them to their last reader.

What is on the chip moves nothing to HBM. The compiler places buffers in CMEM where a chip has it,
and otherwise in what operations leave of VMEM (XLA's memory space assignment).
In 19 programs of systems of text and images (`experiments/plan_vs_compiler`, libtpu 0.0.42.1), of
the results of fusions that are read within four operations, those of 2 to 16 MiB are on the chip on
v4, v5e and v6e in 655 of 717 cases, of 16 to 32 MiB in 134 of 211, and of 64 MiB and more in 18 of
72; of those of 2 to 16 MiB that live longer, half are. On v3 none is, and on v5p 79 of 264, by a
rule that sizes do not tell.

Plans have it outside of loops, as of the layers of nets of images. In loops over layers programs
compute element-wise groups again in each matmul that reads them, which plans do not have; with
neither of the two, scanned systems, 500 transformers and published runs of small models are nearer
than with the first alone. HBM at the peak is counted as without it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem

from tpusim.graph import Attention
from tpusim.hardware import Chip
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.buffer_lifetimes import BufferEvents
from tpusim.partition import ComputeNode
from tpusim.plan import Compiler
from tpusim.program import Mode, as_float
from tpusim.tape import Traced, call

MIB = 2.0**20

ROOM: Mapping[str, float] = {"v4": 128 * MIB, "v5e": 112 * MIB, "v6e": 96 * MIB}
"""Bytes for the buffers of a program by generation: CMEM of v4, and VMEM of v5e and v6e without the
16 and 32 MiB that operations have by default. None for other generations."""

LARGEST = 32 * MIB
"""Bytes of the largest buffer that is placed on the chip."""


def on_chip_room(chip: Chip, compiler: Compiler) -> float:
    """Return the bytes that the buffers of a program can take on a chip.

    None in MaxText's style, whose recipes leave VMEM to operations (96 of 128 MiB on v6e). An ideal
    compiler has what it has without such flags.
    """
    if compiler.lowering != "ideal" and compiler.style != "plain":
        return 0.0
    return ROOM.get(chip.generation, 0.0)


@dataclass(frozen=True, slots=True)
class _Span:
    """The entries over which a buffer lives, and its bytes."""

    first: int
    last: int
    bytes: float


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

    Those that live shortest come first, and of equally short ones the smaller. Of traced sizes,
    each buffer that could be there has the traced 1 or 0 that says whether it is.
    """
    spans = _spans(lives) if room else {}
    for name in _in_hbm(entries, names):
        spans.pop(name, None)
    lived = tuple((span.first, span.last) for span in spans.values())
    placed = call(_placed, room, lived, *(span.bytes for span in spans.values()))
    if isinstance(placed, Traced):
        return {name: call(getitem, placed, at) for at, name in enumerate(spans)}
    return {name: 1 for name, stays in zip(spans, placed, strict=True) if stays}


def _placed(room: float, lived: Sequence[tuple[int, int]], *sizes: float) -> tuple[int, ...]:
    """Return 1 for each buffer that is placed, and 0 for the others.

    lived: the first and the last entry of each buffer's life.
    sizes: their bytes.
    """
    left = [room] * (1 + max((last for _, last in lived), default=0))
    placed = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=lambda at: (lived[at][1] - lived[at][0], sizes[at]))
    for at in order:
        (first, last), nbytes = lived[at], sizes[at]
        if nbytes <= LARGEST and min(left[first : last + 1]) >= nbytes:
            placed[at] = 1
            for place in range(first, last + 1):
                left[place] -= nbytes
    return tuple(placed)


def _spans(lives: Sequence[BufferEvents]) -> dict[str, _Span]:
    """Return the spans of the buffers that are allocated and freed in a body."""
    taken = {a.tensor: (i, as_float(a.bytes)) for i, life in enumerate(lives) for a in life.allocs}
    freed = {name: i for i, life in enumerate(lives) for name in life.frees}
    return {
        name: _Span(first, freed[name], nbytes)
        for name, (first, nbytes) in taken.items()
        if name in freed and freed[name] >= first
    }


def _in_hbm(entries: Sequence[Entry], names: Mapping[str, str]) -> Collection[str]:
    """Return the names of buffers that other entries than operations of the core touch."""
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
    return isinstance(entry, ComputeNode) and not isinstance(entry.op, Attention)

"""What an instruction moves, and which part of it the instruction is."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tpusim.program import CollectiveKind
from tpusim.xla.groups import Groups
from tpusim.xla.shapes import Shape


class What(StrEnum):
    """What moves: between devices, on or off the chip's memory, to the host, on a SparseCore."""

    COLLECTIVE = "collective"
    DMA = "dma"
    TO_HOST = "to-host"
    FROM_HOST = "from-host"
    SPARSECORE = "sparsecore"
    NOTHING = "nothing"


class Role(StrEnum):
    """Which part of it an instruction is.

    sync: all of it, and the core waits. start: its start. step: a fusion that computes while the
    transfer goes on. done: the wait for its end; `Use.operand` leads to its start.
    """

    SYNC = "sync"
    START = "start"
    STEP = "step"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Use:
    """What an instruction moves.

    bytes: of a collective as `program.Collective` counts them; of a DMA, what it reads and writes
    of HBM; of a SparseCore, what it reads and writes; with the host, what passes. groups: device
    ids, of collectives. slices: groups or pairs of slices, from 0, of what crosses DCN alone.
    operand: what a done or a step takes the transfer from: its start, or the tuple, loop or step
    that hands it on. chain: the same for all instructions of a collective that is woven into
    fusions, and for a send and its recv. algorithm: what the compiler names, else nothing.
    hbm: of a collective, the shares of its operands and of its results that lie in HBM.
    note: what is not known of it.
    """

    what: What
    role: Role
    kind: CollectiveKind | None = None
    bytes: float = 0.0
    dtype: str = ""
    groups: Groups | None = None
    slices: Groups | None = None
    operand: str = ""
    chain: str = ""
    algorithm: str = ""
    hbm: tuple[float, float] = (1.0, 1.0)
    note: str = ""


NOTHING = Use(What.NOTHING, Role.SYNC)


def bytes_of(shapes: Iterable[Shape]) -> float:
    """Bytes of arrays together."""
    return sum(shape.bytes for shape in shapes)


def dtype_of(shapes: Iterable[Shape]) -> str:
    """The dtype of the largest array."""
    largest = max(shapes, key=lambda shape: shape.bytes, default=None)
    return largest.dtype if largest else ""

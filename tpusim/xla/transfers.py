"""Copies that run beside the core: between HBM, the memory on the chip, and the host."""

from dataclasses import dataclass

from tpusim.program import TransferKind
from tpusim.xla.module import Computation, Instruction
from tpusim.xla.shapes import HBM, HOST, Shape, arrays, parse_shape

COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")


@dataclass(frozen=True, slots=True)
class Copy:
    """What an asynchronous copy moves: bytes that pass through HBM, or over PCIe."""

    kind: TransferKind
    bytes: float


def copy_of(computation: Computation, start: Instruction) -> Copy:
    """What a copy's start moves.

    A `copy-start` gives (destination, source, context), and a `slice-start` ((operand), result,
    context): what moves is the smaller of the two, in whole tiles. Within HBM it is read and
    written; within the chip's own memory it passes neither HBM nor a link that others share.
    """
    source, destination = _ends(computation, start)
    moved = min(source.padded_bytes, destination.padded_bytes)
    spaces = source.space, destination.space
    if HOST in spaces:
        leaves = destination.space == HOST
        return Copy(TransferKind.TO_HOST if leaves else TransferKind.FROM_HOST, moved)
    return Copy(TransferKind.DMA, moved * spaces.count(HBM))


def _ends(computation: Computation, start: Instruction) -> tuple[Shape, Shape]:
    """The arrays that a copy reads and writes."""
    shape = start.shape
    parts = shape if isinstance(shape, tuple) else (shape,)
    if start.opcode == "copy-start" and len(parts) > 1:
        return arrays(parts[1])[0], arrays(parts[0])[0]
    given = start.operands[0] if start.operands else ""
    source = parse_shape(computation[given].shape_text) if given in computation else shape
    return arrays(source)[0], arrays(parts[1] if len(parts) > 1 else parts[0])[0]

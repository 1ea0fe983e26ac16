"""HBM over time: allocations and frees of each instruction of a scheduled module."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpusim.compiler.hlo.module import Computation, HloModule
from tpusim.compiler.hlo.shapes import HBM_SPACE, Shape
from tpusim.compiler.to_program.buffers import RENAMING_OPCODES, BufferTable
from tpusim.program import Alloc

TEMPORARIES, OUTPUTS = "temporaries", "outputs"
"""Categories of allocations: until their last use, or until the end of the step."""


@dataclass(frozen=True, slots=True)
class BufferChange:
    """Allocations at the start of an instruction, and the tensors that it frees at its end."""

    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(slots=True)
class _BufferLife:
    """A buffer of the computation that owns it: its first writer and its last reader there."""

    owner: str
    depth: int
    bytes: float = 0.0
    data: float = 0.0
    first: str = ""
    last: str = ""
    made: set[str] = field(default_factory=set)


def buffer_changes(module: HloModule) -> Mapping[str, BufferChange]:
    """Return the changes by instruction name; instructions without one are absent.

    Each buffer belongs to the outermost computation that has it: a loop's carry to the one that
        contains
    the loop. A tensor has the name of the instruction that allocates it, with `#1` for the second
    array of its result. Parameters, constants and results that overwrite them allocate nothing.
    """
    buffers = BufferTable(module)
    held = _owned_buffers(buffers)
    for computation in module.computations.values():
        _find_lifetimes(computation, buffers, held)
    kept = set(buffers.of(module.main.root))
    return _allocs_and_frees(held, kept)


def _owned_buffers(buffers: BufferTable) -> dict[int, _BufferLife]:
    """Return the allocated buffers in HBM, each with its owner and its bytes."""
    resident = {buffers.find(n) for n, made in enumerate(buffers.made) if made is None}
    found: dict[int, _BufferLife] = {}
    for number, made in enumerate(buffers.made):
        if made is None or made.shape.space != HBM_SPACE or not made.shape.elements:
            continue
        which = buffers.find(number)
        if which in resident:
            continue
        buffer = found.setdefault(which, _BufferLife(made.computation, made.depth))
        if made.depth < buffer.depth:
            buffer.owner, buffer.depth, buffer.made = made.computation, made.depth, set()
        if made.computation == buffer.owner:
            buffer.made.add(made.instruction)
        if made.shape.padded_bytes > buffer.bytes:
            buffer.bytes, buffer.data = made.shape.padded_bytes, made.shape.bytes
    return found


def _find_lifetimes(
    computation: Computation, buffers: BufferTable, held: Mapping[int, _BufferLife]
) -> None:
    for instruction in computation.instructions:
        if instruction.opcode in RENAMING_OPCODES or instruction.name not in buffers.values:
            continue
        names = (*instruction.operands, instruction.name)
        for number in {number for name in names for number in buffers.of(name)}:
            buffer = held.get(number)
            if buffer is not None and buffer.owner == computation.name:
                buffer.last = instruction.name
                if not buffer.first and instruction.name in buffer.made:
                    buffer.first = instruction.name


def _allocs_and_frees(
    held: Mapping[int, _BufferLife], kept: set[int]
) -> Mapping[str, BufferChange]:
    allocs: dict[str, list[Alloc]] = {}
    frees: dict[str, list[str]] = {}
    for number, buffer in held.items():
        several = allocs.setdefault(buffer.first, [])
        name = f"{buffer.first}#{len(several)}" if several else buffer.first
        category = OUTPUTS if number in kept else TEMPORARIES
        several.append(Alloc(name, buffer.bytes, category, buffer.bytes - buffer.data))
        if number not in kept:
            frees.setdefault(buffer.last, []).append(name)
    return {
        name: BufferChange(tuple(allocs.get(name, ())), tuple(frees.get(name, ())))
        for name in allocs.keys() | frees.keys()
    }


def argument_allocs(module: HloModule) -> tuple[Alloc, ...]:
    """Return the entry's parameters in HBM, which are there before the step and after it."""
    return tuple(
        Alloc(f"{parameter.name}#{index}" if index else parameter.name, *_argument(array))
        for parameter in module.main.parameters
        for index, array in enumerate(parameter.arrays)
        if array.space == HBM_SPACE
    )


def _argument(array: Shape) -> tuple[float, str, float]:
    return array.padded_bytes, "arguments", array.padded_bytes - array.bytes

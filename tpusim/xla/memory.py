"""HBM over time: what each instruction of a scheduled module takes, and what it frees."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpusim.program import Alloc
from tpusim.xla.attributes import called
from tpusim.xla.buffers import CALLING, RENAMES, Buffers
from tpusim.xla.module import Computation, Module
from tpusim.xla.shapes import HBM, Shape

TEMPORARIES, OUTPUTS = "temporaries", "outputs"
"""Categories of what is taken: until its last use, or until the step is over."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an instruction takes when it begins, and the tensors that it frees at its end."""

    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(slots=True)
class _Buffer:
    """A buffer of the computation that owns it: its first writer and its last reader there."""

    owner: str
    depth: int
    bytes: float = 0.0
    data: float = 0.0
    first: str = ""
    last: str = ""
    made: set[str] = field(default_factory=set)


def changes(module: Module) -> Mapping[str, Change]:
    """By the name of an instruction; one that changes nothing is not there.

    Each buffer belongs to the outermost computation that has it: a loop's carry to the one that the
    loop stands in. A tensor has the name of the instruction that takes it, with `#1` for the second
    array of its result. Parameters, constants and what overwrites them take nothing.
    """
    buffers = Buffers(module)
    held = _held(buffers)
    for computation in module.computations.values():
        _follow(computation, buffers, held)
    kept = set(buffers.of(module.main.root))
    return _changed(held, kept)


def _held(buffers: Buffers) -> dict[int, _Buffer]:
    """The buffers in HBM that somebody must take, each with its owner and its bytes."""
    resident = {buffers.find(n) for n, made in enumerate(buffers.made) if made is None}
    found: dict[int, _Buffer] = {}
    for number, made in enumerate(buffers.made):
        if made is None or made.shape.space != HBM or not made.shape.elements:
            continue
        which = buffers.find(number)
        if which in resident:
            continue
        buffer = found.setdefault(which, _Buffer(made.computation, made.depth))
        if made.depth < buffer.depth:
            buffer.owner, buffer.depth, buffer.made = made.computation, made.depth, set()
        if made.computation == buffer.owner:
            buffer.made.add(made.instruction)
        if made.shape.padded_bytes > buffer.bytes:
            buffer.bytes, buffer.data = made.shape.padded_bytes, made.shape.bytes
    return found


def _follow(computation: Computation, buffers: Buffers, held: Mapping[int, _Buffer]) -> None:
    """Finds who first writes and last reads the buffers that this computation owns."""
    for instruction in computation.instructions:
        if instruction.opcode in RENAMES or instruction.name not in buffers.values:
            continue
        names = (*instruction.operands, instruction.name)
        for number in {number for name in names for number in buffers.of(name)}:
            buffer = held.get(number)
            if buffer is not None and buffer.owner == computation.name:
                buffer.last = instruction.name
                if not buffer.first and instruction.name in buffer.made:
                    buffer.first = instruction.name


def _changed(held: Mapping[int, _Buffer], kept: set[int]) -> Mapping[str, Change]:
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
        name: Change(tuple(allocs.get(name, ())), tuple(frees.get(name, ())))
        for name in allocs.keys() | frees.keys()
    }


def arguments(module: Module) -> tuple[Alloc, ...]:
    """The entry's parameters in HBM: they are there before the step, and after it."""
    return tuple(
        Alloc(f"{parameter.name}#{place}" if place else parameter.name, *_sizes(array))
        for parameter in module.main.parameters
        for place, array in enumerate(parameter.arrays)
        if array.space == HBM
    )


def _sizes(array: Shape) -> tuple[float, str, float]:
    return array.padded_bytes, "arguments", array.padded_bytes - array.bytes


def peak(module: Module, found: Mapping[str, Change] | None = None) -> float:
    """Bytes that the schedule holds at most, arguments apart: loops hold what one trip does."""
    known: dict[str, float] = {}
    return _peak(module, module.main, changes(module) if found is None else found, known)


def _peak(
    module: Module, computation: Computation, found: Mapping[str, Change], known: dict[str, float]
) -> float:
    sizes: dict[str, float] = {}
    live = most = 0.0
    for instruction in computation.instructions:
        change = found.get(instruction.name, Change())
        sizes |= {alloc.tensor: float(alloc.bytes) for alloc in change.allocs}
        live += sum(float(alloc.bytes) for alloc in change.allocs)
        inner = 0.0
        for name in called(instruction) if instruction.opcode in CALLING else ():
            if name not in known:
                known[name] = _peak(module, module.computations[name], found, known)
            inner = max(inner, known[name])
        most = max(most, live + inner)
        live -= sum(sizes[name] for name in change.frees)
    return most

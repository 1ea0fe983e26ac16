"""What contradicts itself in a module, and what another compiler made: each is one sentence."""

from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush

from tpusim.errors import FileError
from tpusim.xla.attributes import called, target
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.text import INSTEAD

UNSCHEDULED = (
    "the HLO is not scheduled: its instructions run in the order of its text, so what overlaps and "
    "the memory peak are of that order, not of the compiler's"
)
_DEEPEST = 100
_LONGEST = 1_000_000
_LARGEST = 2**62
"""Elements or bytes of one array: more is a slip, and no number of 64 bits."""


def in_order(computation: Computation) -> Computation:
    """The computation with each instruction after its operands, else in the order of its text.

    Raises FileError where an operand is not there, or depends on its user.
    """
    instructions = computation.instructions
    places = {instruction.name: place for place, instruction in enumerate(instructions)}
    for place, instruction in enumerate(instructions):
        for operand in instruction.operands:
            if operand not in places:
                raise FileError(
                    f"{instruction.name} of {computation.name} reads {operand}, which is not there;"
                    f" {INSTEAD}"
                )
            if places[operand] >= place:
                return replace(computation, instructions=_sorted(computation, places))
    return computation


def _sorted(computation: Computation, places: dict[str, int]) -> tuple[Instruction, ...]:
    users: dict[int, list[int]] = {}
    waits = [len(instruction.operands) for instruction in computation.instructions]
    for place, instruction in enumerate(computation.instructions):
        for operand in instruction.operands:
            users.setdefault(places[operand], []).append(place)
    ready = [place for place, count in enumerate(waits) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(place := heappop(ready))
        for user in users.get(place, ()):
            waits[user] -= 1
            if not waits[user]:
                heappush(ready, user)
    if len(order) < len(waits):
        stuck = next(place for place, count in enumerate(waits) if count)
        name = computation.instructions[stuck].name
        raise FileError(f"{name} of {computation.name} waits for its own result; {INSTEAD}")
    return tuple(computation.instructions[place] for place in order)


def check_calls(computations: Sequence[Computation]) -> None:
    """Raises FileError where a computation calls itself, through others too, or calls too much."""
    graph = {
        computation.name: [
            name
            for instruction in computation.instructions
            if "=%" in instruction.attributes or "={%" in instruction.attributes
            for name in called(instruction)
        ]
        for computation in computations
    }
    sizes = {computation.name: len(computation.instructions) for computation in computations}
    depths: dict[str, int] = {}
    try:
        for name in TopologicalSorter(graph).static_order():
            inside = graph.get(name, ())
            depths[name] = 1 + max((depths[inner] for inner in inside), default=0)
            sizes[name] = sizes.get(name, 0) + sum(sizes[inner] for inner in inside)
    except CycleError as error:
        path = " calls ".join(reversed(error.args[1]))
        raise FileError(f"{path}, which never ends; {INSTEAD}") from error
    deepest = max(depths, key=lambda name: depths[name], default="")
    if deepest and depths[deepest] > _DEEPEST:
        raise FileError(
            f"{deepest} calls {depths[deepest]} computations one inside the other, and compiled "
            f"programs do not reach {_DEEPEST}; {INSTEAD}"
        )
    largest = max(sizes, key=lambda name: sizes[name], default="")
    if largest and sizes[largest] > _LONGEST:
        raise FileError(
            f"{largest} calls others again and again: it has {sizes[largest]:,} instructions where "
            f"each call is written out, and compiled programs do not reach {_LONGEST:,}; {INSTEAD}"
        )


def check_shapes(computations: Sequence[Computation]) -> None:
    """Raises FileError for a result's shape that is none, or too large for any memory."""
    seen: set[str] = set()
    for computation in computations:
        for instruction in computation.instructions:
            if instruction.shape_text not in seen:
                seen.add(instruction.shape_text)
                _check_shape(computation, instruction)


def _check_shape(computation: Computation, instruction: Instruction) -> None:
    where = f"{instruction.name} of {computation.name}"
    try:
        large = any(
            array.elements > _LARGEST or array.padded_bytes > _LARGEST
            for array in instruction.arrays
        )
    except (ValueError, RecursionError, IndexError, ArithmeticError) as error:
        raise FileError(
            f"{where} has the shape {instruction.shape_text[:80]}, which cannot be understood; "
            "give HLO whose shapes are static"
        ) from error
    if large:
        raise FileError(
            f"{where} has the shape {instruction.shape_text[:80]}, which fits in no memory; "
            + INSTEAD
        )


def check_platform(module: Module) -> None:
    """Raises FileError for a module that the TPU compiler did not make, or did not finish.

    Its sign is the tiled layout, `T(8,128)`, which all of its arrays have and no others do.
    """
    instructions = [i for c in module.computations.values() for i in c.instructions]
    if any(":T(" in instruction.shape_text for instruction in instructions):
        return
    raise FileError(
        f"{_maker(module, instructions)} (no array has a tiled layout such as T(8,128)); "
        f"compile for a TPU (`tpusim.xla.compile` needs none), or {INSTEAD}"
    )


_GPU = ("__cu", "__triton", "triton", "__gpu", "cu_")


def _maker(module: Module, instructions: Sequence[Instruction]) -> str:
    """What a module without tiled layouts is."""
    if not module.scheduled:
        sharded = any("sharding={" in instruction.attributes for instruction in instructions)
        whole = f" and partitioned it over {module.devices} devices" if sharded else ""
        return f"this is HLO before the compiler optimised it{whole}"
    gpu = any(
        '"operation_queue_id"' in instruction.attributes or target(instruction).startswith(_GPU)
        for instruction in instructions
    )
    return f"this is HLO for a {'GPU' if gpu else 'CPU'}"

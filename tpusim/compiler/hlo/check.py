"""Checks of a module: contradictions, and HLO from other compilers; each error is one sentence."""

from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush

from tpusim.base.errors import FileError
from tpusim.compiler.hlo.attributes import call_target, callees
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.module_text import HLO_ADVICE

UNSCHEDULED = (
    "the HLO is not scheduled: its instructions run in the order of its text, so overlap and "
    "memory peak follow that order, not the compiler's"
)
MAX_CALL_DEPTH = 100
MAX_INSTRUCTIONS = 1_000_000
MAX_ARRAY_SIZE = 2**62
"""Largest number of elements or bytes of one array; more is an error in the file."""


def topological_order(computation: Computation) -> Computation:
    """Return the computation with each instruction after its operands, otherwise in text order.

    Raise FileError if an operand is missing or depends on its user.
    """
    instructions = computation.instructions
    positions = {instruction.name: position for position, instruction in enumerate(instructions)}
    for position, instruction in enumerate(instructions):
        for operand in instruction.operands:
            if operand not in positions:
                raise FileError(
                    f"{instruction.name} of {computation.name} reads {operand}, which does not "
                    f"exist; {HLO_ADVICE}"
                )
            if positions[operand] >= position:
                return replace(computation, instructions=_sorted(computation, positions))
    return computation


def _sorted(computation: Computation, positions: dict[str, int]) -> tuple[Instruction, ...]:
    users: dict[int, list[int]] = {}
    pending = [len(instruction.operands) for instruction in computation.instructions]
    for position, instruction in enumerate(computation.instructions):
        for operand in instruction.operands:
            users.setdefault(positions[operand], []).append(position)
    ready = [position for position, count in enumerate(pending) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(position := heappop(ready))
        for user in users.get(position, ()):
            pending[user] -= 1
            if not pending[user]:
                heappush(ready, user)
    if len(order) < len(pending):
        stuck = next(position for position, count in enumerate(pending) if count)
        name = computation.instructions[stuck].name
        raise FileError(f"{name} of {computation.name} depends on its own result; {HLO_ADVICE}")
    return tuple(computation.instructions[position] for position in order)


def check_calls(computations: Sequence[Computation]) -> None:
    """Raise FileError if a computation calls itself, even indirectly, or calls too much."""
    graph = {
        computation.name: [
            name
            for instruction in computation.instructions
            if "=%" in instruction.attributes or "={%" in instruction.attributes
            for name in callees(instruction)
        ]
        for computation in computations
    }
    sizes = {computation.name: len(computation.instructions) for computation in computations}
    depths: dict[str, int] = {}
    try:
        for name in TopologicalSorter(graph).static_order():
            called = graph.get(name, ())
            depths[name] = 1 + max((depths[inner] for inner in called), default=0)
            sizes[name] = sizes.get(name, 0) + sum(sizes[inner] for inner in called)
    except CycleError as error:
        path = " calls ".join(reversed(error.args[1]))
        raise FileError(f"{path}, which never ends; {HLO_ADVICE}") from error
    deepest = max(depths, key=lambda name: depths[name], default="")
    if deepest and depths[deepest] > MAX_CALL_DEPTH:
        raise FileError(
            f"{deepest} nests {depths[deepest]} calls, and compiled programs stay below "
            f"{MAX_CALL_DEPTH}; {HLO_ADVICE}"
        )
    largest = max(sizes, key=lambda name: sizes[name], default="")
    if largest and sizes[largest] > MAX_INSTRUCTIONS:
        raise FileError(
            f"{largest} has {sizes[largest]:,} instructions with all calls expanded, and compiled "
            f"programs stay below {MAX_INSTRUCTIONS:,}; {HLO_ADVICE}"
        )


def check_shapes(computations: Sequence[Computation]) -> None:
    """Raise FileError for a malformed result shape, or one too large for any memory."""
    seen: set[str] = set()
    for computation in computations:
        for instruction in computation.instructions:
            if instruction.shape_text not in seen:
                seen.add(instruction.shape_text)
                _check_shape(computation, instruction)


def _check_shape(computation: Computation, instruction: Instruction) -> None:
    where = f"{instruction.name} of {computation.name} has the shape {instruction.shape_text[:80]}"
    try:
        large = any(
            array.elements > MAX_ARRAY_SIZE or array.padded_bytes > MAX_ARRAY_SIZE
            for array in instruction.arrays
        )
    except (ValueError, RecursionError, OverflowError) as error:
        raise FileError(f"{where}, which is malformed; give HLO whose shapes are static") from error
    if large:
        raise FileError(f"{where}, which does not fit in any memory; {HLO_ADVICE}")


def check_platform(module: HloModule) -> None:
    """Raise FileError for a module that the TPU compiler did not make, or did not finish.

    The sign is the tiled layout, `T(8,128)`, which all of its arrays have and no others do.
    """
    instructions = [i for c in module.computations.values() for i in c.instructions]
    if any(":T(" in instruction.shape_text for instruction in instructions):
        return
    raise FileError(
        f"{_producer(module, instructions)} (no array has a tiled layout such as T(8,128)); "
        f"compile for a TPU (`tpusim.compiler.compile` needs none), or {HLO_ADVICE}"
    )


_GPU_TARGETS = ("__cu", "__triton", "triton", "__gpu", "cu_")


def _producer(module: HloModule, instructions: Sequence[Instruction]) -> str:
    if not module.scheduled:
        sharded = any("sharding={" in instruction.attributes for instruction in instructions)
        whole = f" and partitioned it over {module.devices} devices" if sharded else ""
        return f"this is HLO before the compiler optimised it{whole}"
    gpu = any(
        '"operation_queue_id"' in instruction.attributes
        or call_target(instruction).startswith(_GPU_TARGETS)
        for instruction in instructions
    )
    return f"this is HLO for a {'GPU' if gpu else 'CPU'}"

"""Conditionals: the costliest branch, which stands for all."""

from collections.abc import Callable

from tpusim.compiler.hlo.attributes import called_computations
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.to_program.buffers import CALLING_OPCODES
from tpusim.compiler.to_program.collectives import movement_of
from tpusim.compiler.to_program.data_movement import AsyncRole, MovementKind
from tpusim.compiler.to_program.source_locations import name_and_line
from tpusim.compiler.to_program.trip_counts import trip_count
from tpusim.compiler.work.instruction_work import instruction_work, is_free

HBM_BYTES_PER_CYCLE, LINK_BYTES_PER_CYCLE, FLOPS_PER_CYCLE = 1000.0, 100.0, 200_000.0
"""Approximate work of a device per cycle, to distinguish a branch that works from one that does
not. It reads 550 (v5e) to 1600 (v5p) bytes, sends 60 to 150, and multiplies 130,000 (v5e) to
520,000 (v6e) FLOPs (`hardware_specs`)."""


def costliest_branch(
    module: HloModule, conditional: Instruction, note: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the name of the longest branch, if any, by the compiler's cycles where it has them.

    note: a callback that takes a note on the choice.
    """
    branches = called_computations(module, conditional)
    if not branches:
        return ()
    name = max(branches, key=lambda branch: _weight(module, branch)).name
    label, count = name_and_line(module.frames, conditional), len({each.name for each in branches})
    note(f"conditional {label} runs {name}, the costliest of its {count} branches")
    return (name,)


def _weight(module: HloModule, where: Computation) -> float:
    return sum(_cycles(module, where, each) for each in where.instructions)


def _cycles(module: HloModule, where: Computation, instruction: Instruction) -> float:
    if instruction.opcode in CALLING_OPCODES:
        called = called_computations(module, instruction)
        longest = max((_weight(module, each) for each in called), default=0.0)
        count = trip_count(module, where, instruction) if instruction.opcode == "while" else 1
        return longest * (1 if count is None else count)
    movement = movement_of(module, where, instruction)
    if movement is not None and movement.role in (AsyncRole.SYNC, AsyncRole.START):
        on_link = movement.kind is MovementKind.COLLECTIVE
        return movement.bytes / (LINK_BYTES_PER_CYCLE if on_link else HBM_BYTES_PER_CYCLE)
    if is_free(instruction) or (movement is not None and movement.role is AsyncRole.DONE):
        return 0.0
    work = instruction_work(module, where, instruction)
    if work.cycles is not None:
        return work.cycles
    hbm_cycles = (work.read_bytes + work.write_bytes) / HBM_BYTES_PER_CYCLE
    return max(hbm_cycles, work.flops / FLOPS_PER_CYCLE)

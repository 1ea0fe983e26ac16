"""Which branch of a conditional counts: the one that takes longest."""

from collections.abc import Callable

from tpusim.xla.attributes import called
from tpusim.xla.collectives import use_of
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.places import name_and_line
from tpusim.xla.trips import trips
from tpusim.xla.uses import Role, What
from tpusim.xla.work import instruction_work, is_free

HBM_BYTES, LINK_BYTES, FLOPS = 1000.0, 100.0, 200_000.0
"""What a device does in a cycle, about: enough to tell a branch that works from one that does not.
It reads 550 (v5e) to 1600 (v5p) bytes, sends 60 to 150, and multiplies 130,000 (v5e) to 520,000
(v6e) FLOPs (`hardware_specs`)."""


def costliest(
    module: Module, conditional: Instruction, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """The branch that takes longest, if there is any: by the compiler's cycles where it has them.

    tell: is told of the choice.
    """
    branches = [name for name in called(conditional) if name in module.computations]
    if not branches:
        return ()
    weights = {name: _weight(module, name) for name in branches}
    most = max(branches, key=lambda name: weights[name])
    which = name_and_line(module.frames, conditional)
    tell(f"conditional {which} runs {most}, the costliest of its {len(weights)} branches")
    return (most,)


def _weight(module: Module, name: str) -> float:
    """Cycles of a computation, with all trips of its loops and the longest of its branches."""
    where = module.computations[name]
    return sum(_cycles(module, where, each) for each in where.instructions)


def _cycles(module: Module, where: Computation, instruction: Instruction) -> float:
    if instruction.opcode in ("while", "call", "conditional"):
        inside = [name for name in called(instruction) if name in module.computations]
        longest = max((_weight(module, name) for name in inside), default=0.0)
        count = trips(module, where, instruction) if instruction.opcode == "while" else 1
        return longest * (1 if count is None else count)
    use = use_of(module, where, instruction)
    if use is not None and use.role in (Role.SYNC, Role.START):
        return use.bytes / (LINK_BYTES if use.what is What.COLLECTIVE else HBM_BYTES)
    if is_free(instruction) or (use is not None and use.role is Role.DONE):
        return 0.0
    work = instruction_work(module, where, instruction)
    if work.cycles is not None:
        return work.cycles
    return max((work.read_bytes + work.write_bytes) / HBM_BYTES, work.flops / FLOPS)

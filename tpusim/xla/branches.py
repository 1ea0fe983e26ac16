"""Which branch of a conditional counts: the one that takes longest."""

from collections.abc import Callable

from tpusim.xla.attributes import called
from tpusim.xla.module import Instruction, Module
from tpusim.xla.work import instruction_work


def costliest(
    module: Module, conditional: Instruction, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """The branch that takes longest by the compiler's cycles and else by bytes, if there is any.

    tell: is told of the choice.
    """
    branches = [name for name in called(conditional) if name in module.computations]
    if not branches:
        return ()
    weights = {name: _weight(module, name) for name in branches}
    most = max(branches, key=lambda name: weights[name])
    tell(
        f"conditional {conditional.name} runs {most}, the costliest of its {len(weights)} branches"
    )
    return (most,)


def _weight(module: Module, name: str) -> float:
    """Cycles of a computation without its loops' trips; of what has none, its bytes."""
    computation = module.computations[name]
    found = (instruction_work(module, computation, each) for each in computation.instructions)
    return sum(w.read_bytes + w.write_bytes if w.cycles is None else w.cycles for w in found)

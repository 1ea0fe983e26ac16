"""HBM at the peak of a plan beside that of a program, by what occupies it."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.compiler_check.compare_work import Operation
from tpusim.compiler_check.step_names import EMBEDDING
from tpusim.program import Single, walk_ops
from tpusim.results import PlanResult, Result

STATE = "weights and optimizer state"
ELSE = "stacks of the layers, casts and copies"
BETWEEN = "between buffers"
"""Items of memory: what is held for the whole step, what belongs to no single operation of the
graph, and what a device needs beyond the highest level of its schedule."""


_STACK = re.compile(r" x\d+$")
"""The end of the name of what a plan's loop stacks: the copies of all its iterations."""


@dataclass(frozen=True, slots=True)
class ComparedMemory:
    """Bytes of one device at the peak of the plan and at that of the program.

    what: an operation of the graph whose results, operands or gradients they are, or one of
        `weights and optimizer state`, `stacks of the layers, casts and copies` and `between
        buffers`.
    """

    what: str
    plan: float
    program: float


def compared_memory(
    plan: Result,
    program: Result,
    operations: tuple[Operation, Operation],
    lookups: frozenset[str],
) -> tuple[ComparedMemory, ...]:
    """Return the items of both peaks, those that differ most first; they sum to the peaks.

    operations: the operation of the graph behind one of each side.
    lookups: names that are the embedding.
    """
    sides = [
        _held(result, operation, lookups)
        for result, operation in zip((plan, program), operations, strict=True)
    ]
    rows = (ComparedMemory(what, sides[0][what], sides[1][what]) for what in sides[0] | sides[1])
    return tuple(sorted(rows, key=lambda row: -abs(row.plan - row.program)))


def _held(result: Result, operation: Operation, lookups: frozenset[str]) -> Counter[str]:
    """Return the bytes of each item at the peak of a result."""
    memory = result.timeline.memory[result.lane]
    resident = {alloc.tensor for alloc in result.program.resident}
    makers = _makers(result)
    found: Counter[str] = Counter()
    for held in memory.held:
        if held.tensor in resident:
            found[STATE] += held.bytes
        else:
            maker = makers.get(_bare(held.tensor))
            stacked = _STACK.search(held.tensor)
            name = "" if maker is None or stacked else operation(maker)
            found[EMBEDDING if name in lookups else name or ELSE] += held.bytes
    found[BETWEEN] = int(result.hbm_peak_bytes) - sum(found.values())
    return found


def _makers(result: Result) -> Mapping[str, Single]:
    """Return the operation that makes each tensor: that which allocates it, or its namesake.

    A plan allocates a buffer with the operation that writes it. Compiled programs name an array
    after the instruction that writes it.
    """
    ops = [op for op, _ in walk_ops(result.program.body, result.program.segments)]
    if isinstance(result, PlanResult):
        return {alloc.tensor: op for op in ops for alloc in op.allocs}
    return {op.name: op for op in ops}


def _bare(tensor: str) -> str:
    """Return the instruction that makes an array, without the number of its result."""
    return re.sub(r"#\d+$", "", tensor)

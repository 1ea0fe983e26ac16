"""HBM at the peaks of a plan and of a program: who made what is held, and where the peaks are."""

import re
from collections import Counter
from collections.abc import Mapping

from tpusim.base.phase import Phase
from tpusim.compiler_check.compare_parts import ComparedPart, ComparedSide, most_different
from tpusim.compiler_check.step_names import EMBEDDING, StepNames
from tpusim.graph import TensorRole
from tpusim.program import Collective, CollectiveKind, Single, walk_allocs, walk_ops
from tpusim.results import PlanResult, ServedStep, core_records, operation_of, operations_by_name

STATE, SERVED = "weights and optimizer state", "weights and cache"
ELSE = "stacks of the layers, casts and copies"
BETWEEN = "between buffers"
"""Items of memory: what is held for the whole step, of training and of a server, what belongs to no
single operation of the graph, and what a device needs beyond the highest level of its schedule."""

_STACK = re.compile(r" x\d+$")
"""The end of the name of what a plan's loop stacks: the copies of all its iterations."""


def compared_memory(plan: ComparedSide, program: ComparedSide) -> tuple[ComparedPart, ...]:
    """Return the items of both peaks, those that differ most first; they sum to the peaks."""
    first, second = _held(plan), _held(program)
    return most_different(ComparedPart(n, first[n], second[n]) for n in first | second)


def peak_place(side: ComparedSide) -> str:
    """Return where in the step the peak is: `in the backward pass of loss`; empty if unknown."""
    result = side.result
    at, known = result.timeline.memory[result.lane].peak_ps, operations_by_name(result.program)
    begun = [
        (max((start for start in record.starts() if start <= at), default=-1), number, record)
        for number, record in enumerate(core_records(result.timeline, result.lane))
        if record.start_ps <= at
    ]
    if not begun:
        return ""
    record = max(begun, key=lambda each: each[:2])[2]
    op = known.get(operation_of(record))
    name = side.operation(op) if op is not None else ""
    return f"in {_PASSES[record.phase]}{f' of {name}' if name else ''}"


_PASSES = {
    Phase.FORWARD: "the forward pass",
    Phase.RECOMPUTE: "the recomputation",
    Phase.BACKWARD: "the backward pass",
    Phase.OPTIMIZER: "the optimizer",
}


def _held(side: ComparedSide) -> Counter[str]:
    """Return the bytes of each item of HBM at the peak."""
    result, makers = side.result, _makers(side)
    state = SERVED if isinstance(side.names.plan, ServedStep) else STATE
    resident = {alloc.tensor for alloc in result.program.resident}
    found: Counter[str] = Counter()
    for held in result.timeline.memory[result.lane].held:
        maker = makers.get(re.sub(r"#\d+$", "", held.tensor))
        if held.tensor in resident:
            found[state] += held.bytes
        elif maker is None or _STACK.search(held.tensor):
            found[ELSE] += held.bytes
        else:
            found[_item(maker, side.operation(maker), side.names)] += held.bytes
    found[BETWEEN] = int(result.hbm_peak_bytes) - sum(found.values())
    return found


def _item(maker: Single, operation: str, names: StepNames) -> str:
    """Return the item that an operation of either side makes, by that of the graph behind it."""
    if operation in names.lookups:
        return EMBEDDING
    if not operation:
        return ELSE
    op = names.operations[operation]
    if isinstance(maker, Collective):
        weights = [tensor for tensor in op.inputs if tensor.role is TensorRole.PARAM]
        one = len(weights) == 1 and maker.kind is CollectiveKind.ALL_GATHER
        return f"gathered {weights[0].name}" if one else f"moved for {operation}"
    if maker.phase is not Phase.BACKWARD:
        return operation
    read = [tensor for tensor in op.inputs if tensor.role is not TensorRole.INPUT]
    return f"d({read[0].name})" if len(read) == 1 else f"gradients through {operation}"


def _makers(side: ComparedSide) -> Mapping[str, Single]:
    """Return the operation that makes each tensor: that which allocates it, or its namesake.

    A plan allocates a buffer with the operation that writes it. Compiled programs name an
    array after the instruction that writes it, with the number of its result.
    """
    program = side.result.program
    if isinstance(side.result, PlanResult):
        taken = walk_allocs(program.body, program.segments)
        return {alloc.tensor: op for op, allocs in taken for alloc in allocs}
    return {op.name: op for op, _ in walk_ops(program.body, program.segments)}

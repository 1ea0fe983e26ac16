"""The cost of fusions: the share of each operand that is read, and the operations computed.

The walk goes from the root of a fusion back to its parameters. Each instruction must produce a
share of its elements, and requires a share of each operand; a slice requires only the slice. So a
fusion that slices a stack of layers reads one layer of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log2, prod
from typing import TypeAlias

from tpusim.compiler.hlo.attributes import call_target, called_computations, callees
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.opcodes import (
    COLLECTIVE_OPCODES,
    FREE_TARGETS,
    PASSIVE_OPCODES,
    TARGET_WEIGHTS,
    vector_weight,
)
from tpusim.compiler.hlo.shapes import Shape
from tpusim.compiler.work.dots import DotShape, dot_shape
from tpusim.compiler.work.relayout import MOVED_WEIGHT, crossing_tiles
from tpusim.program import CombinedWork, VectorWork, Work

Operands: TypeAlias = Sequence[Instruction]


@dataclass(slots=True)
class FusionCost:
    """Operations and dots of the required instructions, in total.

    vector: operations of the vector unit.
    crossing: memory tiles that pass through the cross-lane unit.
    unknown: description of operations that are not understood.
    """

    vector: float = 0.0
    crossing: float = 0.0
    dots: list[DotShape] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def flops(self) -> float:
        """FLOPs of the dots."""
        return sum(dot.flops for dot in self.dots)

    @property
    def padding_flops(self) -> float:
        """Those of taps on padding."""
        return sum(dot.padding_flops for dot in self.dots)

    def work(self, read: float, write: float, stored: float, tiles: float = 0) -> Work:
        """Return one dot with all else as its epilogue, or several that share it by their FLOPs.

        tiles: those of the elements stored on the chip.

        A vector group takes at least one operation per stored element, in any memory, and at least
        the time of its tiles as they are moved whole.
        """
        if not self.dots:
            crossing = max(self.crossing, MOVED_WEIGHT * tiles)
            operations = max(self.vector, stored)
            return VectorWork(read, write, operations, crossing=crossing, compiled=True)
        shares = [self._share(dot) for dot in self.dots]
        works = tuple(
            dot.work(share * read, share * write, share * self.vector)
            for dot, share in zip(self.dots, shares, strict=True)
        )
        return works[0] if len(works) == 1 else CombinedWork(works)

    def _share(self, dot: DotShape) -> float:
        return dot.flops / self.flops if self.flops else 1 / len(self.dots)


def operand_shares(
    module: HloModule,
    instruction: Instruction,
    operands: Operands,
    tally: FusionCost,
    share: float = 1.0,
) -> list[float]:
    """Return the share of each operand, 0 to 1, that is read for a share of the result.

    tally: collects the operations.
    """
    op = instruction.opcode
    if len(operands) < _MIN_OPERANDS.get(op, 0):
        raise ValueError(f"it has only {len(operands)} operands")
    if op == "fusion":
        return _fusion(module, _body(module, instruction), tally, share)
    if op in ("dot", "convolution"):
        left, right, out = map(_first_array, (*operands[:2], instruction))
        tally.dots.append(dot_shape(instruction, left, right, out))
        return [1.0] * len(operands)
    tally.vector += share * _operations(instruction, operands, tally)
    tally.crossing += share * crossing_tiles(instruction, operands)
    return _READ_RULES.get(op, _read_elementwise)(instruction, operands, share)


def _body(module: HloModule, fusion: Instruction) -> Computation:
    for body in called_computations(module, fusion, "calls"):
        return body
    raise ValueError(f"it calls {callees(fusion)}, which do not exist")


def _fusion(module: HloModule, body: Computation, tally: FusionCost, share: float) -> list[float]:
    required = {body.root: share}
    for instruction in reversed(body.instructions):
        wanted = required.get(instruction.name, 0.0)
        if not wanted or instruction.opcode == "parameter":
            continue
        operands = body.operands(instruction)
        found = operand_shares(module, instruction, operands, tally, wanted)
        for name, part in zip(instruction.operands, found, strict=False):
            required[name] = min(1.0, required.get(name, 0.0) + part)
    return [required.get(parameter.name, 0.0) for parameter in body.parameters]


def written_shares(module: HloModule, body: Computation, name: str) -> list[float]:
    """Return the share of each array of a result that is written: only updates if in place."""
    instruction = body[name]
    op = instruction.opcode
    if op == "tuple":
        return [share for part in instruction.operands for share in _tuple_part(module, body, part)]
    if op == "fusion":
        inner = _body(module, instruction)
        return written_shares(module, inner, inner.root)
    if op in ("bitcast", "reshape") and instruction.operands:
        return written_shares(module, body, instruction.operands[0])
    if op in _IN_PLACE and body[instruction.operands[0]].opcode not in _COMPUTING:
        update = body[instruction.operands[_IN_PLACE[op]]]
        return [min(1.0, _elements(update) / max(_elements(instruction), 1))]
    if op in COLLECTIVE_OPCODES or call_target(instruction).startswith("AsyncCollective"):
        return [0.0] * len(instruction.arrays)
    return [1.0] * len(instruction.arrays)


def _tuple_part(module: HloModule, body: Computation, name: str) -> list[float]:
    """Return the written shares of one part of a tuple: none of a parameter passed through."""
    passed = body[name].opcode == "parameter"
    return [0.0] * len(body[name].arrays) if passed else written_shares(module, body, name)


_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
"""Operations that update their first operand in place, and the index of the update."""

_COMPUTING = frozenset({"convert", "select", "add", "multiply"})
"""Operations that compute a whole array: an update of their result is not in place."""


_MIN_OPERANDS = {
    **dict.fromkeys(("convert", "slice", "dynamic-slice"), 1),
    **dict.fromkeys(("dot", "convolution", "gather", "dynamic-update-slice"), 2),
    "scatter": 3,
}


def _first_array(instruction: Instruction) -> Shape:
    for shape in instruction.arrays:
        return shape
    raise ValueError(f"{instruction.name} has no array")


def _elements(instruction: Instruction) -> int:
    return sum(shape.elements for shape in instruction.arrays)


def _operations(instruction: Instruction, operands: Operands, tally: FusionCost) -> float:
    op, out = instruction.opcode, _elements(instruction)
    if op in ("reduce", "select-and-scatter"):
        return sum(_elements(operand) for operand in operands[: max(len(operands) // 2, 1)])
    if op == "reduce-window":
        return out * _window_rounds(instruction)
    if op == "convert" and operands[0].opcode == "broadcast":
        return 0.0
    if op == "sort":
        return 2 * out * _sort_rounds(_first_array(instruction))
    if op == "scatter":
        return _elements(operands[-1])
    if op == "custom-call" and call_target(instruction) in TARGET_WEIGHTS:
        return TARGET_WEIGHTS[call_target(instruction)] * sum(map(_elements, operands[:1]))
    if op == "custom-call" and call_target(instruction) not in FREE_TARGETS:
        tally.unknown.append(f"custom call {call_target(instruction)!r}")
    each = vector_weight(op)
    if each is None:
        tally.unknown.append(f"opcode {op!r}")
    return out * (1.0 if each is None else each)


def _window_rounds(instruction: Instruction) -> int:
    """Return operations per element: partial sums that double in size in each round.

    One where every window spans all elements: a reduction that is broadcast again.
    """
    found = _WINDOW_SIZES.search(instruction.attributes)
    taps = [int(size) for size in found[1].split("x")] if found else []
    dims = _first_array(instruction).dims
    if all(tap in (1, 2 * dim - 1) for tap, dim in zip(taps, dims, strict=True)):
        return 1
    return 1 + ceil(log2(prod(taps)))


_WINDOW_SIZES = re.compile(r"window=\{size=([\dx]+)")


def _sort_rounds(shape: Shape) -> float:
    """Return the rounds of a bitonic sort of the longest dimension: `log n (log n + 1) / 2`."""
    rounds = log2(max(shape.dims, default=1) or 1)
    return rounds * (rounds + 1) / 2


def _read_elementwise(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """Return the same share for each operand; more of one with fewer elements."""
    out = max((shape.elements for shape in instruction.arrays), default=0)
    return [min(1.0, share * max(1.0, out / max(_elements(o), 1))) for o in operands]


def _read_slice(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """Return the slice's share of the first operand, and all of the indices."""
    part = _elements(instruction) / max(_elements(operands[0]), 1)
    return [min(1.0, share * part), *(1.0 for _ in operands[1:])]


def _read_update(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """Return none of the operand updated in place; all of the update and the indices."""
    whole = share if operands[0].opcode in _COMPUTING else 0.0
    return [whole, *(1.0 for _ in operands[1:])]


def _read_scatter(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """Return as much of the first operand as is added to it; all of the updates and the indices."""
    part = _elements(operands[-1]) / max(_elements(operands[0]), 1)
    return [min(1.0, part), *(1.0 for _ in operands[1:])]


def _read_same(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    return [share for _ in operands]


def _read_tuple(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """Return the share of what is computed for a tuple; a parameter passed through is not read."""
    return [0.0 if operand.opcode == "parameter" else share for operand in operands]


def _read_nothing(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    return [0.0 for _ in operands]


ReadRule: TypeAlias = Callable[[Instruction, Operands, float], list[float]]

_READ_RULES: Mapping[str, ReadRule] = {
    "dynamic-slice": _read_slice,
    "slice": _read_slice,
    "gather": _read_slice,
    "dynamic-update-slice": _read_update,
    "scatter": _read_scatter,
    **dict.fromkeys(("pad", "concatenate", *PASSIVE_OPCODES), _read_same),
    "tuple": _read_tuple,
    **dict.fromkeys(COLLECTIVE_OPCODES, _read_nothing),
}


_SKIPPED = re.compile(
    r'"iteration_skipper_mode":"ITERATION_SKIPPER_MODE_(?:\w+_INDICES|GROUP_\w+)"'
)
EVEN_GROUPS = "grouped matmul: groups taken as even"


def ragged_groups(instruction: Instruction, tally: FusionCost) -> int:
    """Return the number of groups that share the rows of a fusion's ragged dots; otherwise 1.

    The compiler writes the weight gradient of a ragged dot as a dot over all rows for every group,
    with a mask, and skips the iterations in which the mask is empty (libtpu's pass
    `masked-fusion-iteration-skipper`, recorded as the fusion's `iteration_skipper_mode`). The dots
    of `tally` become ragged, so that only a group's own iterations count.
    """
    if not tally.dots or not _SKIPPED.search(instruction.attributes):
        return 1
    groups = min(dot.batch for dot in tally.dots)
    if groups > 1:
        tally.dots = [replace(dot, ragged=True) for dot in tally.dots]
        tally.vector /= groups
    return max(groups, 1)

"""How often a while loop runs: (bound - start) / step, read from its condition, body and operand.

Compiled loops count in a scalar of their carry. Rings of collective matmul count in steps of two,
and loops that the compiler pipelined start at one, so the bound alone is not the number of trips.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.xla.attributes import called, word
from tpusim.xla.module import Computation, Instruction, Module

Value: TypeAlias = "int | tuple[int, int] | None"
"""What a scalar is: a number, or (element of the carry, what is added to it), or not known."""

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SAME = ("copy", "bitcast", "convert", "reshape", "copy-done", "optimization-barrier")
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}
MOST = 10**9
"""More trips than any loop of a step has; so long a loop was misread."""


def trips(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often a `while` of a computation runs its body; None where that cannot be read.

    So it is of a counter that goes through more instructions than Python has room for.
    """
    found = _KNOWN.search(loop.attributes)
    if found:
        return int(found[1])
    for condition in called(loop, "condition"):
        for body in called(loop, "body"):
            if condition in module.computations and body in module.computations:
                try:
                    return _counted(module, computation, loop, condition, body)
                except RecursionError:
                    return None
    return None


def _counted(
    module: Module, computation: Computation, loop: Instruction, condition: str, body: str
) -> int | None:
    asked = _compared(_Scalars(module, module.computations[condition]))
    if asked is None:
        return None
    (index, ahead), bound, direction = asked
    within = _Scalars(module, module.computations[body])
    start = _Scalars(module, computation).element(loop.operands[0], index)
    step = within.element(within.computation.root, index)
    if not isinstance(start, int) or not isinstance(step, tuple) or step[0] != index:
        return None
    return length(start + ahead, bound, step[1], direction)


def length(start: int, bound: int, step: int, direction: str) -> int | None:
    """How many of start, start + step, ... satisfy the condition before the first that does not."""
    if direction in ("GT", "GE"):
        start, bound, step = -start, -bound, -step
        direction = _MIRRORED[direction]
    if direction == "NE" and step and (bound - start) % step == 0:
        count = (bound - start) // step
    elif direction in ("LT", "LE") and step > 0:
        count = -((start - bound - (direction == "LE")) // step)
    else:
        return None
    return max(count, 0) if count <= MOST else None


def _compared(scalars: "_Scalars") -> tuple[tuple[int, int], int, str] | None:
    """Which element of the carry, plus what, a condition compares with which number, and how."""
    for compare, inside in scalars.roots():
        if compare.opcode != "compare" or len(compare.operands) != 2:
            continue
        direction = word(compare, "direction")
        left, right = (inside.value(name) for name in compare.operands)
        if isinstance(left, tuple) and isinstance(right, int):
            return left, right, direction
        if isinstance(right, tuple) and isinstance(left, int) and direction in _MIRRORED:
            return right, left, _MIRRORED[direction]
    return None


@dataclass(slots=True)
class _Scalars:
    """The values of a computation's scalars, in terms of its carry where it has one."""

    module: Module
    computation: Computation
    given: Mapping[str, Value] = field(default_factory=dict)
    known: dict[str, Value] = field(default_factory=dict)

    def roots(self) -> Iterator[tuple[Instruction, "_Scalars"]]:
        """The root, or that of the fusion that it is."""
        root = self.computation[self.computation.root]
        yield root, self
        for inside in self._fused(root):
            yield inside.computation[inside.computation.root], inside

    def value(self, name: str) -> Value:
        """What an instruction gives."""
        if name not in self.known:
            self.known[name] = None
            if name in self.computation:
                self.known[name] = self._worked_out(self.computation[name])
        return self.known[name]

    def element(self, name: str, index: int) -> Value:
        """An element of a tuple."""
        if name not in self.computation:
            return None
        made = self.computation[name]
        if made.opcode == "tuple" and index < len(made.operands):
            return self.value(made.operands[index])
        if made.opcode in _SAME and made.operands:
            return self.element(made.operands[0], index)
        if made.opcode == "parameter":
            return (index, 0)
        for inside in self._fused(made):
            return inside.element(inside.computation.root, index)
        return None

    def _worked_out(self, made: Instruction) -> Value:
        if made.name in self.given:
            return self.given[made.name]
        if made.opcode == "constant":
            return _integer(made.literal)
        if made.opcode in _SAME and made.operands:
            return self.value(made.operands[0])
        if made.opcode == "get-tuple-element":
            return self.element(made.operands[0], int(word(made, "index") or 0))
        if made.opcode in ("add", "subtract") and len(made.operands) == 2:
            left, right = (self.value(name) for name in made.operands)
            return _sum(left, right, -1 if made.opcode == "subtract" else 1)
        for inside in self._fused(made):
            return inside.value(inside.computation.root)
        return None

    def _fused(self, made: Instruction) -> Iterator["_Scalars"]:
        """The inside of a fusion, its parameters given."""
        if made.opcode not in ("fusion", "call"):
            return
        for name in called(made):
            if name in self.module.computations:
                inside = self.module.computations[name]
                values = map(self.value, made.operands)
                given = {p.name: v for p, v in zip(inside.parameters, values, strict=False)}
                yield _Scalars(self.module, inside, given)


def _sum(left: Value, right: Value, sign: int) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    if isinstance(left, tuple) and isinstance(right, int):
        return left[0], left[1] + sign * right
    if isinstance(left, int) and isinstance(right, tuple) and sign > 0:
        return right[0], right[1] + left
    return None


def _integer(literal: str) -> int | None:
    """The number of a scalar constant, or of an array of one."""
    text = literal.strip("{} ")
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None

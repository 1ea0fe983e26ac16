"""Trip counts of while loops: (bound - start) / step, from condition, body and operand.

Compiled loops count in a scalar of their carry. The loops of collective matmuls count in steps of
two, and software-pipelined loops start at one, so the bound alone is not the trip count.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.compiler.hlo.attributes import called_computations, plain_attribute
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction

ScalarValue: TypeAlias = "int | tuple[int, int] | None"
"""A scalar: a number, (element of the carry, offset), or unknown."""

_KNOWN_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TRANSPARENT = ("copy", "bitcast", "convert", "reshape", "copy-done", "optimization-barrier")
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}
MAX_TRIP_COUNT = 10**9
"""Bound on trip counts; a longer loop was misread."""


def trip_count(module: HloModule, computation: Computation, loop: Instruction) -> int | None:
    """Return the trip count of a `while` of a computation; None if it cannot be read.

    That includes counters that go through more instructions than Python's recursion limit.
    """
    found = _KNOWN_TRIP_COUNT.search(loop.attributes)
    if found:
        return int(found[1])
    conditions = called_computations(module, loop, "condition")
    bodies = called_computations(module, loop, "body")
    if not (conditions and bodies):
        return None
    try:
        return _counter_trips(module, computation, loop, conditions[0], bodies[0])
    except RecursionError:
        return None


def _counter_trips(
    module: HloModule,
    computation: Computation,
    loop: Instruction,
    condition: Computation,
    body: Computation,
) -> int | None:
    comparison = _comparison(_ScalarValues(module, condition))
    if comparison is None:
        return None
    (index, ahead), bound, direction = comparison
    start = _ScalarValues(module, computation).element(loop.operands[0], index)
    step = _ScalarValues(module, body).element(body.root, index)
    if not isinstance(start, int) or not isinstance(step, tuple) or step[0] != index:
        return None
    return count_iterations(start + ahead, bound, step[1], direction)


def count_iterations(start: int, bound: int, step: int, direction: str) -> int | None:
    """Return the number of start, start + step, ... that satisfy the condition in a row."""
    if direction in ("GT", "GE"):
        start, bound, step = -start, -bound, -step
        direction = _MIRRORED[direction]
    if direction == "NE" and step and (bound - start) % step == 0:
        count = (bound - start) // step
    elif direction in ("LT", "LE") and step > 0:
        count = -((start - bound - (direction == "LE")) // step)
    else:
        return None
    return max(count, 0) if count <= MAX_TRIP_COUNT else None


def _comparison(scalars: "_ScalarValues") -> tuple[tuple[int, int], int, str] | None:
    """Return carry element and offset, the number it is compared with, and the direction."""
    for compare, inner in scalars.roots():
        if compare.opcode != "compare" or len(compare.operands) != 2:
            continue
        direction = plain_attribute(compare, "direction")
        left, right = (inner.value(name) for name in compare.operands)
        if isinstance(left, tuple) and isinstance(right, int):
            return left, right, direction
        if isinstance(right, tuple) and isinstance(left, int) and direction in _MIRRORED:
            return right, left, _MIRRORED[direction]
    return None


@dataclass(slots=True)
class _ScalarValues:
    """The values of a computation's scalars, in terms of its carry if it has one."""

    module: HloModule
    computation: Computation
    given: Mapping[str, ScalarValue] = field(default_factory=dict)
    known: dict[str, ScalarValue] = field(default_factory=dict)

    def roots(self) -> Iterator[tuple[Instruction, "_ScalarValues"]]:
        """Yield the root and, if it is a fusion, the root of that."""
        root = self.computation[self.computation.root]
        yield root, self
        for inner in self._fused(root):
            yield inner.computation[inner.computation.root], inner

    def value(self, name: str) -> ScalarValue:
        """Return the value of an instruction."""
        if name not in self.known:
            self.known[name] = None
            if name in self.computation:
                self.known[name] = self._evaluate(self.computation[name])
        return self.known[name]

    def element(self, name: str, index: int) -> ScalarValue:
        """Return the value of an element of a tuple."""
        if name not in self.computation:
            return None
        made = self.computation[name]
        if made.opcode == "tuple" and index < len(made.operands):
            return self.value(made.operands[index])
        if made.opcode in _TRANSPARENT and made.operands:
            return self.element(made.operands[0], index)
        if made.opcode == "parameter":
            return (index, 0)
        for inner in self._fused(made):
            return inner.element(inner.computation.root, index)
        return None

    def _evaluate(self, made: Instruction) -> ScalarValue:
        if made.name in self.given:
            return self.given[made.name]
        if made.opcode == "constant":
            return _integer(made.literal)
        if made.opcode in _TRANSPARENT and made.operands:
            return self.value(made.operands[0])
        if made.opcode == "get-tuple-element":
            return self.element(made.operands[0], int(plain_attribute(made, "index") or 0))
        if made.opcode in ("add", "subtract") and len(made.operands) == 2:
            left, right = (self.value(name) for name in made.operands)
            return _sum(left, right, -1 if made.opcode == "subtract" else 1)
        for inner in self._fused(made):
            return inner.value(inner.computation.root)
        return None

    def _fused(self, made: Instruction) -> Iterator["_ScalarValues"]:
        """Yield the computation of a fusion, with its parameters bound."""
        if made.opcode not in ("fusion", "call"):
            return
        for inner in called_computations(self.module, made):
            values = map(self.value, made.operands)
            given = {p.name: v for p, v in zip(inner.parameters, values, strict=False)}
            yield _ScalarValues(self.module, inner, given)


def _sum(left: ScalarValue, right: ScalarValue, sign: int) -> ScalarValue:
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    if isinstance(left, tuple) and isinstance(right, int):
        return left[0], left[1] + sign * right
    if isinstance(left, int) and isinstance(right, tuple) and sign > 0:
        return right[0], right[1] + left
    return None


def _integer(literal: str) -> int | None:
    """Return the number of a scalar constant, or of an array of one."""
    text = literal.strip("{} ")
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None

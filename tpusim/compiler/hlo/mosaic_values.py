"""Numbers in the body of a Pallas kernel, at every step of its grid and of its loops.

A number is an array with an axis for each dimension of the grid, and one in front of them for each
loop around it; what does not depend on an axis is 1 long there. So the share of steps at which a
condition holds is the mean of an array, whatever it is made of: `k == 0` and `k != 0` have 1 and
n - 1 of n steps.

Used only by the child process that runs `parser.py`. It imports nothing of tpusim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

ALWAYS: Mask = np.asarray(True)
"""All steps."""

MAX_PLACES = 2**20
"""Steps up to which numbers are followed."""

MAX_READ = 50_000
"""Operations that are evaluated for a kernel; a loop that carries numbers takes some a step."""

MAX_DEPTH = 200
"""Operations from a condition back to what it depends on."""


@dataclass(frozen=True)
class _KnownLoop:
    """A loop of known trips. counter, values: its counter, and that at each step.

    first, after: of each number that it carries, what it begins with, and what it is next.
    axes: of the grid and of the loops around it.
    """

    counter: Any
    values: Numbers
    first: dict[Any, Any]
    after: dict[Any, Any]
    axes: int


Step: TypeAlias = dict[Any, Numbers | None]
"""Values in one step of a loop that is being followed."""


class KernelValues:
    """The numbers of a kernel with a grid; dimensions of unknown size are negative."""

    def __init__(self, grid: Sequence[int]) -> None:
        self._grid = tuple(grid)
        self._axes = len(self._grid)
        self._known: Step = {}
        self._carried: dict[Any, _KnownLoop] = {}
        self._read: dict[Any, tuple[Callable[..., Any] | None, list[Any]]] = {}
        self._left = MAX_READ

    def enter(self, loop: Any, trips: int | None) -> None:
        """Know the counter and the carried numbers of a loop; None for unknown trips."""
        body = loop.regions[0].blocks[0]
        counter, *carried = body.arguments
        start, _, step, *first = loop.operands
        begin, by = self.number(start), self.number(step)
        if trips and trips <= MAX_PLACES and begin is not None and by is not None:
            values = begin + by * _along(trips, self._axes)
            begins, after = (
                dict(zip(carried, each, strict=True))
                for each in (first, list(body.operations)[-1].operands)
            )
            self._known[counter] = values
            known = _KnownLoop(counter, values, begins, after, self._axes)
            self._carried |= dict.fromkeys(carried, known)
        self._axes += 1

    def leave(self) -> None:
        """Leave the loop that was entered last."""
        self._axes -= 1

    def _follow(self, carried: Any) -> Numbers | None:
        """Return a carried number at every step of its loop; those carried with it become known.

        A number that is not known in one step is known in none, and is not followed further.
        """
        loop = self._carried[carried]
        unknown: Step = dict.fromkeys(loop.first)
        seen: dict[Any, list[Numbers]] = {each: [] for each in loop.first}
        now = {each: self.number(first) for each, first in loop.first.items()}
        for at in loop.values:
            known = {each: value for each, value in now.items() if value is not None}
            if carried not in known:
                break
            for each, value in known.items():
                seen[each].append(value)
            here: Step = {**unknown, **known, loop.counter: at}
            now = {each: self.number(loop.after[each], here) for each in known}
        whole = [each for each in seen if len(seen[each]) == len(loop.values)]
        self._known |= {each: _stacked(seen[each], loop) for each in whole}
        return self._known.setdefault(carried)

    def constant(self, value: Any) -> int | None:
        """Return a number that is the same at every step; None for any other."""
        found = self.number(value)
        return int(found.item()) if found is not None and found.size == 1 else None

    def number(self, value: Any, here: Step | None = None, depth: int = 0) -> Numbers | None:
        """Return a number at every step, or in the step `here`; None if these do not determine it.

        A number that takes too many operations is None too.
        """
        memory = self._known if here is None else here
        if value not in memory and self._known.get(value) is not None:
            return self._known[value]
        if value not in memory:
            self._left -= 1
            if self._left < 0 or depth > MAX_DEPTH:
                return None
            memory[value] = self._made(value, here, depth + 1)
        return memory[value]

    def _made(self, value: Any, here: Step | None, depth: int) -> Numbers | None:
        if value in self._carried:
            return self._follow(value)
        if value not in self._read:
            self._read[value] = self._first_read(value)
        does, operands = self._read[value]
        given = [self.number(operand, here, depth) for operand in operands] if does else []
        numbers = [each for each in given if each is not None]
        if does is None or len(numbers) < len(given) or _size(*numbers) > MAX_PLACES:
            return None
        try:
            with np.errstate(divide="raise"):
                return np.asarray(does(*numbers), dtype=np.int64)
        except FloatingPointError:
            return None

    def _first_read(self, value: Any) -> tuple[Callable[..., Any] | None, list[Any]]:
        """Return what an operation does, and its operands; None for one that is not known."""
        made = value.owner
        if not hasattr(made, "operands"):
            in_grid = operation_name(made.owner) == "func.func"
            fixed = self._place(value) if in_grid else None
        elif (name := operation_name(made)) in OPERATIONS or name == "arith.cmpi":
            return OPERATIONS.get(name) or COMPARISONS[predicate(made)], list(made.operands)
        else:
            fixed = _constant(made) if name == "arith.constant" else None
        return (None if fixed is None else lambda: fixed), []

    def _place(self, argument: Any) -> Numbers | None:
        """Return the steps along a dimension of the grid, if the argument is one."""
        at = int(argument.arg_number)
        if at >= len(self._grid) or not 0 < self._grid[at] <= MAX_PLACES:
            return None
        return _along(self._grid[at], len(self._grid) - 1 - at)

    def holds(self, condition: Any) -> Mask | None:
        """Return where a condition holds; None if that is not known."""
        found = self.number(condition)
        return None if found is None else found != 0

    def may_hold(self, condition: Any, depth: int = 0) -> Mask:
        """Return where a condition may hold: a part that is not known may."""
        found = self.holds(condition)
        made = condition.owner
        if found is not None or not hasattr(made, "operands") or depth > MAX_DEPTH:
            return ALWAYS if found is None else found
        if operation_name(made) == "arith.andi":
            one, other = (self.may_hold(each, depth + 1) for each in made.operands)
            return one & other if _size(one, other) <= MAX_PLACES else one
        inner, holds = _unwrapped(made)
        return self.may_hold(inner, depth + 1) if inner is not None and holds else ALWAYS


def _along(size: int, axes: int) -> Numbers:
    """Return 0, 1, ... along an axis in front of so many others."""
    return np.arange(size, dtype=np.int64).reshape(size, *[1] * axes)


def _stacked(steps: list[Numbers], loop: _KnownLoop) -> Numbers | None:
    """Return a number at all steps of a loop, along the axis of the loop."""
    if len(steps) * _size(*steps) > MAX_PLACES:
        return None
    found = np.stack(np.broadcast_arrays(*steps))
    return found.reshape(len(steps), *[1] * (loop.axes + 1 - found.ndim), *found.shape[1:])


def share(inside: Mask, where: Mask) -> tuple[Fraction, Mask]:
    """Return the share of the steps `where` that are `inside` too, and these."""
    if _size(inside, where) > MAX_PLACES:
        return Fraction(1), where
    both, all_of = np.broadcast_arrays(inside & where, where)
    count = int(np.count_nonzero(all_of))
    return Fraction(int(np.count_nonzero(both)), count) if count else Fraction(0), inside & where


def sides(condition: Any, depth: int = 0) -> tuple[Any, bool]:
    """Return what a condition is made of, and True for it or False for its opposite."""
    made = condition.owner
    if not hasattr(made, "operands") or depth > MAX_DEPTH:
        return condition, True
    inner, holds = _unwrapped(made)
    if inner is not None:
        found, side = sides(inner, depth + 1)
        return found, side is holds
    if operation_name(made) != "arith.cmpi":
        return condition, True
    asked = predicate(made)
    base = min(asked, OPPOSITE[asked])
    return (base, *map(_key, made.operands)), asked == base


def _unwrapped(made: Any) -> tuple[Any, bool]:
    """Return the condition of which an operation is a form: True for itself, False for its
    opposite. None for the condition if it is none."""
    name = operation_name(made)
    if name == "arith.extui":
        return made.operands[0], True
    keys = [_key(each) for each in made.operands]
    if name == "arith.xori" and ("number", 1) in keys:
        return made.operands[keys[0] == ("number", 1)], False
    compared = name == "arith.cmpi" and predicate(made)
    if compared == NOT_EQUAL and keys[1] == ("number", 0):
        wide = made.operands[0].owner
        if hasattr(wide, "operands") and operation_name(wide) == "arith.extui":
            return wide.operands[0], True
    return None, True


def _key(value: Any) -> Any:
    made = value.owner
    if not hasattr(made, "operands") or operation_name(made) != "arith.constant":
        return value
    found = _constant(made)
    return value if found is None else ("number", int(found))


def _size(*arrays: NDArray[Any]) -> int:
    return prod(np.broadcast_shapes(*(each.shape for each in arrays)))


def _constant(made: Any) -> Numbers | None:
    """Return a constant, 1 for true; None if it is no number."""
    try:
        found = int(made.attributes["value"].value)
        one_bit = str(made.results[0].type) == "i1"
        return np.asarray(found & 1 if one_bit else found, dtype=np.int64)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def operation_name(operation: Any) -> str:
    """Return the name of an operation, as its dialect has it."""
    return str(operation.operation.name).removeprefix("stable_mosaic.")


def predicate(comparison: Any) -> int:
    """Return the predicate of a comparison of integers, as MLIR numbers them."""
    found = int(comparison.attributes["predicate"])
    if found not in range(len(COMPARISONS)):
        raise ValueError(f"predicate {found} is not understood")
    return found


NOT_EQUAL = 1

COMPARISONS: tuple[Callable[..., Any], ...] = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.less, np.less_equal, np.greater, np.greater_equal),
)
"""By predicate; the last four are of numbers without a sign, as sizes and places are."""

OPPOSITE = (1, 0, 5, 4, 3, 2, 9, 8, 7, 6)
"""The predicate that holds where another one does not."""

OPERATIONS: dict[str, Callable[..., Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    **dict.fromkeys(("arith.divsi", "arith.divui"), lambda a, b: (a - np.fmod(a, b)) // b),
    **dict.fromkeys(("arith.remsi", "arith.remui"), np.fmod),
    **dict.fromkeys(("arith.maxsi", "arith.maxui"), np.maximum),
    **dict.fromkeys(("arith.minsi", "arith.minui"), np.minimum),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.select": lambda which, one, other: np.where(which != 0, one, other),
    **dict.fromkeys(
        ("arith.index_cast", "arith.extsi", "arith.extui", "arith.trunci"), np.positive
    ),
}
"""Operations on numbers; those without a sign are taken as none is negative."""

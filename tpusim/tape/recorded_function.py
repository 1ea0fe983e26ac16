"""A recorded run as Python functions: its operations as expressions, its decisions as conditions.

The source can be printed and read. It has two parts, as some inputs change less often: the outer
function takes those and returns the inner one, which takes the rest and returns the outputs. A
number that is used once stands where it is used: three of four do, and the source then compiles in
0.7 of the time.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from keyword import iskeyword
from math import isfinite
from typing import Any, TypeAlias

from tpusim.tape.tape import Operation, Tape
from tpusim.tape.traced import Traced

Outputs: TypeAlias = tuple[Any, ...]

_SYMBOLS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.and_: "&",
    operator.or_: "|",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}
_TAKEN = re.compile(r"given|run|[vc]\d+")
"""Names that mean something else in the source."""

_DEEPEST = 30
"""Operations within each other in an expression, at most: Python's parser has a limit."""

_PREFIXES = {operator.neg: "-", operator.pos: "+"}


@dataclass(frozen=True, slots=True)
class RecordedFunction:
    """The numbers of a recorded run for other inputs, bit by bit as the run itself would have them.

    source: of the Python functions.
    decisions: the number of conditions on which the run depends.
    operations: the number of operations.
    given: takes the early inputs, and returns the function of the late ones, which returns the
        outputs. Either returns None where a decision differs.
    """

    source: str
    decisions: int
    operations: int
    given: Callable[..., Callable[..., Outputs | None] | None]

    def __call__(self, early: Iterable[Any], late: Iterable[Any] = ()) -> Outputs | None:
        """Return the outputs, or None where a decision differs."""
        run = self.given(*early)
        return None if run is None else run(*late)


def recorded_function(tape: Tape, numbers: Sequence[Traced]) -> RecordedFunction:
    """Return the function from a tape's inputs to some of its numbers."""
    outputs = [each.node for each in numbers]
    needed = _needed(tape, outputs)
    late = _depends(tape, tape.late_inputs)
    writer = _TapeWriter(tape, _used_once(tape, needed, outputs, late))
    writer.name_constants(needed)
    early_lines = list(writer.lines(at for at in needed if at not in late))
    late_lines = list(writer.lines(at for at in needed if at in late))
    early = ", ".join(f"v{at}" for at in tape.early_inputs)
    inner = ", ".join(f"v{at}" for at in tape.late_inputs)
    results = "".join(f"{writer.names[at]}, " for at in outputs)
    body = [*(f"    {line}" for line in late_lines), f"    return ({results})"]
    source = "\n    ".join(
        [f"def given({early}):", *early_lines, f"def run({inner}):", *body, "return run"]
    )
    exec(compile(source, "<tape>", "exec"), writer.scope)
    operations = sum(tape.operations[at] is not None for at in needed)
    return RecordedFunction(source, len(tape.decisions), operations, writer.scope["given"])


class _TapeWriter:
    """Writes the lines of a tape.

    inlined: positions of the numbers that stand where they are used.
    names: the expression of each number.
    scope: the functions and constants that the lines name.
    """

    def __init__(self, tape: Tape, inlined: Set[int]) -> None:
        self.tape = tape
        self.inlined = inlined
        self.names: dict[int, str] = {}
        self._depths: dict[int, int] = {}
        self.scope: dict[str, Any] = {}
        self._asked: dict[int, list[str]] = {}
        for (at, truth), outcome in tape.decisions.items():
            negated = "not " if outcome else ""
            test = f"{negated}v{at}" if truth else f"v{at} != {self._constant(outcome)}"
            self._asked.setdefault(at, []).append(f"if {test}: return None")

    def name_constants(self, needed: Sequence[int]) -> None:
        """Name the numbers: constants by their value, all others by their position."""
        for at in needed:
            is_constant = at in self.tape.constants
            self.names[at] = self._constant(self.tape.values[at]) if is_constant else f"v{at}"

    def lines(self, positions: Iterable[int]) -> Iterator[str]:
        """Yield the lines of some numbers, each decision as soon as its number is known."""
        for at in positions:
            operation = self.tape.operations[at]
            if operation is not None:
                expression = self._expression(operation)
                depth = self._depth(operation) if at in self.inlined else _DEEPEST
                if depth < _DEEPEST:
                    self.names[at] = expression
                    self._depths[at] = depth
                else:
                    yield f"v{at} = {expression}"
            yield from self._asked.get(at, ())

    def _depth(self, operation: Operation) -> int:
        return 1 + max((self._depths.get(each, 0) for each in operation.operands), default=0)

    def _expression(self, operation: Operation) -> str:
        function, names = operation.function, self.names
        symbol = _SYMBOLS.get(function) or _PREFIXES.get(function)
        if symbol is None:
            operands = ", ".join([names[each] for each in operation.operands])
            return f"{self._function(function)}({operands})"
        parts = [
            f"({names[each]})" if each in self._depths else names[each]
            for each in operation.operands
        ]
        return f" {symbol} ".join(parts) if len(parts) > 1 else f"{symbol}{parts[0]}"

    def _function(self, function: Callable[..., Any]) -> str:
        name = getattr(function, "__name__", "").strip("_")
        if not name.isidentifier() or iskeyword(name) or _TAKEN.fullmatch(name):
            name = "function"
        unique, number = name, 1
        while self.scope.setdefault(unique, function) != function:
            number += 1
            unique = f"{name}_{number}"
        return unique

    def _constant(self, value: Any) -> str:
        if type(value) in (bool, str) or (type(value) in (int, float) and isfinite(value)):
            text = repr(value)
            return f"({text})" if text.startswith("-") else text
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name


def _needed(tape: Tape, outputs: Sequence[int]) -> list[int]:
    """Return the positions on which outputs and decisions depend, in order."""
    found: set[int] = set()
    open_nodes = [*outputs, *(at for at, _ in tape.decisions)]
    while open_nodes:
        at = open_nodes.pop()
        if at not in found:
            found.add(at)
            operation = tape.operations[at]
            open_nodes += operation.operands if operation else ()
    return sorted(found)


def _used_once(
    tape: Tape, needed: Sequence[int], outputs: Sequence[int], late: Set[int]
) -> set[int]:
    """Return the positions of numbers with one use, in the same part, that are no decision."""
    users: dict[int, list[bool]] = {}
    for at in needed:
        operation = tape.operations[at]
        for each in operation.operands if operation else ():
            users.setdefault(each, []).append(at in late)
    for at in outputs:
        users.setdefault(at, []).append(True)
    decided = {at for at, _ in tape.decisions}
    return {at for at, found in users.items() if at not in decided and found == [at in late]}


def _depends(tape: Tape, inputs: Iterable[int]) -> set[int]:
    """Return the positions that depend on some inputs, with the inputs themselves."""
    found = set(inputs)
    for at, operation in enumerate(tape.operations):
        if operation is not None and not found.isdisjoint(operation.operands):
            found.add(at)
    return found

"""A recorded run as a Python function: its operations as lines, its decisions as a condition.

The source can be printed and read. The same source serves numbers and, for many plans at once,
arrays: see `RecordedFunction.arrays`.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpusim.tape.tape import Tape

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
_PREFIXES = {operator.neg: "-", operator.pos: "+"}


@dataclass(frozen=True, slots=True)
class RecordedFunction:
    """The numbers of a recorded run for other inputs.

    source: of the Python function.
    decisions: the number of conditions on which the run depends.
    operations: the number of operations.
    """

    source: str
    decisions: int
    operations: int
    _run: Callable[..., tuple[Any, ...] | None]

    def __call__(self, *inputs: Any) -> tuple[Any, ...] | None:
        """Return the outputs, bit by bit as the recorded function would; None if a decision differs.

        inputs: in the order in which the tape took them.
        """
        return self._run(*inputs)


def compile_tape(tape: "Tape", outputs: Sequence[int]) -> RecordedFunction:
    """Return the function of a tape's inputs that gives these numbers."""
    needed = _needed(tape, outputs)
    names = {at: f"v{at}" for at in needed}
    scope: dict[str, Any] = {}
    lines = list(_lines(tape, needed, names, scope))
    parameters = ", ".join(f"v{at}" for at in tape.inputs)
    results = "".join(f"{names[at]}, " for at in outputs)
    source = "\n    ".join([f"def run({parameters}):", *lines, f"return ({results})"])
    exec(compile(source, "<tape>", "exec"), scope)
    operations = sum(tape.operations[at] is not None for at in needed)
    return RecordedFunction(source, len(tape.decisions), operations, scope["run"])


def _lines(
    tape: "Tape", needed: Sequence[int], names: dict[int, str], scope: dict[str, Any]
) -> Iterator[str]:
    """Yield the lines of the function, each decision as soon as its number is known."""
    asked: dict[int, list[str]] = {}
    for (at, truth), decision in tape.decisions.items():
        negated = "not " if decision.outcome else ""
        test = f"{negated}v{at}" if truth else f"v{at} != {_constant(decision.outcome, scope)}"
        asked.setdefault(at, []).append(f"if {test}: return None")
    for at in needed:
        operation = tape.operations[at]
        if operation is not None:
            operands = [names[each] for each in operation.operands]
            yield f"v{at} = {_expression(operation.function, operands, scope)}"
        elif at in tape.constants:
            names[at] = _constant(tape.values[at], scope)
        yield from asked.get(at, ())


def _needed(tape: "Tape", outputs: Sequence[int]) -> list[int]:
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


def _expression(function: Callable[..., Any], operands: list[str], scope: dict[str, Any]) -> str:
    if function in _SYMBOLS:
        return f" {_SYMBOLS[function]} ".join(operands)
    if function in _PREFIXES:
        return f"{_PREFIXES[function]}{operands[0]}"
    return f"{_named(function, scope)}({', '.join(operands)})"


def _named(function: Callable[..., Any], scope: dict[str, Any]) -> str:
    name = getattr(function, "__name__", "function").strip("<>_") or "function"
    number = 1
    unique = name
    while scope.setdefault(unique, function) is not function:
        number += 1
        unique = f"{name}_{number}"
    return unique


def _constant(value: Any, scope: dict[str, Any]) -> str:
    if type(value) in (int, float, bool, str) and value == value and abs(value or 0) != float("inf"):
        return f"({value!r})"
    name = f"c{len(scope)}"
    scope[name] = value
    return name

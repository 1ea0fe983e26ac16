"""Lines of a source file, each with the operation of the graph that it computes."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

INDENT = "    "
WIDTH = 99

_LAMBDA = re.compile(r"lambda [^:]*")
"""The parameters of a function, whose commas part no arguments of a call."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """One line of source.

    op: name of the graph's operation that the line computes; empty where it computes none.
    """

    text: str
    op: str = ""

    def __str__(self) -> str:
        return self.text


def plain(text: str) -> list[StepLine]:
    """Return the lines of a text that computes no operation."""
    return [StepLine(line) for line in text.splitlines()]


def indented(lines: Iterable[StepLine]) -> list[StepLine]:
    """Return the lines one level further in."""
    return [replace(line, text=INDENT + line.text) if line.text else line for line in lines]


def assignment(target: str, value: str, op: str, depth: int = 1) -> list[StepLine]:
    """Return `target = value`, broken at the outermost commas where it is too long for a line.

    depth: levels at which the line will stand.
    """
    whole = f"{target} = {value}"
    if len(whole) + depth * len(INDENT) <= WIDTH or not value.endswith(")"):
        return [StepLine(whole, op)]
    return [StepLine(line, op) for line in _broken(f"{target} = ", value, depth)]


def _broken(start: str, call: str, depth: int, end: str = "") -> Iterator[str]:
    """Yield a call with one argument a line; an argument that is too long is broken itself."""
    head, parts = _arguments(call)
    yield f"{start}{head}("
    for part in parts:
        if len(part) + (depth + 1) * len(INDENT) + 1 > WIDTH and part.endswith(")"):
            yield from (INDENT + line for line in _broken("", part, depth + 1, ","))
        else:
            yield f"{INDENT}{part},"
    yield f"){end}"


def _arguments(call: str) -> tuple[str, list[str]]:
    """Return the function of a call and its arguments."""
    head, _, rest = call.partition("(")
    parts, depth, quoted, current = [], 0, "", ""
    escaped = False
    for char in rest[:-1]:
        if quoted:
            quoted = "" if char == quoted and not escaped else quoted
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quoted = char
        elif char == "," and not depth and not _LAMBDA.fullmatch(current.strip()):
            parts.append(current.strip())
            current = ""
            continue
        else:
            depth += (char in "([{") - (char in ")]}")
        current += char
    return head, [*parts, *([current.strip()] if current.strip() else [])]

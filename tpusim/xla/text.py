"""The text of an HLO module as jaxlib prints it, taken apart into computations and instructions.

jaxlib has parsed and checked the module by then and printed it anew (`tpusim.xla.parser`), without
the shapes of operands and the signatures of computations. So this reads one way of writing, not the
grammar of HLO: a computation opens and closes on a line of its own, and an instruction begins one.
"""

import re
from typing import NamedTuple

from tpusim.errors import FileError
from tpusim.xla.module import Computation, Instruction

INSTEAD = (
    "give the whole text that the TPU compiler printed (`compiled.as_text()`, or the file "
    "`*after_optimizations.txt` of `--xla_dump_to`)"
)


class Printed(NamedTuple):
    """What a module's text says: its first line, its tables of frames, and its computations."""

    head: str
    frames: str
    entry: str
    computations: list[Computation]


def taken_apart(text: str) -> Printed:
    """The parts of a printed module. Raises FileError for what is not understood."""
    opens = [*_OPENS.finditer(text)]
    before = text[: opens[0].start()] if opens else text
    head, _, frames = before.partition("\n")
    entry = next((found[2] for found in opens if found[1]), "")
    ends = [*(found.start() for found in opens[1:]), len(text)]
    made = [
        _computation(found[2], text, found.end(), text.rfind("\n}", found.end(), end))
        for found, end in zip(opens, ends, strict=True)
    ]
    return Printed(head, frames, entry, made)


_OPENS = re.compile(r"^(ENTRY )?%(\S+) \{$", re.MULTILINE)
_BEGINS = re.compile(r"^  (ROOT )?%(\S+) = ", re.MULTILINE)


def _computation(name: str, text: str, begin: int, end: int) -> Computation:
    """The one whose instructions stand there; attributes of one may go over several lines."""
    begins = [*_BEGINS.finditer(text, begin, end)]
    root = next((found[2] for found in begins if found[1]), "")
    if not root:
        raise FileError(f"computation {name} has no end or no ROOT; {INSTEAD}")
    ends = [*(found.start() - 1 for found in begins[1:]), end]
    made = [
        _instruction(found[2], text[found.end() : to])
        for found, to in zip(begins, ends, strict=True)
    ]
    return Computation(name, tuple(made), root)


_CALL = re.compile(r"(\(.*?\)|\S+) ([\w\-]+)\(")
"""Shape and opcode. No parenthesis in the shape of a tuple is followed by ` word(`."""


def _instruction(name: str, text: str) -> Instruction:
    """text: all that follows `name = `."""
    found = _CALL.match(text)
    close = _close(text, found.end()) if found else -1
    if found is None or close < 0:
        raise FileError(f"{name} = {text[:80]}: not understood; {INSTEAD}")
    shape, opcode = found.groups()
    inside, attributes = text[found.end() : close], text[close + 1 :]
    if opcode in ("constant", "parameter"):
        return Instruction(name, opcode, shape, (), attributes, inside)
    return Instruction(name, opcode, shape, tuple(_OPERAND.findall(inside)), attributes)


_OPERAND = re.compile(r"%([^,\s]+)")
_BRACKET = re.compile(r"[()]")


def _close(text: str, begin: int) -> int:
    """The place of the parenthesis that closes the one before `begin`, or -1."""
    close, depth = text.find(")", begin), 0
    if text.find("(", begin, close) < 0:
        return close
    for found in _BRACKET.finditer(text, begin):
        depth += 1 if found[0] == "(" else -1
        if depth < 0:
            return found.start()
    return -1

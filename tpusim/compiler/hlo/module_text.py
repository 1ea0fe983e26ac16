"""The text of an HLO module as jaxlib prints it, split into computations and instructions.

jaxlib has already parsed, checked and reprinted the module (`parser.py`), without the shapes of
operands and the signatures of computations. So this reads one fixed format, not the grammar of HLO:
a computation opens and closes on lines of its own, and each instruction starts a line.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from tpusim.base.errors import FileError
from tpusim.compiler.hlo.module import Computation, Frames, Instruction, SourceFrame

HLO_ADVICE = (
    "give the whole text that the TPU compiler printed (`compiled.as_text()`, or the file "
    "`*after_optimizations.txt` of `--xla_dump_to`)"
)


class PrintedModule(NamedTuple):
    """The parts of a module's text: first line, tables of stack frames, and computations."""

    head: str
    frames: str
    entry: str
    computations: list[Computation]


def split_module(text: str) -> PrintedModule:
    """Return the parts of a printed module. Raise FileError for text that is not understood."""
    opens = [*_OPENS.finditer(text)]
    before = text[: opens[0].start()] if opens else text
    head, _, frames = before.partition("\n")
    entry = next((found[2] for found in opens if found[1]), "")
    ends = [*(found.start() for found in opens[1:]), len(text)]
    made = [
        _computation(found[2], text, found.end(), text.rfind("\n}", found.end(), end))
        for found, end in zip(opens, ends, strict=True)
    ]
    return PrintedModule(head, frames, entry, made)


_OPENS = re.compile(r"^(ENTRY )?%(\S+) \{$", re.MULTILINE)
_BEGINS = re.compile(r"^  (ROOT )?%(\S+) = ", re.MULTILINE)


def _computation(name: str, text: str, begin: int, end: int) -> Computation:
    """Return the computation in text[begin:end]; an instruction may span several lines."""
    begins = [*_BEGINS.finditer(text, begin, end)]
    root = next((found[2] for found in begins if found[1]), "")
    if not root:
        raise FileError(f"computation {name} has no end or no ROOT; {HLO_ADVICE}")
    ends = [*(found.start() - 1 for found in begins[1:]), end]
    made = [
        _instruction(found[2], text[found.end() : to])
        for found, to in zip(begins, ends, strict=True)
    ]
    return Computation(name, tuple(made), root)


_CALL = re.compile(r"(\(.*?\)|\S+) ([\w\-]+)\(")
"""Shape and opcode. No parenthesis in the shape of a tuple is followed by ` word(`."""


def _instruction(name: str, text: str) -> Instruction:
    found = _CALL.match(text)
    close = _close(text, found.end()) if found else -1
    if found is None or close < 0:
        raise FileError(f"{name} = {text[:80]}: not understood; {HLO_ADVICE}")
    shape, opcode = found.groups()
    inside, attributes = text[found.end() : close], text[close + 1 :]
    if opcode in ("constant", "parameter"):
        return Instruction(name, opcode, shape, (), attributes, inside)
    return Instruction(name, opcode, shape, tuple(_OPERAND.findall(inside)), attributes)


_OPERAND = re.compile(r"%([^,\s]+)")
_BRACKET = re.compile(r"[()]")


def _close(text: str, begin: int) -> int:
    """Return the position of the parenthesis that closes the one before `begin`, or -1."""
    close, depth = text.find(")", begin), 0
    if text.find("(", begin, close) < 0:
        return close
    for found in _BRACKET.finditer(text, begin):
        depth += 1 if found[0] == "(" else -1
        if depth < 0:
            return found.start()
    return -1


_PAIR = re.compile(r"(\w+)=(\d+)")


def read_frames(text: str) -> Frames:
    """Return the stacks in a module's tables of files, functions, locations and frames."""
    tables: dict[str, dict[int, str]] = {}
    current: dict[int, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        if number.isdigit():
            current[int(number)] = rest
        elif line.strip():
            current = tables.setdefault(line.strip(), {})
    files, functions = tables.get("FileNames", {}), tables.get("FunctionNames", {})
    places = {}
    for place, rest in tables.get("FileLocations", {}).items():
        keys = {key: int(value) for key, value in _PAIR.findall(rest)}
        places[place] = SourceFrame(
            files.get(keys.get("file_name_id", 0), '""').strip('"'),
            keys.get("line", 0),
            functions.get(keys.get("function_name_id", 0), '""').strip('"'),
        )
    links = {
        number: {key: int(value) for key, value in _PAIR.findall(rest)}
        for number, rest in tables.get("StackFrames", {}).items()
    }
    return {number: _stack(number, links, places) for number in links}


def _stack(
    number: int, links: Mapping[int, Mapping[str, int]], places: Mapping[int, SourceFrame]
) -> tuple[SourceFrame, ...]:
    found: list[SourceFrame] = []
    seen: set[int] = set()
    while number in links and number not in seen:
        seen.add(number)
        place = places.get(links[number].get("file_location_id", 0))
        if place is not None:
            found.append(place)
        number = links[number].get("parent_frame_id", 1) - 1
    return tuple(found)

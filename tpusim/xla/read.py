"""HLO files as modules: text or protos, gzipped or not."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tpusim.xla.module import Computation, Frame, Frames, Instruction, Module


def read_module(data: bytes) -> Module:
    """The module of HLO text or of a serialised proto."""
    done = subprocess.run(
        [sys.executable, "-m", "tpusim.xla.parser"], input=data, capture_output=True, check=True
    )
    return module_from(json.loads(done.stdout))


def module_from(tree: Mapping[str, Any]) -> Module:
    """The module of what the parser printed."""
    head = tree["head"]
    made = [
        Computation(name, tuple(_instruction(*each) for each in instructions), root)
        for name, instructions, root in tree["computations"]
    ]
    return Module(
        name=tree["name"],
        computations={computation.name: computation for computation in made},
        entry=tree["entry"],
        scheduled="is_scheduled=true" in head,
        devices=_number("num_partitions", head) * _number("replica_count", head),
        frames=_frames(tree["frames"]),
        replicas=_number("replica_count", head),
    )


def _number(key: str, head: str) -> int:
    found = re.search(rf"{key}=(\d+)", head)
    return int(found[1]) if found else 1


_CALL = re.compile(r"([\w\-]+)\(")


def _instruction(name: str, operands: list[str], text: str) -> Instruction:
    """The parts of an instruction's text: shape, opcode, what is in parentheses, and the rest."""
    end = _end_of_shape(text)
    shape, rest = text[:end], text[end:].lstrip()
    found = _CALL.match(rest)
    if found is None:
        raise ValueError(f"{text[:80]!r} is no instruction of HLO")
    close = _close(rest, found.end() - 1)
    inside = rest[found.end() : close]
    literal = inside if found[1] in ("constant", "parameter") else ""
    return Instruction(name, found[1], shape, tuple(operands), rest[close + 1 :], literal)


def _end_of_shape(text: str) -> int:
    """Where the shape ends that an instruction's text begins with."""
    return _close(text, 0) + 1 if text.startswith("(") else text.index(" ")


_BRACKET = re.compile(r"[()]")


def _close(text: str, opened: int) -> int:
    """The place of the parenthesis that closes the one at `opened`."""
    depth = 0
    for found in _BRACKET.finditer(text, opened):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.start()
    raise ValueError("a parenthesis is open")


_PAIR = re.compile(r"(\w+)=(\d+)")


def _frames(text: str) -> Frames:
    """The stacks of a module's tables of files, functions, locations and frames."""
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
    for number, rest in tables.get("FileLocations", {}).items():
        keys = {key: int(value) for key, value in _PAIR.findall(rest)}
        places[number] = Frame(
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
    number: int, links: Mapping[int, Mapping[str, int]], places: Mapping[int, Frame]
) -> tuple[Frame, ...]:
    found: list[Frame] = []
    seen: set[int] = set()
    while number in links and number not in seen:
        seen.add(number)
        place = places.get(links[number].get("file_location_id", 0))
        if place is not None:
            found.append(place)
        number = links[number].get("parent_frame_id", 1) - 1
    return tuple(found)

"""HLO as modules: what `tpusim.xla.parser` found, checked and put into classes."""

import re
from collections.abc import Mapping
from typing import Any

from tpusim.errors import FileError
from tpusim.xla.check import UNSCHEDULED, check_calls, check_platform, check_shapes, in_order
from tpusim.xla.child import INSTEAD, Parser
from tpusim.xla.files import request, unzipped
from tpusim.xla.frames import frames_of
from tpusim.xla.header import split_header
from tpusim.xla.module import Computation, Instruction, Module, Place


def read_module(
    data: bytes, what: str = "HLO", parser: Parser | None = None, *, any_compiler: bool = False
) -> Module:
    """The module of HLO text, or of a serialised HloModuleProto or HloProto, gzipped or not.

    what: begins the sentences of errors, such as the path. parser: an open one, for many modules in
    one child process. any_compiler: also takes what the TPU compiler did not make. Raises FileError
    for what is no HLO, contradicts itself, or was not made by the TPU compiler.
    """
    try:
        asked = request(split_header(unzipped(data))[1])
        if parser is None:
            with Parser() as own:
                module = module_from(own.parse(asked))
        else:
            module = module_from(parser.parse(asked))
        if not any_compiler:
            check_platform(module)
        return module
    except FileError as error:
        raise FileError(f"{what}: {error}") from error


def module_from(tree: Mapping[str, Any]) -> Module:
    """The module of what the parser found. Raises FileError, as `read_module`."""
    head = tree["head"]
    made = [
        in_order(Computation(name, tuple(_instruction(*each) for each in instructions), root))
        for name, instructions, root in tree["computations"]
    ]
    check_calls(made)
    check_shapes(made)
    scheduled = "is_scheduled=true" in head
    module = Module(
        name=tree["name"],
        computations={computation.name: computation for computation in made},
        entry=tree["entry"],
        scheduled=scheduled,
        devices=_number("num_partitions", head) * _number("replica_count", head),
        replicas=_number("replica_count", head),
        frames=frames_of(tree["frames"]),
        aliases=_aliases(head),
        notes=() if scheduled else (UNSCHEDULED,),
    )
    if module.entry not in module.computations:
        raise FileError("no computation is the entry; give the whole text of one module")
    return module


def _number(key: str, head: str) -> int:
    found = re.search(rf"{key}=(\d+)", head)
    return int(found[1]) if found else 1


_CALL = re.compile(r"([\w\-]+)\(")


def _instruction(name: str, operands: list[str], text: str) -> Instruction:
    """The parts of an instruction's text: shape, opcode, what is in parentheses, and the rest."""
    end = _close(text, 0) + 1 if text.startswith("(") else text.find(" ")
    shape, rest = text[:end], text[end:].lstrip()
    found = _CALL.match(rest)
    close = _close(rest, found.end() - 1) if found else 0
    if end <= 0 or found is None or close <= 0:
        raise FileError(f"{name} = {text[:80]}: not understood; {INSTEAD}")
    inside = rest[found.end() : close]
    literal = inside if found[1] in ("constant", "parameter") else ""
    return Instruction(name, found[1], shape, tuple(operands), rest[close + 1 :], literal)


_BRACKET = re.compile(r"[()]")


def _close(text: str, opened: int) -> int:
    """The place of the parenthesis that closes the one at `opened`, or -1."""
    depth = 0
    for found in _BRACKET.finditer(text, opened):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.start()
    return -1


_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}, (?:may|must)-alias\)")


def _aliases(head: str) -> dict[Place, tuple[int, Place]]:
    """The parameter, and the place in it, whose memory each output takes."""
    return {
        _place(output): (int(parameter), _place(inner))
        for output, parameter, inner in _ALIAS.findall(head)
    }


def _place(text: str) -> Place:
    return tuple(int(part) for part in text.split(",") if part.strip())

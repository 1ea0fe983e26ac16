"""A single HLO instruction from its line, as profilers record it, possibly cut off at its end."""

import re
from dataclasses import dataclass

from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.shapes import read_shape

_START = re.compile(r"\s*(?:ROOT\s+)?%?([\w.\-]*)\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"\s*%?([\w.\-]*)\s*(?:,|(?=\)))?")


@dataclass(frozen=True, slots=True)
class InstructionLine:
    """An instruction and its operands.

    operands: as parameters, those that can be read.
    rest: what cannot be read of a line that ends among its operands; empty for a whole line.
    """

    instruction: Instruction
    operands: tuple[Instruction, ...]
    rest: str = ""

    def module(self, *bodies: Computation, devices: int = 1) -> HloModule:
        """Return a module that runs the instruction alone; bodies: computations that it calls."""
        main = Computation("main", (*self.operands, self.instruction), self.instruction.name)
        found = {each.name: each for each in (main, *bodies)}
        return HloModule(
            name="line", computations=found, entry="main", scheduled=True, devices=devices
        )


def read_instruction(text: str) -> InstructionLine:
    """Return the instruction of a line `%name = SHAPE opcode(SHAPE %operand, ...), attributes`.

    Names may be missing. Raise ValueError if result or opcode cannot be read.
    """
    start = _START.match(text)
    if start is None:
        raise ValueError(f"{text[:60]!r} is no HLO instruction")
    _, at = read_shape(text, start.end())
    opcode = _OPCODE.match(text, at)
    if opcode is None:
        raise ValueError(f"{text[:60]!r} has no opcode")
    operands, end = _operands(text, opcode.end())
    whole = text.startswith(")", end)
    made = Instruction(
        start[1] or "line",
        opcode[1],
        text[start.end() : at],
        tuple(each.name for each in operands),
        text[end + 1 :].lstrip(", ") if whole else "",
    )
    return InstructionLine(made, operands, "" if whole else text[end:])


def _operands(text: str, at: int) -> tuple[tuple[Instruction, ...], int]:
    """Return the whole operands that begin at a place of the text, and their end."""
    found: list[Instruction] = []
    while not text.startswith(")", at):
        try:
            _, end = read_shape(text, at)
        except ValueError:
            break
        if end >= len(text) or text[end] == "{":
            break
        number = len(found)
        found.append(
            Instruction(f"operand.{number}", "parameter", text[at:end].strip(), literal=str(number))
        )
        name = _OPERAND.match(text, end)
        at = name.end() if name else end
    return tuple(found), at

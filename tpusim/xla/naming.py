"""Whose name an operation bears: its own, that of what it is made around, or of what it reads."""

from collections.abc import Iterator

from tpusim.xla.attributes import called, op_name
from tpusim.xla.dots import PRODUCTS
from tpusim.xla.module import Computation, Instruction, Module

FARTHEST = 8
"""Instructions back to look for a name; what is farther has little to do with it."""


def bearer(module: Module, where: Computation, instruction: Instruction) -> Instruction:
    """The instruction whose name and line an operation goes by; itself where none has a name.

    A fusion goes by the product inside it, then by its own name, then by any other inside: the
    compiler names it by its last instruction, which may be of another line or pass. A copy that the
    compiler added goes by what made its operand.
    """
    inside = list(_inside(module, instruction))
    products = [each for each in inside if each.opcode in PRODUCTS and op_name(each)]
    for each in (*products, instruction, *reversed(inside)):
        if op_name(each):
            return each
    return _maker(where, instruction) or instruction


def _inside(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    if instruction.opcode == "fusion":
        for name in called(instruction, "calls"):
            if name in module.computations:
                yield from module.computations[name].instructions


def _maker(where: Computation, instruction: Instruction) -> Instruction | None:
    """The nearest instruction with a name that the first operand comes from."""
    at = instruction
    for _ in range(FARTHEST):
        if not at.operands or at.operands[0] not in where:
            return None
        at = where[at.operands[0]]
        if op_name(at):
            return at
    return None

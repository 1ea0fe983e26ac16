"""What an instruction does inside: how much of each operand it reads, and what it computes.

From the root of a fusion back to its parameters: each instruction is asked for a share of its
elements, and asks the same of its operands; one that slices asks for the slice. So a fusion that
slices a stack of layers reads one layer of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2, prod
from typing import TypeAlias

from tpusim.program import Several, Vector, Work
from tpusim.xla.attributes import called, target
from tpusim.xla.dots import Product, product
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.opcodes import COLLECTIVES, FREE_TARGETS, PASSIVE, TARGET_WEIGHTS, weight
from tpusim.xla.shapes import Shape

Operands: TypeAlias = Sequence[Instruction]


@dataclass(slots=True)
class Tally:
    """What the instructions that were asked compute, all together.

    vector: operations of the vector unit. strange: what is not understood, in words.
    """

    vector: float = 0.0
    products: list[Product] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    @property
    def flops(self) -> float:
        """Those of its products."""
        return sum(product.flops for product in self.products)

    def work(self, read: float, write: float, stored: float) -> Work:
        """One product with all else as its epilogue, or several that share it by their FLOPs.

        A group takes at least one operation for each element that it stores, wherever that lies.
        """
        if not self.products:
            return Vector(read, write, max(self.vector, stored))
        shares = [self._share(product) for product in self.products]
        works = tuple(
            product.work(share * read, share * write, share * self.vector)
            for product, share in zip(self.products, shares, strict=True)
        )
        return works[0] if len(works) == 1 else Several(works)

    def _share(self, product: Product) -> float:
        return product.flops / self.flops if self.flops else 1 / len(self.products)


def shares(
    module: Module, instruction: Instruction, operands: Operands, tally: Tally, share: float = 1.0
) -> list[float]:
    """The share of each operand that is read for a share of the result, 0 to 1.

    What is computed on the way is added to the tally.
    """
    op = instruction.opcode
    if op == "fusion":
        return _fusion(module, _body(module, instruction), tally, share)
    if op in ("dot", "convolution"):
        left, right = (operand.arrays[0] for operand in operands[:2])
        tally.products.append(product(instruction, left, right, instruction.arrays[0]))
        return [1.0] * len(operands)
    tally.vector += share * _operations(instruction, operands, tally)
    return _READS.get(op, _alike)(instruction, operands, share)


def _body(module: Module, fusion: Instruction) -> Computation:
    return module.computations[called(fusion, "calls")[0]]


def _fusion(module: Module, body: Computation, tally: Tally, share: float) -> list[float]:
    """Shares of a fusion's parameters, in their order."""
    asked = {body.root: share}
    for instruction in reversed(body.instructions):
        wanted = asked.get(instruction.name, 0.0)
        if not wanted or instruction.opcode == "parameter":
            continue
        operands = [body[name] for name in instruction.operands]
        found = shares(module, instruction, operands, tally, wanted)
        for name, part in zip(instruction.operands, found, strict=False):
            asked[name] = min(1.0, asked.get(name, 0.0) + part)
    return [asked.get(parameter.name, 0.0) for parameter in body.parameters]


def written(module: Module, body: Computation, name: str) -> list[float]:
    """The share of each array of an instruction's result that is written: updates in place less."""
    instruction = body[name]
    op = instruction.opcode
    if op == "tuple":
        return [share for part in instruction.operands for share in _part(module, body, part)]
    if op == "fusion":
        inner = _body(module, instruction)
        return written(module, inner, inner.root)
    if op in ("bitcast", "reshape") and instruction.operands:
        return written(module, body, instruction.operands[0])
    if op in _IN_PLACE and body[instruction.operands[0]].opcode not in _MADE:
        update = body[instruction.operands[_IN_PLACE[op]]]
        return [min(1.0, _elements(update) / max(_elements(instruction), 1))]
    if op in COLLECTIVES or target(instruction).startswith("AsyncCollective"):
        return [0.0] * len(instruction.arrays)
    return [1.0] * len(instruction.arrays)


def _part(module: Module, body: Computation, name: str) -> list[float]:
    """Of a tuple's part; a parameter that is handed on is not written."""
    handed = body[name].opcode == "parameter"
    return [0.0] * len(body[name].arrays) if handed else written(module, body, name)


_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
"""Operations that change a part of their first operand, and which operand is that part."""

_MADE = frozenset({"convert", "select", "add", "multiply"})
"""What computes a whole array: a part of it that is replaced is not replaced in place."""


def _elements(instruction: Instruction) -> int:
    return sum(shape.elements for shape in instruction.arrays)


def _operations(instruction: Instruction, operands: Operands, tally: Tally) -> float:
    """Vector operations of the whole instruction."""
    op, out = instruction.opcode, _elements(instruction)
    if op in ("reduce", "select-and-scatter"):
        return sum(_elements(operand) for operand in operands[: max(len(operands) // 2, 1)])
    if op == "reduce-window":
        return out * _window_rounds(instruction)
    if op == "convert" and operands[0].opcode == "broadcast":
        return 0.0
    if op == "sort":
        return 2 * out * _rounds(instruction.arrays[0])
    if op == "scatter":
        return _elements(operands[-1])
    if op == "custom-call" and target(instruction) in TARGET_WEIGHTS:
        return TARGET_WEIGHTS[target(instruction)] * _elements(operands[0])
    if op == "custom-call" and target(instruction) not in FREE_TARGETS:
        tally.strange.append(f"custom call {target(instruction)!r}")
    each = weight(op)
    if each is None:
        tally.strange.append(f"opcode {op!r}")
    return out * (1.0 if each is None else each)


def _window_rounds(instruction: Instruction) -> int:
    """Operations an element: sums that grow in rounds, of twice as many elements each.

    One where each window is as long as to hold all elements: a reduction that is broadcast again.
    """
    found = _SIZES.search(instruction.attributes)
    taps = [int(size) for size in found[1].split("x")] if found else []
    if all(
        tap in (1, 2 * dim - 1) for tap, dim in zip(taps, instruction.arrays[0].dims, strict=True)
    ):
        return 1
    return 1 + ceil(log2(prod(taps)))


_SIZES = re.compile(r"window=\{size=([\dx]+)")


def _rounds(shape: Shape) -> float:
    """Rounds of a bitonic sort of the longest dimension: `log n (log n + 1) / 2`."""
    rounds = log2(max(shape.dims, default=1) or 1)
    return rounds * (rounds + 1) / 2


def _alike(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """Each operand in the same share; of one that is smaller, as much as is asked."""
    out = max((shape.elements for shape in instruction.arrays), default=0)
    return [min(1.0, share * max(1.0, out / max(_elements(o), 1))) for o in operands]


def _sliced(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """The slice of the first operand, and all the indices."""
    part = _elements(instruction) / max(_elements(operands[0]), 1)
    return [min(1.0, share * part), *(1.0 for _ in operands[1:])]


def _updated(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """Nothing of what is changed in place; the update and the indices."""
    whole = share if operands[0].opcode in _MADE else 0.0
    return [whole, *(1.0 for _ in operands[1:])]


def _scattered(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """As much of the first operand as is added to it, the updates and the indices."""
    part = _elements(operands[-1]) / max(_elements(operands[0]), 1)
    return [min(1.0, part), *(1.0 for _ in operands[1:])]


def _same(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    return [share for _ in operands]


def _tupled(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    """What is computed for a tuple; a parameter that is handed on is not read."""
    return [0.0 if operand.opcode == "parameter" else share for operand in operands]


def _nothing(instruction: Instruction, operands: Operands, share: float) -> list[float]:
    return [0.0 for _ in operands]


Reads: TypeAlias = Callable[[Instruction, Operands, float], list[float]]

_READS: Mapping[str, Reads] = {
    "dynamic-slice": _sliced,
    "slice": _sliced,
    "gather": _sliced,
    "dynamic-update-slice": _updated,
    "scatter": _scattered,
    **dict.fromkeys(("pad", "concatenate", *PASSIVE), _same),
    "tuple": _tupled,
    **dict.fromkeys(COLLECTIVES, _nothing),
}

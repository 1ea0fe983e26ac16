"""Buffers of a module: results that share memory, found by union of those that must share.

A tuple, an element of one, a bitcast, the carry of a loop, the branches of a conditional and an
update in index take no memory of their own (XLA's documentation, "Aliasing", and its alias
analysis). Where the TPU compiler records the operand that a result replaces (`aliasing_operands`),
that is used: `lists` holds numbers of operands and, after these, of the results.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tpusim.compiler.hlo.attributes import called_computations, callees, plain_attribute
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.shapes import Shape, flatten_shape, integers

_PASS_THROUGH = frozenset({
    "tuple", "bitcast", "opt-barrier", "optimization-barrier", "add-dependency", "domain", "while",
})  # fmt: skip
"""Opcodes whose results are their operands, in order."""

RENAMING_OPCODES = _PASS_THROUGH - {"while"} | {"get-tuple-element"}
"""Opcodes that only rename existing results: they read nothing."""

CALLING_OPCODES = ("while", "conditional", "call")
"""Opcodes that run other computations of the module in the same schedule."""

_SCATTER = '"offload":"OFFLOAD_SCATTER"'

_OUTPUT_OPERAND = re.compile(r"\{([\d, ]*)\}: \((\d+), ?\{([\d, ]*)\}")


@dataclass(frozen=True, slots=True)
class ArrayResult:
    """An array that an instruction makes.

    depth: calls between the entry and its computation.
    """

    depth: int
    computation: str
    instruction: str
    shape: Shape


@dataclass(slots=True)
class BufferTable:
    """Buffers by number.

    values: the buffers of each instruction's result arrays.
    """

    module: HloModule
    made: list[ArrayResult | None] = field(default_factory=list)
    values: dict[str, list[int]] = field(default_factory=dict)
    _parents: list[int] = field(default_factory=list)
    _roots: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        main = self.module.main
        self._enter(main, [self._fresh(None, p.arrays) for p in main.parameters], 0)
        self._donated()

    def of(self, name: str) -> list[int]:
        """Return the buffers of an instruction's result, as representatives of shared ones."""
        return [self.find(number) for number in self.values[name]]

    def find(self, number: int) -> int:
        """Return the number that represents all that share this buffer."""
        while self._parents[number] != number:
            self._parents[number] = number = self._parents[self._parents[number]]
        return number

    def _share(self, ones: Iterable[int], others: Iterable[int]) -> None:
        for one, other in zip(ones, others, strict=False):
            first, second = sorted((self.find(one), self.find(other)))
            self._parents[second] = first

    def _fresh(self, maker: tuple[int, str, str] | None, made: Sequence[Shape]) -> list[int]:
        first = len(self.made)
        self.made += [None if maker is None else ArrayResult(*maker, shape) for shape in made]
        numbers = list(range(first, len(self.made)))
        self._parents += numbers
        return numbers

    def _enter(self, computation: Computation, given: Sequence[list[int]], depth: int) -> list[int]:
        """Assign buffers in a computation that is given these, and return those of its root."""
        if computation.name in self._roots:
            for parameter, numbers in zip(computation.parameters, given, strict=False):
                self._share(self.values[parameter.name], numbers)
            return self._roots[computation.name]
        for parameter, numbers in zip(computation.parameters, given, strict=False):
            self.values[parameter.name] = numbers
        for instruction in computation.instructions:
            if instruction.name not in self.values:
                self.values[instruction.name] = self._assign(computation, instruction, depth)
        return self._roots.setdefault(computation.name, self.values[computation.root])

    def _assign(self, computation: Computation, instruction: Instruction, depth: int) -> list[int]:
        operands = [self.values[name] for name in instruction.operands]
        flat = [number for numbers in operands for number in numbers]
        opcode = instruction.opcode
        if opcode in _PASS_THROUGH:
            self._into(instruction, operands, depth)
            return flat
        if opcode == "get-tuple-element":
            return self._element(computation[instruction.operands[0]], instruction, flat)
        maker = (depth, computation.name, instruction.name)
        made = self._fresh(None if opcode == "constant" else maker, instruction.arrays)
        if opcode.endswith("-done") and flat:
            started = computation[instruction.operands[0]]
            given = sum(len(self.values[name]) for name in started.operands)
            at = _first_result(started, given, len(made))
            self._share(made, flat[at:])
        elif opcode == "copy-start":
            self._share(made[1:2], flat)
        elif opcode == "send" or (opcode.endswith("-start") and len(made) > len(flat) > 0):
            self._share(made, flat)
        elif opcode in ("call", "conditional"):
            for root in self._into(instruction, operands, depth):
                self._share(made, root)
        self._in_place(instruction, operands, made)
        return made

    def _into(
        self, instruction: Instruction, operands: Sequence[list[int]], depth: int
    ) -> list[list[int]]:
        """Assign buffers in the computations that are called, and return those of each root."""
        if instruction.opcode not in CALLING_OPCODES:
            return []
        roots = []
        for at, computation in enumerate(called_computations(self.module, instruction)):
            branch = instruction.opcode == "conditional"
            given = operands[at + 1 : at + 2] if branch else operands
            roots.append(self._enter(computation, given, depth + 1))
            if instruction.opcode == "while" and computation.name in callees(instruction, "body"):
                self._share(operands[0], roots[-1])
        return roots

    def _element(self, whole: Instruction, taken: Instruction, flat: Sequence[int]) -> list[int]:
        at = array_index(whole, (int(plain_attribute(taken, "index") or 0),))
        return list(flat[at : at + len(taken.arrays)])

    def _in_place(
        self, instruction: Instruction, operands: Sequence[list[int]], made: Sequence[int]
    ) -> None:
        """Share the buffers of results that replace an operand."""
        for to, operand, at in _declared_aliases(instruction):
            self._share(made[to : to + 1], operands[operand][at : at + 1])
        if _ALIASING_KEY in instruction.attributes:
            both = [*operands, *([number] for number in made)]
            for first, *others in _noted_aliases(instruction, len(both)):
                for other in others:
                    self._share(both[first], both[other])
            return
        for result, operand in _in_place_updates(self.module, instruction):
            self._share(made[result : result + 1], operands[operand])

    def _donated(self) -> None:
        """Share the buffers of outputs with the parameters that they are aliased to."""
        main = self.module.main
        root, parameters = main[main.root], main.parameters
        for output, (number, index) in self.module.aliases.items():
            if number < len(parameters):
                parameter = parameters[number]
                start = array_index(parameter, index)
                given = self.values[parameter.name][start : start + 1]
                self._share(self.values[root.name][array_index(root, output) :], given)


def _declared_aliases(instruction: Instruction) -> Iterable[tuple[int, int, int]]:
    """Yield result number, operand number and array of that from `output_to_operand_aliasing`."""
    _, _, text = instruction.attributes.partition("output_to_operand_aliasing=")
    for output, operand, inner in _OUTPUT_OPERAND.findall(text.partition(")}")[0]):
        if int(operand) < len(instruction.operands):
            yield array_index(instruction, integers(output)), int(operand), sum(integers(inner))


_ALIASING_KEY = '"aliasing_operands"'
_ALIASING_LISTS = re.compile(_ALIASING_KEY + r':\{"lists":\[([^\]]*(?:\]\},\{[^\]]*)*)\]')
_ALIASING_LIST = re.compile(r"\[([\d,\" ]+)")


def _noted_aliases(instruction: Instruction, most: int) -> Iterable[list[int]]:
    """Yield the compiler's lists of operands, and of results after these, that share a buffer."""
    found = _ALIASING_LISTS.search(instruction.attributes)
    for several in _ALIASING_LIST.findall(found[1] if found else ""):
        numbers = [int(number) for number in re.findall(r"\d+", several)]
        if numbers and max(numbers) < most:
            yield numbers


def _in_place_updates(module: HloModule, instruction: Instruction) -> Iterable[tuple[int, int]]:
    """Yield results that update an operand in index, as (number of array, operand).

    A SparseCore scatters into its first operand: both have the same offset in HBM (gradients of
    logits by index on v5p 2x2x4, libtpu 0.0.42.1).
    """
    if instruction.opcode == "dynamic-update-slice":
        yield 0, 0
    elif instruction.opcode == "dynamic-update-slice-start":
        yield len(instruction.operands), 0
    elif instruction.opcode.endswith("-start") and _SCATTER in instruction.attributes:
        yield len(instruction.arrays) - 1, 0
    elif instruction.opcode == "fusion":
        for inside in called_computations(module, instruction, "calls"):
            root = inside[inside.root]
            outputs = [inside[o] for o in root.operands] if root.opcode == "tuple" else [root]
            for index, output in enumerate(outputs):
                number = _updated_parameter(inside, output)
                if number is not None:
                    yield index, number


def _updated_parameter(inside: Computation, output: Instruction) -> int | None:
    """Return the number of the parameter that an output of a fusion updates in index."""
    while output.opcode in ("bitcast", "dynamic-update-slice") and output.operands:
        updates = output.opcode == "dynamic-update-slice"
        output = inside[output.operands[0]]
        if updates and output.opcode == "parameter":
            return int(output.literal)
    return None


def array_index(instruction: Instruction, path: tuple[int, ...]) -> int:
    """Return the number of arrays before that path in an instruction's result."""
    shape, before = instruction.shape, 0
    for index in path:
        if isinstance(shape, Shape):
            break
        before += sum(len(flatten_shape(part)) for part in shape[:index])
        shape = shape[index] if index < len(shape) else ()
    return before


def _first_result(started: Instruction, operands: int, made: int) -> int:
    """Return the index of the array of an asynchronous start that its done returns first."""
    whole = len(started.arrays)
    if started.opcode in ("copy-start", "recv") or whole == made:
        return 0
    return min(operands, whole - made)

"""Which results of a module lie in the same memory: buffers, by union of what must share one.

A tuple, an element of one, a bitcast, the carry of a loop, the branches of a conditional and an
update in place take no memory of their own (XLA's documentation, "Aliasing", and its alias
analysis). Where the TPU compiler says which operand a result replaced (`aliasing_operands`), it is
believed: `lists` holds numbers of operands and, after these, of the results.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tpusim.xla.attributes import called, word
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.shapes import Shape, arrays

_SAME = frozenset({
    "tuple", "bitcast", "opt-barrier", "optimization-barrier", "add-dependency", "domain", "while",
})  # fmt: skip
"""Results that are their operands, one after the other."""

RENAMES = _SAME - {"while"} | {"get-tuple-element"}
"""Opcodes that only rename what is there: they read nothing."""

CALLING = ("while", "conditional", "call")
"""Opcodes that run other computations of the module in the same schedule."""

_OUTPUT_OPERAND = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}")


@dataclass(frozen=True, slots=True)
class Made:
    """An array that an instruction makes; depth: calls between the entry and its computation."""

    depth: int
    computation: str
    instruction: str
    shape: Shape


@dataclass(slots=True)
class Buffers:
    """Buffers by number. values: of each instruction, the buffers of its result's arrays."""

    module: Module
    made: list[Made | None] = field(default_factory=list)
    values: dict[str, list[int]] = field(default_factory=dict)
    _parents: list[int] = field(default_factory=list)
    _roots: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        main = self.module.main
        self._enter(main, [self._fresh(None, p.arrays) for p in main.parameters], 0)
        self._donated()

    def of(self, name: str) -> list[int]:
        """The buffers of an instruction's result, each as one number for all that share it."""
        return [self.find(number) for number in self.values[name]]

    def find(self, number: int) -> int:
        """The number that stands for all that share this buffer."""
        while self._parents[number] != number:
            self._parents[number] = number = self._parents[self._parents[number]]
        return number

    def _share(self, ones: Iterable[int], others: Iterable[int]) -> None:
        for one, other in zip(ones, others, strict=False):
            first, second = sorted((self.find(one), self.find(other)))
            self._parents[second] = first

    def _fresh(self, maker: tuple[int, str, str] | None, made: Sequence[Shape]) -> list[int]:
        first = len(self.made)
        self.made += [None if maker is None else Made(*maker, shape) for shape in made]
        numbers = list(range(first, len(self.made)))
        self._parents += numbers
        return numbers

    def _enter(self, computation: Computation, given: Sequence[list[int]], depth: int) -> list[int]:
        """Lays out a computation that is given these buffers, and returns those of its root."""
        if computation.name in self._roots:
            for parameter, numbers in zip(computation.parameters, given, strict=False):
                self._share(self.values[parameter.name], numbers)
            return self._roots[computation.name]
        for parameter, numbers in zip(computation.parameters, given, strict=False):
            self.values[parameter.name] = numbers
        for instruction in computation.instructions:
            if instruction.name not in self.values:
                self.values[instruction.name] = self._lay(computation, instruction, depth)
        return self._roots.setdefault(computation.name, self.values[computation.root])

    def _lay(self, computation: Computation, instruction: Instruction, depth: int) -> list[int]:
        operands = [self.values[name] for name in instruction.operands]
        flat = [number for numbers in operands for number in numbers]
        opcode = instruction.opcode
        if opcode in _SAME:
            self._into(instruction, operands, depth)
            return flat
        if opcode == "get-tuple-element":
            return self._element(computation[instruction.operands[0]], instruction, flat)
        maker = (depth, computation.name, instruction.name)
        made = self._fresh(None if opcode == "constant" else maker, instruction.arrays)
        if opcode.endswith("-done") and flat:
            started = computation[instruction.operands[0]]
            given = sum(len(self.values[name]) for name in started.operands)
            at = _result_of(started, given, len(made))
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
        """Lays out what the instruction calls, and returns the buffers of each root."""
        names = called(instruction) if instruction.opcode in CALLING else ()
        inside = self.module.computations
        found = [inside[name] for name in names if name in inside]
        roots = []
        for place, computation in enumerate(found):
            if instruction.opcode == "conditional":
                given: Sequence[list[int]] = operands[place + 1 : place + 2]
            else:
                given = operands
            roots.append(self._enter(computation, given, depth + 1))
            if instruction.opcode == "while" and computation.name in called(instruction, "body"):
                self._share(operands[0], roots[-1])
        return roots

    def _element(self, whole: Instruction, taken: Instruction, flat: Sequence[int]) -> list[int]:
        at = place_of(whole, (int(word(taken, "index") or 0),))
        return list(flat[at : at + len(taken.arrays)])

    def _in_place(
        self, instruction: Instruction, operands: Sequence[list[int]], made: Sequence[int]
    ) -> None:
        """Shares the buffers of results that replace an operand."""
        for to, operand, at in _declared(instruction):
            self._share(made[to : to + 1], operands[operand][at : at + 1])
        if _NOTE in instruction.attributes:
            both = [*operands, *([number] for number in made)]
            for first, *others in _noted(instruction, len(both)):
                for other in others:
                    self._share(both[first], both[other])
            return
        for result, operand in _updates(self.module, instruction):
            self._share(made[result : result + 1], operands[operand])

    def _donated(self) -> None:
        """Shares the buffers of outputs with the parameters that they are aliased to."""
        main = self.module.main
        root, parameters = main[main.root], main.parameters
        for output, (number, place) in self.module.aliases.items():
            if number < len(parameters):
                parameter = parameters[number]
                start = place_of(parameter, place)
                given = self.values[parameter.name][start : start + 1]
                self._share(self.values[root.name][place_of(root, output) :], given)


def _declared(instruction: Instruction) -> Iterable[tuple[int, int, int]]:
    """What `output_to_operand_aliasing` says: number of result, operand, and array of that."""
    _, _, text = instruction.attributes.partition("output_to_operand_aliasing=")
    for output, operand, inner in _OUTPUT_OPERAND.findall(text.partition("})")[0] + "})"):
        if int(operand) < len(instruction.operands):
            yield place_of(instruction, _place(output)), int(operand), sum(_place(inner))


_NOTE = '"aliasing_operands"'
_LISTS = re.compile(_NOTE + r':\{"lists":\[([^\]]*(?:\]\},\{[^\]]*)*)\]')
_LIST = re.compile(r"\[([\d,\" ]+)")


def _noted(instruction: Instruction, most: int) -> Iterable[list[int]]:
    """The compiler's lists of operands, and of results after these, that share a buffer."""
    found = _LISTS.search(instruction.attributes)
    for several in _LIST.findall(found[1] if found else ""):
        numbers = [int(number) for number in re.findall(r"\d+", several)]
        if numbers and max(numbers) < most:
            yield numbers


def _updates(module: Module, instruction: Instruction) -> Iterable[tuple[int, int]]:
    """Results that are updates of an operand in place, as (number of array, operand)."""
    if instruction.opcode == "dynamic-update-slice":
        yield 0, 0
    elif instruction.opcode == "dynamic-update-slice-start":
        yield len(instruction.operands), 0
    elif instruction.opcode == "fusion":
        for name in called(instruction, "calls"):
            inside = module.computations[name]
            root = inside[inside.root]
            outputs = [inside[o] for o in root.operands] if root.opcode == "tuple" else [root]
            for place, output in enumerate(outputs):
                number = _updated(inside, output)
                if number is not None:
                    yield place, number


def _updated(inside: Computation, output: Instruction) -> int | None:
    """The number of the parameter that an output of a fusion updates in place."""
    while output.opcode in ("bitcast", "dynamic-update-slice") and output.operands:
        updates = output.opcode == "dynamic-update-slice"
        output = inside[output.operands[0]]
        if updates and output.opcode == "parameter":
            return int(output.literal)
    return None


def place_of(instruction: Instruction, place: tuple[int, ...]) -> int:
    """How many arrays stand before that place in an instruction's result."""
    shape, before = instruction.shape, 0
    for index in place:
        if isinstance(shape, Shape):
            break
        before += sum(len(arrays(part)) for part in shape[:index])
        shape = shape[index] if index < len(shape) else ()
    return before


def _place(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _result_of(started: Instruction, operands: int, made: int) -> int:
    """Which array of an asynchronous start is the first of what its end returns."""
    whole = len(started.arrays)
    if started.opcode in ("copy-start", "recv") or whole == made:
        return 0
    return min(operands, whole - made)

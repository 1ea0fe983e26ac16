"""An HLO module as plain data: the result of jaxlib's parser, without jaxlib.

Computations and instructions keep the order of the text; in a scheduled module that is the order of
issue. Attributes of an instruction stay text until they are needed: see
`tpusim.compiler.hlo.attributes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tpusim.compiler.hlo.shapes import Shape, Shapes, flatten_shape, parse_shape


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a computation.

    opcode: as HLO writes it (`fusion`, `all-gather-start`).
    shape_text: the shape of its result.
    operands: names, in order.
    attributes: the text after the operands.
    literal: the text between the parentheses of a constant or a parameter.
    """

    name: str
    opcode: str
    shape_text: str
    operands: tuple[str, ...] = ()
    attributes: str = ""
    literal: str = ""

    @property
    def shape(self) -> Shapes:
        """The shape of the result: an array or a nested tuple of arrays."""
        return parse_shape(self.shape_text)

    @property
    def arrays(self) -> tuple[Shape, ...]:
        """The arrays of the result, with tuples flattened."""
        return flatten_shape(self.shape)


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions in order, and the name of the one whose result is the computation's."""

    name: str
    instructions: tuple[Instruction, ...]
    root: str
    _by_name: dict[str, Instruction] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {instruction.name: instruction for instruction in self.instructions}
        object.__setattr__(self, "_by_name", found)

    def __getitem__(self, name: str) -> Instruction:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions that one reads. Raise ValueError if any does not exist."""
        for name in instruction.operands:
            if name not in self:
                raise ValueError(f"it reads {name}, which does not exist")
        return [self[name] for name in instruction.operands]

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameters in the order of their numbers."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda parameter: int(parameter.literal)))


NO_FILE = "-"
"""MLIR's name for a text that it does not read from a file."""


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """A stack frame in the user's code, or a line of StableHLO that was given as text."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        file = "StableHLO" if self.file == NO_FILE else self.file.rpartition("/")[2]
        return f"{file}:{self.line}"


Frames: TypeAlias = Mapping[int, tuple[SourceFrame, ...]]
"""The stack of each number that `metadata` refers to, innermost frame first."""

TupleIndex: TypeAlias = tuple[int, ...]
"""Path to an array in a nested tuple; () if the shape is no tuple."""


class KernelMatmuls(NamedTuple):
    """Matmuls in a kernel's body: `times` x `batch` of [m, k] by [k, n].

    left, right: dtypes of the operands, as MLIR writes them.
    exact: True if f32 is multiplied at full precision.
    """

    times: int
    batch: int
    m: int
    k: int
    n: int
    left: str
    right: str
    exact: bool


@dataclass(frozen=True, slots=True)
class KernelBody:
    """The work in the body of a Pallas kernel, over its whole grid.

    operations: elements by the operation on them.
    once: True if a loop is counted once because its trip count is not constant.
    moved: elements of the blocks transferred for each blocked operand and each result; None where
        it is not blocked.
    """

    matmuls: tuple[KernelMatmuls, ...]
    operations: Mapping[str, int]
    once: bool = False
    moved: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HloModule:
    """An HLO module, as each of `devices` devices runs it.

    scheduled: True if the order of instructions is the order of issue.
    devices: partitions times replicas.
    replicas: of the whole program, each over all partitions.
    aliases: for an output, by its index in the result, the number of the parameter whose memory it
        reuses, and the index in that parameter.
    notes: sentences on what the reader should know.
    bodies: of kernels, by their base64 text; without those that cannot be read.
    """

    name: str
    computations: Mapping[str, Computation]
    entry: str
    scheduled: bool
    devices: int
    frames: Frames = field(default_factory=dict)
    replicas: int = 1
    aliases: Mapping[TupleIndex, tuple[int, TupleIndex]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bodies: Mapping[str, KernelBody] = field(default_factory=dict)

    @property
    def main(self) -> Computation:
        """The entry computation."""
        return self.computations[self.entry]

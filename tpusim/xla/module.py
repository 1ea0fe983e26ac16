"""An HLO module as plain data: what jaxlib's parser found, without jaxlib.

Computations and instructions are those of the text, in its order; of a scheduled module that is the
order of issue. What an instruction says beyond its operands stays text until somebody asks: see
`tpusim.xla.attributes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tpusim.xla.shapes import Shape, Shapes, arrays, parse_shape


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a computation.

    opcode: as HLO writes it (`fusion`, `all-gather-start`). shape_text: its result's shape.
    operands: names, in order. attributes: the text after the operands. literal: what stands between
    the parentheses of a constant or a parameter.
    """

    name: str
    opcode: str
    shape_text: str
    operands: tuple[str, ...] = ()
    attributes: str = ""
    literal: str = ""

    @property
    def shape(self) -> Shapes:
        """Its result: an array, or a tuple of such, tuples too."""
        return parse_shape(self.shape_text)

    @property
    def arrays(self) -> tuple[Shape, ...]:
        """The arrays of its result, tuples taken apart."""
        return arrays(self.shape)


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

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters, by their number."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda parameter: int(parameter.literal)))


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


Frames: TypeAlias = Mapping[int, tuple[Frame, ...]]
"""The stack of each number that `metadata` gives, the innermost frame first."""

Place: TypeAlias = tuple[int, ...]
"""Where an array stands in a tuple of tuples; () for what is no tuple."""


class Products(NamedTuple):
    """Products that a kernel's body does: so many times `batch` of [m, k] by [k, n].

    left, right: dtypes of the operands, as MLIR writes them. exact: f32 is multiplied as such.
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
class Body:
    """What the body of a Pallas kernel does, in all places of its grid.

    operations: elements by the operation on them. once: whether a loop counts once, as its trips
    are not constant. moved: elements of the blocks that it takes of each operand that comes in
    blocks, and of each result; None where it does not come in such.
    """

    products: tuple[Products, ...]
    operations: Mapping[str, int]
    once: bool = False
    moved: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """An HLO module of one device of `devices` that run it.

    scheduled: whether the order of instructions is the order of issue. devices: partitions times
    replicas, each of which runs all partitions.
    replicas. aliases: of an output, by its place in the result, the number of the parameter whose
    memory it takes, and the place in that. notes: sentences on what the reader should know. bodies:
    of kernels, by their text in base64; without those that cannot be read.
    """

    name: str
    computations: Mapping[str, Computation]
    entry: str
    scheduled: bool
    devices: int
    frames: Frames = field(default_factory=dict)
    replicas: int = 1
    aliases: Mapping[Place, tuple[int, Place]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bodies: Mapping[str, Body] = field(default_factory=dict)

    @property
    def main(self) -> Computation:
        """The entry computation."""
        return self.computations[self.entry]

"""The rules of a chip generation's slices: legal shapes, wraparound, twist and names.

The rules are data: the section `[slices]` of the chip's file.
"""

from dataclasses import dataclass, field
from functools import cache
from math import prod

from tpusim.base.errors import HardwareError
from tpusim.hardware.chip_fields import (
    COUNTED,
    FLAG,
    NAME_LIST,
    OR_ZERO,
    SHAPE_LIST,
    Dims,
    check_fields,
    format_shape,
)

CUBE = 4
"""Chips along each side of the cube of which large 3-D slices are made."""

MAX_SLICE_LENGTH = 256
"""Chips along a dimension of a slice, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRules:
    """The legal slices of a generation.

    generation: name, such as `v5p`.
    cores: TensorCores of a chip, which the number in a slice's name counts.
    listed: legal shapes that are not made of cubes.
    prefixes: prefixes of the names of slices; the first is the one printed.
    max_cubes: the most 4x4x4 cubes in a slice; 0 if none is made of cubes.
    any_order: the dimensions may be written in any order, not in that of `listed` only.
    wrap_length: length at which a dimension wraps; 0 if all wrap when each is at least 4.
    twistable: shapes that allow it may be twisted.
    reroutes: slices of whole cubes route around broken optical links.
    """

    generation: str
    cores: int
    listed: tuple[Dims, ...] = field(metadata={"unit": SHAPE_LIST})
    prefixes: tuple[str, ...] = field(metadata={"unit": NAME_LIST})
    max_cubes: int = field(default=0, metadata=COUNTED | OR_ZERO)
    any_order: bool = field(default=True, metadata={"unit": FLAG})
    wrap_length: int = field(default=0, metadata=COUNTED | OR_ZERO)
    twistable: bool = field(default=False, metadata={"unit": FLAG})
    reroutes: bool = field(default=False, metadata={"unit": FLAG})

    def __post_init__(self) -> None:
        check_fields(self, f"slices of {self.generation}")
        if len(set(map(len, self.listed))) != 1:
            raise HardwareError(
                f"slices of {self.generation}: listed has shapes of different dimensions; "
                "write shapes of equally many"
            )

    def wraparound(self, dims: Dims) -> tuple[bool, ...]:
        """Return True for each dimension of a slice that closes to a ring."""
        if self.wrap_length:
            return tuple(length == self.wrap_length for length in dims)
        return (min(dims) >= CUBE,) * len(dims)

    def is_legal(self, dims: Dims) -> bool:
        """Return True if the generation has a slice of this shape, written in this order."""
        if self.any_order:
            return sorted(dims) in map(sorted, slice_shapes(self))
        return dims in slice_shapes(self)

    def __str__(self) -> str:
        listed = ", ".join(map(format_shape, self.listed))
        if not self.max_cubes:
            return f"{self.generation} slices are {listed}"
        order = "in any order" if self.any_order else "in non-decreasing order"
        return (
            f"{self.generation} slices are {listed}, or AxBxC of multiples of {CUBE} {order} "
            f"with at most {self.max_cubes * CUBE**3} chips"
        )


@cache
def slice_shapes(rules: SliceRules) -> tuple[Dims, ...]:
    """Return every legal shape of a generation, each once and in its default order, by chips."""
    made = [*rules.listed, *_cube_shapes(rules.max_cubes)]
    return tuple(sorted(made, key=lambda dims: (prod(dims), dims)))


def _cube_shapes(cubes: int) -> list[Dims]:
    """Return 4i x 4j x 4k with i <= j <= k, at most `cubes` cubes and 256 chips per dimension."""
    longest = MAX_SLICE_LENGTH // CUBE
    return [
        (CUBE * i, CUBE * j, CUBE * k)
        for i in range(1, cubes + 1)
        for j in range(i, cubes // i + 1)
        for k in range(j, min(longest, cubes // (i * j)) + 1)
    ]


def can_twist(dims: Dims) -> bool:
    """Return True if the shape is n x n x 2n or n x 2n x 2n, n a multiple of 4 (v4 and v5p)."""
    short = min(dims)
    return len(dims) == 3 and short % CUBE == 0 and set(dims) == {short, 2 * short}

"""The torus of a slice: dimensions, wraparound, twist. Pure geometry, no bandwidth.

Coordinates are chips; dimensions are called x, y, z in the order in which a shape is written.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tpusim.errors import HardwareError
from tpusim.hardware.legality import can_twist, check_shape, format_shape, parse_shape
from tpusim.hardware.rules import CUBE, GENERATIONS, Dims

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIMENSION_NAMES = ("x", "y", "z")
TWISTED = "_twisted"


@dataclass(frozen=True, slots=True)
class Topology:
    """A torus, mesh or twisted torus of chips. `of` makes the one that a generation really has.

    >>> print(Topology.of("v5e", "8x16"), Topology.of("v5e", "8x16").wrap)
    8x16 (False, True)
    """

    dims: Dims
    wrap: tuple[bool, ...]
    twisted: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.dims) <= 3 or len(self.wrap) != len(self.dims) or min(self.dims) < 1:
            raise HardwareError(
                f"a topology of dimensions {self.dims} with wraparound {self.wrap} cannot be; "
                "write one to three lengths of at least 1, and a wraparound for each"
            )
        if self.twisted and not (all(self.wrap) and can_twist(self.dims)):
            raise HardwareError(
                f"{format_shape(self.dims)} cannot be twisted; a twisted torus wraps in all three "
                "dimensions and is n x n x 2n or n x 2n x 2n, with n a multiple of 4"
            )

    @classmethod
    def of(cls, generation: str, shape: str | Dims, twisted: bool = False) -> "Topology":
        """The slice of this shape, with the wraparound that the generation gives it.

        A twisted torus is `4x4x8_twisted`, as Cloud spells it, or `twisted` beside its shape.

        Raises `HardwareError` for a generation without rules, a shape that it has not (with the
        nearest ones of as many chips), and a twist where there can be none.
        """
        if isinstance(shape, str):
            twisted = twisted or shape.endswith(TWISTED)
            shape = parse_shape(shape.removesuffix(TWISTED))
        dims = tuple(shape)
        check_shape(generation, dims, twisted)
        return cls(dims, wraparound(generation, dims), twisted)

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return prod(self.dims)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dimensions: x, y, z as far as there are."""
        return DIMENSION_NAMES[: len(self.dims)]

    def twist(self, dim: int) -> Dims:
        """How far the wraparound link of `dim` shifts along each dimension, in chips.

        Zero everywhere unless the torus is twisted: then a short dimension's wrap shifts by half
        of each long one (arXiv:2304.01433, section 2.8).
        """
        short = min(self.dims)
        if not self.twisted or self.dims[dim] != short:
            return (0,) * len(self.dims)
        return tuple(short if length > short else 0 for length in self.dims)

    def neighbour(self, at: Dims, dim: int, step: int) -> Dims | None:
        """The chip one link from `at` along `dim` (step 1 or -1); None at a mesh's end."""
        moved = list(at)
        moved[dim] += step
        if 0 <= moved[dim] < self.dims[dim]:
            return tuple(moved)
        if not self.wrap[dim]:
            return None
        moved[dim] %= self.dims[dim]
        shifted = zip(moved, self.twist(dim), self.dims, strict=True)
        return tuple((place + step * shift) % length for place, shift, length in shifted)

    def step(self, places: "NDArray[np.intp]", dim: int, sign: int) -> "NDArray[np.intp]":
        """The chips one link from `places` along `dim` (sign 1 or -1): `neighbour` for arrays.

        places: coordinates, [..., dimension]. The end of a dimension that does not wrap has no
        next chip: such places must be left out.
        """
        moved = places.copy()
        moved[..., dim] += sign
        rounds = moved[..., dim, None] // self.dims[dim]
        moved += rounds * self.twist(dim)
        return moved % self.dims

    @property
    def bisection_links(self) -> int:
        """Links, one way, that the smallest cut into two halves severs; counted.

        2 x the product of the two smaller lengths on a torus, half of it without wraparound
        (arXiv:2606.15870, Table 1, by this count), and 4 x on a twisted torus.
        """
        from tpusim.hardware.cuts import bisection_links  # numpy, for those who ask only

        return bisection_links(self)

    def __str__(self) -> str:
        return format_shape(self.dims) + (TWISTED if self.twisted else "")


def wraparound(generation: str, dims: Dims) -> tuple[bool, ...]:
    """Which dimensions of a slice close to a ring."""
    length = GENERATIONS[generation].wrap_length
    if length:
        return tuple(size == length for size in dims)
    return (min(dims) >= CUBE,) * len(dims)

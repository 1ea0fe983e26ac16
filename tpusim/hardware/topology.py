"""The torus of a slice: dimensions, wraparound, twist. Pure geometry, no bandwidth.

Coordinates are chips; dimensions are called x, y, z in the order in which a shape is written.
"""

from dataclasses import dataclass
from math import prod

from tpusim.errors import HardwareError
from tpusim.hardware.legality import can_twist, check_shape, format_shape, parse_shape
from tpusim.hardware.rules import CUBE, GENERATIONS, Dims

DIMENSION_NAMES = ("x", "y", "z")


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

        Raises `HardwareError` for a generation without rules, a shape that it has not (with the
        nearest ones of as many chips), and a twist where there can be none.
        """
        dims = parse_shape(shape) if isinstance(shape, str) else tuple(shape)
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

    @property
    def bisection_links(self) -> int:
        """Links that a cut across the longest dimension severs, in one direction.

        2 x the product of the other lengths on a torus, half of it on a mesh (arXiv:2606.15870,
        Table 1, by this count). The shifted wraps of a twisted torus add to it.
        """
        longest = max(range(len(self.dims)), key=lambda dim: self.dims[dim])
        if self.dims[longest] == 1:
            return 0
        return (2 if self.wrap[longest] else 1) * (self.chips // self.dims[longest])

    def __str__(self) -> str:
        return format_shape(self.dims) + (" twisted" if self.twisted else "")


def wraparound(generation: str, dims: Dims) -> tuple[bool, ...]:
    """Which dimensions of a slice close to a ring."""
    length = GENERATIONS[generation].wrap_length
    if length:
        return tuple(size == length for size in dims)
    return (min(dims) >= CUBE,) * len(dims)

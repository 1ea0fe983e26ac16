"""The torus of a slice: dimensions, wraparound and twist. Pure geometry, no bandwidth.

Coordinates are those of chips; dimensions are called x, y, z in the order in which a shape is
written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import HardwareError
from tpusim.hardware.catalogue import rules_of
from tpusim.hardware.chip_fields import Dims, format_shape, parse_shape
from tpusim.hardware.legality import check_shape
from tpusim.hardware.slice_rules import SliceRules, can_twist

DIMENSION_NAMES = ("x", "y", "z")
TWISTED = "_twisted"
"""Suffix of the written form of a twisted torus."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A torus, mesh or twisted torus of chips. `of` makes the one that a generation has.

    dims: chips along each of one to three dimensions.
    wrap: True for each dimension that closes to a ring.

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
    def of(
        cls, generation: str | SliceRules, shape: str | Dims, twisted: bool = False
    ) -> "Topology":
        """Return the torus of a slice, with the wraparound that the generation gives it.

        generation: name in the catalogue, or the rules themselves.
        shape: chips along each dimension; `4x4x8_twisted` is a twisted torus, as Cloud spells it.
        twisted: the torus is twisted, however the shape is written.

        Raise HardwareError for a generation without rules, a shape that it does not have (with the
        nearest ones of as many chips), and a twist of a shape that has none.
        """
        if isinstance(shape, str):
            twisted = twisted or shape.endswith(TWISTED)
            shape = parse_shape(shape.removesuffix(TWISTED))
        elif not isinstance(shape, Sequence) or not all(
            isinstance(size, Integral) for size in shape
        ):
            raise HardwareError(
                f"the shape of a slice is {shape!r}; write chips along each dimension, such as "
                "'16x16' or (16, 16), or name the whole slice, as in Slice('v5e-256')"
            )
        dims, rules = tuple(map(int, shape)), rules_of(generation)
        check_shape(rules, dims, twisted)
        return cls(dims, rules.wraparound(dims), twisted)

    @property
    def chips(self) -> int:
        """The number of chips."""
        return prod(self.dims)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dimensions: the first of x, y, z."""
        return DIMENSION_NAMES[: len(self.dims)]

    def twist(self, dim: int) -> Dims:
        """Return the shift of `dim`'s wraparound link along each dimension, in chips.

        Zero everywhere unless the torus is twisted: then a short dimension's wrap shifts by half
        of each long one (arXiv:2304.01433, section 2.8).
        """
        short = min(self.dims)
        if not self.twisted or self.dims[dim] != short:
            return (0,) * len(self.dims)
        return tuple(short if length > short else 0 for length in self.dims)

    def neighbour(self, at: Dims, dim: int, step: int) -> Dims | None:
        """Return the chip one link from `at` along `dim` (step 1 or -1); None at a mesh's end."""
        moved = list(at)
        moved[dim] += step
        if 0 <= moved[dim] < self.dims[dim]:
            return tuple(moved)
        if not self.wrap[dim]:
            return None
        moved[dim] %= self.dims[dim]
        shifted = zip(moved, self.twist(dim), self.dims, strict=True)
        return tuple((at_dim + step * shift) % length for at_dim, shift, length in shifted)

    def step(self, chips: NDArray[np.intp], dim: int, sign: int) -> NDArray[np.intp]:
        """Return the chips one link from `chips` along `dim` (sign 1 or -1).

        chips: coordinates, [..., dimension], without the chips at the end of a mesh, which have no
            neighbour there.
        """
        moved = chips.copy()
        moved[..., dim] += sign
        rounds = moved[..., dim, None] // self.dims[dim]
        moved += rounds * self.twist(dim)
        return moved % self.dims

    @property
    def bisection_links(self) -> int:
        """Links, in one direction, that the smallest cut by planes into two halves severs; counted.

        A half is a block of neighbouring planes, [offset, offset + length / 2) along a dimension of
        even length, around the end if need be; all dimensions and offsets are tried. If every
        length is odd, one half has a plane more. 0 for a single chip.

        2 x the product of the two smaller lengths on a torus, half of it without wraparound
        (arXiv:2606.15870, Table 1, by this count), and 4 x on a twisted torus.
        """
        even = [dim for dim, length in enumerate(self.dims) if length % 2 == 0]
        longer = [dim for dim, length in enumerate(self.dims) if length > 1]
        return min((cut for dim in even or longer for cut in self._cuts(dim)), default=0)

    def _cuts(self, dim: int) -> Iterator[int]:
        """Yield the links out of each block of half of the planes along `dim`."""
        length = self.dims[dim]
        between = self._links_between(dim)
        for offset in range(length):
            inside = (np.arange(length) - offset) % length < length // 2
            yield int(between[inside][:, ~inside].sum())

    def _links_between(self, dim: int) -> NDArray[np.intp]:
        """Return the links from each plane across `dim` to each other plane, [from, to]."""
        between = np.zeros((self.dims[dim], self.dims[dim]), np.intp)
        chips = np.indices(self.dims).reshape(len(self.dims), -1).T
        for along in range(len(self.dims)):
            for sign in (1, -1):
                end = self.dims[along] - 1 if sign > 0 else 0
                linked = chips[(chips[:, along] != end) | self.wrap[along]]
                ends = self.step(linked, along, sign)
                np.add.at(between, (linked[:, dim], ends[:, dim]), 1)
        return between

    def __str__(self) -> str:
        return format_shape(self.dims) + (TWISTED if self.twisted else "")

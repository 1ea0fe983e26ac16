"""The torus of a slice: dimensions, wraparound, twist. Pure geometry, no bandwidth.

Coordinates are chips; dimensions are called x, y, z in the order in which a shape is written.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

from tpusim.errors import HardwareError, nearest
from tpusim.hardware import rules
from tpusim.hardware.rules import CUBE, GENERATIONS, Dims

DIMENSION_NAMES = ("x", "y", "z")


def parse_shape(text: str) -> Dims:
    """The dimensions of a shape, `8x16x16` -> (8, 16, 16); `HardwareError` if it is none."""
    if not isinstance(text, str) or not re.fullmatch(
        r"[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){0,2}", text
    ):
        raise HardwareError(
            f"{text!r} is not a topology; write chips along each dimension, as in '8x16x16'"
        )
    return tuple(int(length) for length in text.split("x"))


def format_shape(dims: Dims) -> str:
    """The written form of a shape.

    >>> format_shape((8, 16, 16))
    '8x16x16'
    """
    return "x".join(map(str, dims))


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
        _known(generation)
        dims = parse_shape(shape) if isinstance(shape, str) else tuple(shape)
        if not rules.is_legal(generation, dims):
            raise HardwareError(_illegal(generation, dims))
        if twisted and not (GENERATIONS[generation].twistable and can_twist(dims)):
            raise HardwareError(_not_twistable(generation, dims))
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


def can_twist(dims: Dims) -> bool:
    """Whether the shape is n x n x 2n or n x 2n x 2n, n a multiple of 4 (Cloud TPU v4, v5p)."""
    short = min(dims)
    return len(dims) == 3 and short % CUBE == 0 and set(dims) == {short, 2 * short}


def legal_shapes(generation: str, chips: int | None = None) -> tuple[Dims, ...]:
    """The legal shapes of a generation, those of `chips` chips only if given; by chips, then size.

    >>> legal_shapes("v5p", 256)
    ((4, 4, 16), (4, 8, 8))
    """
    _known(generation)
    return tuple(dims for dims in rules.shapes(generation) if chips in (None, prod(dims)))


def default_shape(generation: str, chips: int) -> Dims:
    """The most cube-like legal shape of `chips` chips: the one that a slice's name stands for.

    >>> default_shape("v5p", 512)
    (8, 8, 8)
    """
    shapes = legal_shapes(generation, chips)
    if not shapes:
        raise HardwareError(_no_such_count(generation, chips))
    return min(shapes, key=lambda dims: (sum(dims), dims))


def _known(generation: str) -> None:
    if generation not in GENERATIONS:
        raise HardwareError(
            f"no topology rules for the generation {generation!r}; "
            f"{nearest(str(generation), GENERATIONS)}"
        )


def _illegal(generation: str, dims: Dims) -> str:
    alike = sorted(legal_shapes(generation, prod(dims)), key=lambda shape: _distance(shape, dims))
    said = f"{generation} has no slice {format_shape(dims)}: {rules.sentence(generation)}"
    if alike:
        return f"{said}; with {prod(dims)} chips write {_either(alike[:3])}"
    return f"{said}; {_near_counts(generation, prod(dims))}"


def _distance(shape: Dims, wanted: Dims) -> int:
    """How far one shape is from another, whatever their orders."""
    pairs = zip_longest(sorted(shape, reverse=True), sorted(wanted, reverse=True), fillvalue=1)
    return sum(abs(ours - theirs) for ours, theirs in pairs)


def _no_such_count(generation: str, chips: int) -> str:
    return f"{generation} has no slice of {chips} chips; {_near_counts(generation, chips)}"


def _near_counts(generation: str, chips: int) -> str:
    counts = sorted({prod(dims) for dims in legal_shapes(generation)})
    near = sorted(sorted(counts, key=lambda count: abs(count - chips))[:2])
    return "nearest are " + " and ".join(
        f"{format_shape(default_shape(generation, count))} ({count} chips)" for count in near
    )


def _not_twistable(generation: str, dims: Dims) -> str:
    rule = GENERATIONS[generation]
    shapes = [shape for shape in legal_shapes(generation) if can_twist(shape)]
    if not rule.twistable:
        able = [name for name, known in GENERATIONS.items() if known.twistable]
        return f"{generation} has no twisted tori; only {' and '.join(able)} have"
    return (
        f"{generation} {format_shape(dims)} cannot be twisted: a twisted torus is n x n x 2n or "
        f"n x 2n x 2n, n a multiple of 4; write {_either(shapes)}"
    )


def _either(shapes: Sequence[Dims]) -> str:
    names = [format_shape(dims) for dims in shapes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

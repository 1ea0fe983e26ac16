"""Which shapes are legal, and the sentences for those that are not."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from typing import Any

from tpusim.errors import HardwareError, nearest
from tpusim.hardware import rules
from tpusim.hardware.rules import CUBE, GENERATIONS, Dims

_SHAPE = r"[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){0,2}"


def parse_shape(text: str) -> Dims:
    """The dimensions of a shape, `8x16x16` -> (8, 16, 16); `HardwareError` if it is none."""
    if not isinstance(text, str) or not re.fullmatch(_SHAPE, text):
        raise HardwareError(f"{text!r} is not a topology; {_spelled(text)}")
    return tuple(int(length) for length in text.split("x"))


def _spelled(text: Any) -> str:
    """How to write what a shape may have meant."""
    shape = re.match(_SHAPE, text) if isinstance(text, str) and "twist" in text.lower() else None
    if shape:
        return f"a twisted torus is written '{shape[0]}_twisted'"
    return "write chips along each dimension, as in '8x16x16'"


def format_shape(dims: Dims) -> str:
    """The written form of a shape.

    >>> format_shape((8, 16, 16))
    '8x16x16'
    """
    return "x".join(map(str, dims))


def check_shape(generation: str, dims: Dims, twisted: bool) -> None:
    """Raise `HardwareError` unless the generation has this slice, twisted if it is to be."""
    _known(generation)
    if not rules.is_legal(generation, dims):
        raise HardwareError(_illegal(generation, dims))
    if twisted and not (GENERATIONS[generation].twistable and can_twist(dims)):
        raise HardwareError(_not_twistable(generation, dims))


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

"""Checks of slice shapes against a generation's rules, with the nearest legal shapes."""

from itertools import zip_longest
from math import prod

from tpusim.base.close_names import joined
from tpusim.base.errors import HardwareError
from tpusim.hardware.catalogue import catalogue_rules, rules_of
from tpusim.hardware.chip_fields import Dims, format_shape
from tpusim.hardware.slice_rules import SliceRules, can_twist, slice_shapes


def check_shape(rules: SliceRules, dims: Dims, twisted: bool) -> None:
    """Raise HardwareError unless the rules allow this slice, twisted if `twisted`."""
    if not rules.is_legal(dims):
        raise HardwareError(_illegal_shape(rules, dims))
    if twisted and not (rules.twistable and can_twist(dims)):
        raise HardwareError(_not_twistable(rules, dims))


def legal_shapes(generation: str | SliceRules, chips: int | None = None) -> tuple[Dims, ...]:
    """Return the legal shapes of a generation, ordered by chips, then by size.

    generation: name in the catalogue, or the rules themselves.
    chips: chips of each shape; all counts if None.

    >>> legal_shapes("v5p", 256)
    ((4, 4, 16), (4, 8, 8))
    """
    shapes = slice_shapes(rules_of(generation))
    return tuple(dims for dims in shapes if chips in (None, prod(dims)))


def default_shape(generation: str | SliceRules, chips: int) -> Dims:
    """Return the most cube-like legal shape of `chips` chips, which the name of a slice means.

    >>> default_shape("v5p", 512)
    (8, 8, 8)
    """
    rules = rules_of(generation)
    shapes = legal_shapes(rules, chips)
    if not shapes:
        raise HardwareError(
            f"{rules.generation} has no slice of {chips} chips; {_near_counts(rules, chips)}"
        )
    return min(shapes, key=lambda dims: (sum(dims), dims))


def _illegal_shape(rules: SliceRules, dims: Dims) -> str:
    chips = prod(dims)
    alike = sorted(legal_shapes(rules, chips), key=lambda shape: _distance(shape, dims))
    fault = f"{rules.generation} has no slice {format_shape(dims)}: {rules}"
    if alike:
        return f"{fault}; with {chips} chips write {joined(map(format_shape, alike[:3]), 'or')}"
    return f"{fault}; {_near_counts(rules, chips)}"


def _distance(shape: Dims, wanted: Dims) -> int:
    """Return the difference of two shapes in chips per dimension, whatever their orders."""
    pairs = zip_longest(sorted(shape, reverse=True), sorted(wanted, reverse=True), fillvalue=1)
    return sum(abs(ours - theirs) for ours, theirs in pairs)


def _near_counts(rules: SliceRules, chips: int) -> str:
    counts = sorted({prod(dims) for dims in slice_shapes(rules)})
    near = sorted(sorted(counts, key=lambda count: abs(count - chips))[:2])
    several, left = divmod(chips, counts[-1])
    shapes = [f"{format_shape(default_shape(rules, count))} ({count} chips)" for count in near]
    if several > 1 and not left:
        shapes.append(f"num_slices = {several} of {format_shape(default_shape(rules, counts[-1]))}")
    return f"nearest are {joined(shapes)}"


def _not_twistable(rules: SliceRules, dims: Dims) -> str:
    if not rules.twistable:
        able = [name for name, known in catalogue_rules().items() if known.twistable]
        return f"{rules.generation} has no twisted tori; only {joined(able)} have"
    shapes = [shape for shape in slice_shapes(rules) if can_twist(shape)]
    return (
        f"{rules.generation} {format_shape(dims)} cannot be twisted: a twisted torus is n x n x 2n "
        f"or n x 2n x 2n, n a multiple of 4; write {joined(map(format_shape, shapes), 'or')}"
    )

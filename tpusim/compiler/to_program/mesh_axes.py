"""The axes of a program: the coarsest parts of the torus of which its groups are products."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

from tpusim.compiler.to_program.torus_digits import SLICES, Parts
from tpusim.hardware import DIE, Span

_Cuts = Mapping[int, Sequence[int]]
"""Cuts of each dimension into digits: 1, the strides, the length."""


class ProgramAxis(NamedTuple):
    """Parts of the torus, or of the slices, that always occur together, outermost first.

    user: the axis of the user's mesh that lies on them; None for parts of no such axis.
    """

    user: str | None
    parts: Parts

    @property
    def size(self) -> int:
        """Devices, or slices, along the axis."""
        return prod(part.size for part in self.parts)

    @property
    def across(self) -> bool:
        """Whether the axis runs across slices."""
        return any(part.dim == SLICES for part in self.parts)


@dataclass(frozen=True, slots=True)
class ProgramAxes:
    """The axes of a program. They are told apart by their numbers: names are for display."""

    axes: Sequence[ProgramAxis]
    cuts: _Cuts

    def made_of(self, parts: Parts | None) -> tuple[int, ...] | None:
        """Return the numbers of the axes that together are these parts; None if none are."""
        wanted = None if parts is None else _pieces(parts, self.cuts)
        if wanted is None:
            return None
        own = [_pieces(axis.parts, self.cuts) or [] for axis in self.axes]
        inside = [at for at, pieces in enumerate(own) if pieces and set(pieces) <= set(wanted)]
        return tuple(inside) if sum(len(own[at]) for at in inside) == len(wanted) else None


def program_axes(
    lengths: Mapping[int, int], wanted: Iterable[tuple[str | None, Parts | None]]
) -> ProgramAxes:
    """Return the axes that these groups make, in order, as far as they do not cut one another.

    A group that contains existing axes makes one of its remainder.
    """
    cuts: _Cuts = {dim: (1, length) for dim, length in lengths.items()}
    made: list[tuple[str | None, list[Span]]] = []
    for name, parts in wanted:
        tried = _add_cuts(cuts, parts or ())
        if parts is None or tried is None:
            continue
        rest = set(_pieces(parts, tried) or ())
        for _, axis in made:
            own = set(_pieces(axis, tried) or ())
            if own & rest and not own <= rest:
                break
            rest -= own
        else:
            if rest or name:
                made.append((name, list(rest)))
                cuts = tried
    whole = [Span(dim, length) for dim, length in lengths.items()]
    left = set(_pieces(whole, cuts) or ())
    left -= {piece for _, own in made for piece in _pieces(own, cuts) or ()}
    made += [(None, [piece]) for piece in sorted(left, key=_outermost_first)]
    axes = [axis for name, own in made for axis in _split_slices(name, merge_spans(own))]
    return ProgramAxes(axes, cuts)


def _add_cuts(cuts: _Cuts, parts: Iterable[Span]) -> _Cuts | None:
    """Return the cuts with those at both ends of the parts; None if they are no digits then."""
    tried = {dim: set(at) for dim, at in cuts.items()}
    for part in parts:
        tried[part.dim] |= {part.stride, part.stride * part.size}
    found = {dim: sorted(at) for dim, at in tried.items()}
    fits = all(high % low == 0 for at in found.values() for low, high in pairwise(at))
    return found if fits else None


def _pieces(parts: Iterable[Span], cuts: _Cuts) -> list[Span] | None:
    """Return the parts cut as the dimensions are; None if a part begins or ends between cuts."""
    found = []
    for part in parts:
        at = cuts[part.dim]
        low, high = part.stride, part.stride * part.size
        if low not in at or high not in at:
            return None
        inside = [cut for cut in at if low <= cut <= high]
        found += [Span(part.dim, above // below, below) for below, above in pairwise(inside)]
    return found


def merge_spans(pieces: Iterable[Span]) -> list[Span]:
    """Return neighbouring parts of a dimension as one, outermost first."""
    found: list[Span] = []
    for piece in sorted(pieces, key=_outermost_first, reverse=True):
        last = found[-1] if found else None
        if last and last.dim == piece.dim and last.stride * last.size == piece.stride:
            found[-1] = last._replace(size=last.size * piece.size)
        else:
            found.append(piece)
    return found[::-1]


def _outermost_first(part: Span) -> tuple[bool, int, int]:
    return part.dim == DIE, part.dim, -part.stride


def _split_slices(user: str | None, parts: Sequence[Span]) -> Iterator[ProgramAxis]:
    """Yield the part of an axis that runs across slices, and the part on the torus."""
    across = tuple(part for part in parts if part.dim == SLICES)
    inside = tuple(part for part in parts if part.dim != SLICES)
    if across:
        yield ProgramAxis(user, across)
    if inside or not across:
        yield ProgramAxis(user, inside)

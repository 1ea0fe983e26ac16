"""The axes of a program: the coarsest parts of the torus of which its groups are products."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tpusim.compiler.to_program.torus_digits import SLICES, Parts
from tpusim.hardware import DCN_PREFIX, DIE, Span

_Cuts = Mapping[int, Sequence[int]]
"""Cuts of each dimension into digits: 1, the strides, the length."""


@dataclass(frozen=True, slots=True)
class ProgramAxes:
    """The axes of a program: parts that always occur together, outermost first."""

    named: Sequence[tuple[str, Parts]]
    cuts: _Cuts

    def axes(self, parts: Parts | None) -> tuple[str, ...] | None:
        """Return the axes that together are these parts; None if there are none."""
        wanted = None if parts is None else _pieces(parts, self.cuts)
        if wanted is None:
            return None
        inside = [(name, _pieces(own, self.cuts) or []) for name, own in self.named if own]
        inside = [(name, own) for name, own in inside if set(own) <= set(wanted)]
        whole = sum(len(own) for _, own in inside) == len(wanted)
        return tuple(name for name, _ in inside) if whole else None


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
    named = [axis for name, own in made for axis in _named_axes(name, merge_spans(own), lengths)]
    return ProgramAxes(named, cuts)


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


def _named_axes(
    name: str | None, parts: Sequence[Span], lengths: Mapping[int, int]
) -> Iterator[tuple[str, Parts]]:
    """Yield an axis on the torus, and its part across slices with the prefix `dcn_`."""
    across = tuple(part for part in parts if part.dim == SLICES)
    inside = tuple(part for part in parts if part.dim != SLICES)
    plain = None if name is None else name.removeprefix(DCN_PREFIX)
    if across:
        written = (part._replace(dim=0).written(lengths[SLICES]) for part in across)
        slices = ",".join("slices" + text.removeprefix("x") for text in written)
        yield DCN_PREFIX + (plain or slices), across
    if inside or not across:
        texts = ",".join(part.written(lengths[part.dim]) for part in inside)
        yield plain or texts, inside

"""The axes of a program: the coarsest parts of the torus of which its groups are products."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tpusim.hardware import DIE, Span
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.xla.torus import SLICES, Parts

_Cuts = Mapping[int, Sequence[int]]
"""Where the places along each dimension are cut into digits: 1, the strides, the length."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of the program: parts that always come together, outermost first."""

    named: Sequence[tuple[str, Parts]]
    cuts: _Cuts

    def axes(self, parts: Parts | None) -> tuple[str, ...] | None:
        """The axes that together are these parts; None if there are none."""
        wanted = None if parts is None else _pieces(parts, self.cuts)
        if wanted is None:
            return None
        inside = [(name, _pieces(own, self.cuts) or []) for name, own in self.named if own]
        inside = [(name, own) for name, own in inside if set(own) <= set(wanted)]
        whole = sum(len(own) for _, own in inside) == len(wanted)
        return tuple(name for name, _ in inside) if whole else None


def axes_of(
    lengths: Mapping[int, int], wanted: Iterable[tuple[str | None, Parts | None]]
) -> Axes:  # fmt: skip
    """The axes that these groups make, in their order, as far as they do not cut one another.

    A group that contains axes made before makes one of what else it has.
    """
    cuts: _Cuts = {dim: (1, length) for dim, length in lengths.items()}
    made: list[tuple[str | None, list[Span]]] = []
    for name, parts in wanted:
        tried = _cut(cuts, parts or ())
        if parts is None or tried is None:
            continue
        rest = set(_pieces(parts, tried) or ())
        for _, atom in made:
            own = set(_pieces(atom, tried) or ())
            if own & rest and not own <= rest:
                break
            rest -= own
        else:
            if rest or name:
                made.append((name, list(rest)))
                cuts = tried
    left = {piece for dim, length in lengths.items()
            for piece in _pieces([Span(dim, length)], cuts) or ()}  # fmt: skip
    left -= {piece for _, atom in made for piece in _pieces(atom, cuts) or ()}
    made += [(None, [piece]) for piece in sorted(left, key=_outermost_first)]
    named = [axis for name, atom in made for axis in _named(name, merged(atom), lengths)]
    return Axes(named, cuts)


def _cut(cuts: _Cuts, parts: Iterable[Span]) -> _Cuts | None:
    """The cuts, and those at both ends of the parts; None where they are no digits then."""
    tried = {dim: set(at) for dim, at in cuts.items()}
    for part in parts:
        tried[part.dim] |= {part.stride, part.stride * part.size}
    found = {dim: sorted(at) for dim, at in tried.items()}
    fits = all(high % low == 0 for at in found.values() for low, high in pairwise(at))
    return found if fits else None


def _pieces(parts: Iterable[Span], cuts: _Cuts) -> list[Span] | None:
    """The parts cut as the dimensions are; None where a part begins or ends between cuts."""
    found = []
    for part in parts:
        at = cuts[part.dim]
        low, high = part.stride, part.stride * part.size
        if low not in at or high not in at:
            return None
        inside = [cut for cut in at if low <= cut <= high]
        found += [Span(part.dim, above // below, below) for below, above in pairwise(inside)]
    return found


def merged(pieces: Iterable[Span]) -> list[Span]:
    """Neighbouring parts of a dimension as one, outermost first."""
    found: list[Span] = []
    for piece in sorted(pieces, key=_outermost_first, reverse=True):
        last = found[-1] if found else None
        if last and last.dim == piece.dim and last.stride * last.size == piece.stride:
            found[-1] = replace(last, size=last.size * piece.size)
        else:
            found.append(piece)
    return found[::-1]


def _outermost_first(part: Span) -> tuple[bool, int, int]:
    return part.dim == DIE, part.dim, -part.stride


def _named(
    name: str | None, parts: Sequence[Span], lengths: Mapping[int, int]
) -> Iterator[tuple[str, Parts]]:
    """An axis on the torus, and `dcn_` before it what of it runs across slices."""
    across = tuple(part for part in parts if part.dim == SLICES)
    inside = tuple(part for part in parts if part.dim != SLICES)
    plain = None if name is None else name.removeprefix(DCN_PREFIX)
    if across:
        written = (replace(part, dim=0).written(lengths[SLICES]) for part in across)
        slices = ",".join("slices" + text.removeprefix("x") for text in written)
        yield DCN_PREFIX + (plain or slices), across
    if inside or not across:
        texts = ",".join(part.written(lengths[part.dim]) for part in inside)
        yield plain or texts, inside

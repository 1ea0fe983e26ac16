"""How a tensor lies on the mesh, and which collectives bring it to lie otherwise.

A layout gives, for each dimension of a tensor, the mesh axes that shard it. A tensor may also be
partial over axes: every device holds a term, and the sum is still to be taken. The collective that
a mismatch calls for follows from the two layouts alone (GSPMD, arXiv:2105.04663, section 3.5).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.program import CollectiveKind

Axes: TypeAlias = tuple[str, ...]
Layout: TypeAlias = tuple[Axes, ...]


@dataclass(frozen=True, slots=True)
class Local:
    """The part of a tensor that one device holds: its dimensions, each with its axes."""

    dims: tuple[str, ...]
    layout: Layout

    def split(self) -> dict[str, Axes]:
        """The axes of each dimension."""
        return dict(zip(self.dims, self.layout, strict=True))


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of a resharding.

    payload: the layout of the full tensor on one device: gathered, unreduced or exchanged.
    after: the layout that it leaves.
    """

    kind: CollectiveKind
    axes: Axes
    payload: Layout
    after: Layout


def reshard(source: Layout, partial: Axes, target: Layout) -> Iterator[Step]:
    """The collectives from `source`, partial over some axes, to `target`; slices are free.

    Sums come first: scattered where the target shards a dimension over the axis, whole where it
    does not. Axes that move to another dimension are exchanged; axes that vanish are gathered.
    """
    now = source
    scattered = tuple(
        tuple(a for a in want if a in partial and a not in have)
        for have, want in zip(source, target, strict=True)
    )
    axes = _flat(scattered)
    if axes:
        after = tuple(have + new for have, new in zip(now, scattered, strict=True))
        yield Step(CollectiveKind.REDUCE_SCATTER, axes, now, after)
        now = after
    rest = tuple(axis for axis in partial if axis not in axes)
    if rest:
        yield Step(CollectiveKind.ALL_REDUCE, rest, now, now)
    wanted = set(_flat(target))
    leaving = [
        tuple(a for a in have if a not in want) for have, want in zip(now, target, strict=True)
    ]
    moving = tuple(a for axes in leaving for a in axes if a in wanted)
    if moving:
        after = _move(now, target, moving)
        yield Step(CollectiveKind.ALL_TO_ALL, moving, now, after)
        now = after
    gone = tuple(a for axes in leaving for a in axes if a not in wanted)
    if gone:
        after = tuple(tuple(a for a in have if a not in gone) for have in now)
        yield Step(CollectiveKind.ALL_GATHER, gone, after, after)


def _move(now: Layout, target: Layout, moving: Axes) -> Layout:
    """`now` with the moving axes on the dimensions where the target has them."""
    return tuple(
        tuple(a for a in have if a not in moving) + tuple(a for a in want if a in moving)
        for have, want in zip(now, target, strict=True)
    )


def _flat(layout: Layout) -> Axes:
    return tuple(axis for axes in layout for axis in axes)

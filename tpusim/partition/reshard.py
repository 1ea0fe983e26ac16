"""Resharding: the collectives that lead from one layout of a tensor to another.

A layout gives, for each dimension of a tensor, the mesh axes that shard it. A tensor may also be
partial over axes: every device holds a term, and the sum is still to be taken. The collective that
a mismatch calls for follows from the two layouts alone (GSPMD, arXiv:2105.04663, section 3.5).

A sum or a gather over the slice and across slices is two collectives. What crosses is a shard: sums
are taken within the slice first, gathers across slices first (compiled programs for two slices,
libtpu 0.0.42.1).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpusim.partition.layout import Layout, across_slices, within_slice
from tpusim.plan import Axes
from tpusim.program import CollectiveKind


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """One collective of a resharding.

    payload: the layout of the full tensor on one device: gathered, unreduced or exchanged.
    after: the layout that it leaves.
    sharing: it divides, among devices that want all of it, a sum that crosses slices.
    """

    kind: CollectiveKind
    axes: Axes
    payload: Layout
    after: Layout
    sharing: bool = False


def reshard(
    source: Layout, partial: Axes, target: Layout, spare: Callable[[], int] = int
) -> Iterator[ReshardStep]:
    """Yield the collectives from `source`, partial over some axes, to `target`; slicing is free.

    Sums come first: scattered where the target shards a dimension over the axis, all-reduced where
    it does not. Axes that move to another dimension are exchanged; axes that vanish are gathered.
    An all-reduce that crosses slices is divided within the slice over the dimension whose index
    `spare` returns. It depends on sizes, so it is called only for such an all-reduce.
    """
    if source == target and not partial:
        return
    now = source
    for step in _sums(source, partial, target, spare) if partial else ():
        yield step
        now = step.after
    wanted = set(_flat(target))
    leaving = [
        tuple(a for a in have if a not in want) for have, want in zip(now, target, strict=True)
    ]
    moving = tuple(a for axes in leaving for a in axes if a in wanted)
    if moving:
        after = _move(now, target, moving)
        yield ReshardStep(CollectiveKind.ALL_TO_ALL, moving, now, after)
        now = after
    gone = tuple(a for axes in leaving for a in axes if a not in wanted)
    for axes in filter(None, (across_slices(gone), within_slice(gone))):
        now = _without(now, axes)
        yield ReshardStep(CollectiveKind.ALL_GATHER, axes, now, now)


def moves_apart(source: Layout, target: Layout) -> bool:
    """Return True if axes of one dimension move to several, or those of several to one."""
    pairs = {
        (before, after)
        for before, have in enumerate(source)
        for after, want in enumerate(target)
        if before != after and not set(have).isdisjoint(want)
    }
    return len(pairs) > 1


def _sums(
    now: Layout, partial: Axes, target: Layout, spare: Callable[[], int]
) -> Iterator[ReshardStep]:
    """Yield the sums of a resharding: within the slice, then across slices on what that leaves.

    A sum that every device of the slice wants whole is scattered before it crosses, and gathered
    after. A tensor without dimensions cannot be.

    A sum that is scattered within the slice crosses as an all-reduce, of which each slice keeps its
    part, as XLA all-reduces over both and slices (gradients of 7 compiled plans for two and four
    slices). One that is scattered across slices only is reduce-scattered as shards.
    """
    new = tuple(
        tuple(a for a in want if a in partial and a not in have)
        for have, want in zip(now, target, strict=True)
    )
    rest = tuple(axis for axis in partial if axis not in _flat(new))
    inner, outer = (tuple(part(axes) for axes in new) for part in (within_slice, across_slices))
    crossing = rest if _flat(inner) else partial
    shared = within_slice(rest) if across_slices(crossing) and now else ()
    whole = tuple(axis for axis in rest if axis not in shared)
    for scattered, sharing in (
        (inner, False),
        (_on_one(spare(), shared, now) if shared else (), True),
    ):
        if axes := _flat(scattered):
            after = _more(now, scattered)
            yield ReshardStep(CollectiveKind.REDUCE_SCATTER, axes, now, after, sharing)
            now = after
    if axes := within_slice(whole):
        yield ReshardStep(CollectiveKind.ALL_REDUCE, axes, now, now)
    if axes := _flat(outer):
        after = _more(now, outer)
        kind = CollectiveKind.ALL_REDUCE if _flat(inner) else CollectiveKind.REDUCE_SCATTER
        yield ReshardStep(kind, axes, now, after)
        now = after
    if axes := across_slices(whole):
        yield ReshardStep(CollectiveKind.ALL_REDUCE, axes, now, now)
    if shared:
        now = _without(now, shared)
        yield ReshardStep(CollectiveKind.ALL_GATHER, shared, now, now, sharing=True)


def _more(now: Layout, scattered: Layout) -> Layout:
    return tuple(have + more for have, more in zip(now, scattered, strict=True))


def _on_one(chosen: int, axes: Axes, now: Layout) -> Layout:
    """Return a layout that has the axes on one dimension, of as many dimensions as `now`."""
    return tuple(axes if dim == chosen else () for dim in range(len(now)))


def _without(now: Layout, gone: Axes) -> Layout:
    return tuple(tuple(axis for axis in axes if axis not in gone) for axes in now)


def _move(now: Layout, target: Layout, moving: Axes) -> Layout:
    """Return `now` with the moving axes on the dimensions where the target has them."""
    return tuple(
        tuple(a for a in have if a not in moving) + tuple(a for a in want if a in moving)
        for have, want in zip(now, target, strict=True)
    )


def _flat(layout: Layout) -> Axes:
    return tuple(axis for axes in layout for axis in axes)

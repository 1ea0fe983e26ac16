"""Layouts: the mesh axes that shard each dimension of a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.hardware import DCN_PREFIX
from tpusim.partition.halo import Edge, Halo
from tpusim.plan import Axes

Layout: TypeAlias = tuple[Axes, ...]


PARTS = 8
"""Parts of an image that is cut into the batch: the sublanes of a memory tile."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How memory holds images of a few examples, where it is not as tensors are written.

    cuts: (dimension, spare) of each that is cut into `PARTS` parts, which lie in the batch; each
        part has so many positions without data beyond its share.
    lanes: the dimension in the lanes; empty for channels or the batch, whichever takes less.
    rows: of a tile, which examples fill at least; 0 for elements alone, without tiles.
    """

    cuts: tuple[tuple[str, int], ...] = ()
    lanes: str = ""
    rows: int = 1


@dataclass(frozen=True, slots=True)
class LocalShape:
    """The part of a tensor that one device holds: its dimensions, each with its axes.

    halos: it is extended by these.
    edge: it is the rows of this side of a halo only.
    count: tensors of this shape, side by side.
    arrangement: of an image that is cut, or put together again.
    """

    dims: tuple[str, ...]
    layout: Layout
    halos: tuple[Halo, ...] = ()
    edge: Edge | None = None
    count: int = 1
    arrangement: Arrangement | None = None
    _split: dict[str, Axes] = field(default_factory=dict, init=False, compare=False, repr=False)

    def split(self) -> Mapping[str, Axes]:
        """Return the axes of each dimension."""
        if not self._split:
            self._split.update(zip(self.dims, self.layout, strict=True))
        return self._split


def is_across(axes: Axes) -> bool:
    """Return True if a collective over `axes` runs across slices only."""
    return not within_slice(axes)


def within_slice(axes: Axes) -> Axes:
    """Return the axes within the slice."""
    return tuple(axis for axis in axes if not axis.startswith(DCN_PREFIX))


def across_slices(axes: Axes) -> Axes:
    """Return the axes across slices."""
    return tuple(axis for axis in axes if axis.startswith(DCN_PREFIX))

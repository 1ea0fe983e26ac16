"""Groups and pairs of devices listed by coordinates, for those that no mesh axis makes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware.spans import Span


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """Groups of devices, or pairs of a source and a target.

    along: mesh axes on which members of a group differ.
    pairs: the groups are (source, target) pairs.
    shape, data: shape and bytes of `positions`, as 4-byte numbers.
    spans: parts of the torus that the groups are after all, though not of the mesh; `positions` is
        then empty.
    slices: slices over which groups of `spans` reach.
    """

    along: tuple[str, ...]
    pairs: bool = False
    shape: tuple[int, ...] = (0, 0, 0)
    data: bytes = b""
    spans: tuple[Span, ...] = ()
    slices: int = 1

    @classmethod
    def of(
        cls, positions: NDArray[np.intp], pairs: bool = False, along: Sequence[str] = ()
    ) -> "ListedGroups":
        """Return the groups or pairs of these positions."""
        return cls(tuple(along), pairs, positions.shape, positions.astype(np.int32).tobytes())

    @property
    def ends(self) -> tuple[frozenset[int], frozenset[int]]:
        """Of pairs, the slices that send to others, and those that receive from others."""
        slices = self.positions[..., 0]
        sources, targets = slices[slices[:, 0] != slices[:, 1]].T.tolist()
        return frozenset(sources), frozenset(targets)

    @property
    def positions(self) -> NDArray[np.intp]:
        """Positions of the devices, [group, member, (slice, coordinates on the torus, core)]."""
        return np.frombuffer(self.data, np.int32).reshape(self.shape).astype(np.intp)

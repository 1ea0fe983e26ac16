"""Groups of devices, and pairs that send, by their places: those of which no mesh axis is made."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.hardware.spans import Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Listed:
    """Groups of places, or pairs of a source and a target.

    along: the axes on which members of a group differ. shape and data: the places, [group, member,
    (slice, coordinates on the torus, core)], as 4-byte numbers. Where the groups are parts of the
    torus after all, though not of the mesh, they are `spans` instead, and reach over `slices`.
    """

    along: tuple[str, ...]
    pairs: bool = False
    shape: tuple[int, ...] = (0, 0, 0)
    data: bytes = b""
    spans: tuple[Span, ...] = ()
    slices: int = 1

    @classmethod
    def of(
        cls, places: "NDArray[np.intp]", pairs: bool = False, along: Sequence[str] = ()
    ) -> "Listed":
        """Groups or pairs of these places."""
        import numpy as np

        return cls(tuple(along), pairs, places.shape, places.astype(np.int32).tobytes())

    @property
    def ends(self) -> tuple[frozenset[int], frozenset[int]]:
        """Of pairs, the slices that send to others, and those that receive from others."""
        slices = self.places[..., 0]
        sources, targets = slices[slices[:, 0] != slices[:, 1]].T.tolist()
        return frozenset(sources), frozenset(targets)

    @property
    def places(self) -> "NDArray[np.intp]":
        """The places, [group, member, (slice, coordinates on the torus, core)]."""
        import numpy as np

        return np.frombuffer(self.data, np.int32).reshape(self.shape).astype(np.intp)

"""Keys by identity."""

from collections.abc import Iterable


class Same:
    """Objects as a key, which is equal to that of the same objects and holds them."""

    __slots__ = ("_ids", "objects")

    def __init__(self, objects: Iterable[object]) -> None:
        self.objects = tuple(objects)
        self._ids = tuple(map(id, self.objects))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash(self._ids)

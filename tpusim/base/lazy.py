"""Tuples that are made when they are first read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, overload

Item = TypeVar("Item", covariant=True)


class LazyTuple(Sequence[Item]):
    """A tuple that is made when the first of its items is asked for; pickled, it is a tuple."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Iterable[Item]]) -> None:
        self._make: Callable[[], Iterable[Item]] | None = make
        self._made: tuple[Item, ...] = ()

    def _all(self) -> tuple[Item, ...]:
        if self._make is not None:
            self._made, self._make = tuple(self._make()), None
        return self._made

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        return self._all()[at]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[type[tuple[Item, ...]], tuple[tuple[Item, ...]]]:
        return tuple, (self._all(),)

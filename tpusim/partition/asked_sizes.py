"""Sizes of dimensions as a partitioned graph depends on them: through questions, written down.

The structure of a partitioned graph has no sizes, and few of its choices ask for any: which
dimension of a tensor is the largest, and how far the windows of convolutions reach. So graphs of
the same operations share it wherever their sizes answer these questions alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Ranks: TypeAlias = tuple[tuple[bool, ...], ...]
"""What counts before the size of each dimension."""


@dataclass(frozen=True, slots=True)
class SizeAnswers:
    """The sizes that were asked for, and the places of the largest among some dimensions."""

    sizes: dict[str, int] = field(default_factory=dict)
    largest: dict[tuple[tuple[str, ...], Ranks], int] = field(default_factory=dict)


class AskedSizes(Mapping[str, int]):
    """The size of each dimension of a graph. answers: to all questions so far."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.answers = SizeAnswers()
        self._sizes = sizes

    def __getitem__(self, dim: str) -> int:
        self.answers.sizes[dim] = self._sizes[dim]
        return self._sizes[dim]

    def __iter__(self) -> Iterator[str]:
        raise TypeError("sizes are asked for one by one")

    def __len__(self) -> int:
        raise TypeError("sizes are asked for one by one")

    def largest(self, dims: Sequence[str], ranks: Ranks) -> int:
        """Return the place of the first dimension of highest rank and then size; 0 if none is."""
        question = tuple(dims), ranks
        found = self.answers.largest[question] = self._largest(*question)
        return found

    def answers_as(self, known: SizeAnswers) -> bool:
        """Return True if these sizes answer alike all that was asked of others."""
        sizes = self._sizes
        return all(sizes[dim] == size for dim, size in known.sizes.items()) and all(
            self._largest(*question) == place for question, place in known.largest.items()
        )

    def _largest(self, dims: Sequence[str], ranks: Ranks) -> int:
        places = range(len(dims))
        return max(places, key=lambda at: (ranks[at], self._sizes[dims[at]]), default=0)

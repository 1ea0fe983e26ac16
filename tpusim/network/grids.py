"""Groups that are grids: what chains through them put on links, counted without walking.

On a torus without a twist all groups of an axis are alike: their members stand at the same
positions along each dimension, but for where a group starts. A message crosses one dimension after
another, and while it does, it is on a line of the torus whose other coordinates are those of two
members. Groups that start elsewhere along the other dimensions are on other lines. So a line's
links carry what the groups on it send between their members, and the lines of one group stand for
all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.groups import Chips, groups
from tpusim.network.paths import Loads, shortest_moves

Numbers = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]

Pairs = tuple[tuple[int, ...], tuple[int, ...]]
"""Members of a row that edges lead from, and those that they lead to."""


class LineTraffic(NamedTuple):
    """What passes between members on the lines of a grid along one dimension.

    kinds: chunks between each pair, first forwards, then backwards, [kind of line, pair].
    which: the kind of each line.
    """

    pairs: Pairs
    kinds: Numbers
    which: Indices

    @classmethod
    def of(cls, pairs: Pairs, lines: Numbers) -> "LineTraffic":
        """Return what passes on each line, [line, pair]; many lines are alike."""
        numbers: dict[bytes, int] = {}
        which = np.array([numbers.setdefault(line.tobytes(), len(numbers)) for line in lines])
        _, firsts = np.unique(which, return_index=True)
        return cls(pairs, lines[firsts], which)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The members of groups along one dimension.

    places: positions of the members of all groups, [group, member].
    moves: signed links from each member of a group to each other, [from, to].
    length: positions along the dimension.
    """

    places: Indices
    moves: Indices
    length: int

    @property
    def size(self) -> int:
        """Members of a group."""
        return int(self.places.shape[1])

    @property
    def members(self) -> Indices:
        """The member of a group that stands at each position."""
        return np.argsort(self.places, axis=None) % self.size


@lru_cache(maxsize=256)
def _row(spans: tuple[Span, ...], line: Topology) -> Row:
    """Return the row of spans on the only dimension of a line, the outermost first."""
    places = groups(spans, line)
    first = places[0]
    moves = shortest_moves(first[:, None], first[None, :], line)
    return Row(places[..., 0], moves[..., 0], line.chips)


@lru_cache(maxsize=4096)
def _pair_loads(row: Row, pairs: Pairs, alone: bool) -> Numbers:
    """Return the load of each link of a line if the groups on it send between members.

    alone: the first group alone sends.

    [pair, link]: first forwards, then those of the same pairs back by the same way; the links in
    both directions.
    """
    begin, end = np.array(pairs, dtype=np.intp)
    begins = row.places[: 1 if alone else None].T[begin]
    moves = row.moves[begin, end][:, None]
    there, back = _run(begins, moves, row.length), _run(begins + moves, -moves, row.length)
    return np.concatenate([there, back]).astype(float)


def _run(begins: Indices, moves: Indices, length: int) -> Indices:
    """Return the messages on each link, [pair, link], of moves from where they begin."""
    ahead = (np.arange(length) - begins[..., None]) % length
    behind = -ahead % length
    moves = moves[..., None]
    return np.concatenate([(ahead < moves).sum(axis=1), (behind < -moves).sum(axis=1)], axis=1)


class _Steps(NamedTuple):
    """The edges of a tour that lead along one dimension.

    edges: their places in the tour.
    pairs: the different pairs of members that they join.
    which: the pair of each edge.
    lines: the line of the grid on which each is crossed, dimensions in order.
    other_lines: in reverse order.
    """

    edges: Indices
    pairs: Pairs
    which: Indices
    lines: Indices
    other_lines: Indices

    def counted(self, lines: Indices, weights: Numbers, shape: tuple[int, int]) -> Numbers:
        """Return the sum of the edges' weights by line and pair."""
        known = self.edges < len(weights)
        at = (lines * shape[1] + self.which)[known]
        counts = np.bincount(at, weights[self.edges[known]], prod(shape))
        return counts.astype(float, copy=False).reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Tour:
    """An order in which a chain passes the cells of a grid; it may close or not.

    cells: [place, dimension].
    steps: edges along each dimension, with the one from the last cell to the first.
    turns: True for each edge that leads along several dimensions.
    """

    cells: Indices
    sizes: tuple[int, ...]
    steps: tuple[_Steps, ...]
    turns: NDArray[np.bool_]

    @classmethod
    def of(cls, cells: Indices, sizes: tuple[int, ...]) -> "Tour":
        """Return the tour of the cells in their order."""
        ends = np.roll(cells, -1, axis=0)
        steps = tuple(_steps(cells, ends, dim, sizes) for dim in range(len(sizes)))
        return cls(cells, sizes, steps, np.count_nonzero(cells != ends, axis=1) > 1)

    @property
    def order(self) -> Indices:
        """The number of the cell at each place, row by row."""
        return np.asarray(np.ravel_multi_index(tuple(self.cells.T), self.sizes))

    def turns_on(self, closed: bool) -> bool:
        """Return True if an edge of the chain leads along several dimensions."""
        return bool(self.turns[: len(self.cells) if closed else -1].any())

    def passed(self, weights: tuple[Numbers, Numbers], same_order: bool) -> tuple[LineTraffic, ...]:
        """Return what passes along each dimension if each edge carries its weights.

        weights: forwards and backwards; of an open chain, none for the closing edge.
        same_order: see `Chain`.
        """
        found = []
        for size, steps in zip(self.sizes, self.steps, strict=True):
            shape = len(self.cells) // size, len(steps.pairs[0])
            back = steps.other_lines if same_order else steps.lines
            sides = zip((steps.lines, back), weights, strict=True)
            lines = np.hstack([steps.counted(*side, shape) for side in sides])
            found.append(LineTraffic.of(steps.pairs, lines))
        return tuple(found)


def _steps(starts: Indices, ends: Indices, dim: int, sizes: tuple[int, ...]) -> _Steps:
    """Return the edges along a dimension.

    When it is crossed, the dimensions before it have been crossed, and those after it not yet.
    """
    edges = np.flatnonzero(starts[:, dim] != ends[:, dim])
    begin, end = starts[edges], ends[edges]
    codes, which = np.unique(begin[:, dim] * sizes[dim] + end[:, dim], return_inverse=True)
    froms, tos = np.divmod(codes, sizes[dim])
    others = [*sizes[:dim], 1, *sizes[dim + 1 :]]
    steps = np.array([prod(others[at + 1 :]) for at in range(len(sizes))])
    steps[dim] = 0
    lines = end[:, :dim] @ steps[:dim] + begin[:, dim:] @ steps[dim:]
    other = begin[:, :dim] @ steps[:dim] + end[:, dim:] @ steps[dim:]
    return _Steps(edges, (tuple(froms.tolist()), tuple(tos.tolist())), which, lines, other)


@lru_cache(maxsize=1024)
def _tours(sizes: tuple[int, ...], turned: tuple[int, ...]) -> tuple[Tour, ...]:
    cells = np.moveaxis(np.indices(sizes), 0, -1)
    grid = cells.reshape(1, *(size for size in sizes if size > 1), len(sizes))
    return tuple(Tour.of(ordered[0], sizes) for ordered in traversals(grid, turned))


def tours(sizes: tuple[int, ...]) -> Iterator[Tour]:
    """Yield tours of a grid: row after row, along each dimension first, as `traversals` does."""
    for turned in permutations(range(sum(size > 1 for size in sizes))):
        yield from _tours(sizes, turned)


def traversals(grid: Chips, turned: Sequence[int]) -> Iterator[Chips]:
    """Yield the chips of each group in three orders, the last of the `turned` dimensions fastest.

    Row by row (a helix, if rows wrap); every other row backwards (a snake); and a snake that leaves
    out the first column and returns through it (a comb, which closes without wraps). All are one on
    a single dimension.
    """
    count = len(grid)
    turned_grid = grid.transpose(0, *(1 + dim for dim in turned), grid.ndim - 1)
    yield turned_grid.reshape(count, -1, turned_grid.shape[-1])
    if len(turned) == 1:
        return
    snake = _snake(turned_grid)
    yield snake
    yield _comb(_snake(turned_grid[..., 0, :]), snake, turned_grid.shape[-2])


def _snake(grid: Chips) -> Chips:
    """Return [group, rows, ..., dimension] flattened, every other row of each level backwards."""
    if grid.ndim == 3:
        return grid
    inner = [_snake(grid[:, row]) for row in range(grid.shape[1])]
    return np.concatenate(
        [row if at % 2 == 0 else row[:, ::-1] for at, row in enumerate(inner)], axis=1
    )


def _comb(column: Chips, snake: Chips, width: int) -> Chips:
    """Return the snake over all columns but the first, then back up the first."""
    many = column.shape[1]
    lines = snake.reshape(len(snake), many, width, -1)
    teeth = [lines[:, at, 1:] if at % 2 == 0 else lines[:, at, :-1] for at in range(many)]
    return np.concatenate([*teeth, column[:, ::-1]], axis=1)


def _line_loads(row: Row, passed: LineTraffic, alone: bool = False) -> Numbers:
    """Return the load of each link of each kind of line, [kind, link]."""
    loads = _pair_loads(row, passed.pairs, alone)
    return np.asarray(np.einsum("kp,pl->kl", passed.kinds, loads))


@dataclass(frozen=True, slots=True)
class Grid:
    """The groups of spans, by the rows along each dimension of the torus."""

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, spans: Sequence[Span], topology: Topology) -> "Grid":
        """Return the groups of spans on a torus without a twist."""
        inward = sorted(spans, key=lambda span: -span.stride)
        kinds = enumerate(zip(topology.dims, topology.wrap, strict=True))
        return cls(
            tuple(
                _row(
                    tuple(span._replace(dim=0) for span in inward if span.dim == dim),
                    Topology((length,), (wraps,)),
                )
                for dim, (length, wraps) in kinds
            )
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Members of a group along each dimension."""
        return tuple(row.size for row in self.rows)

    def busiest(self, passed: Sequence[LineTraffic], alone: bool = False) -> float:
        """Return the load of the busiest link, of what passes along each dimension.

        alone: in the first group alone.
        """
        return max(
            float(_line_loads(row, each, alone).max())
            for row, each in zip(self.rows, passed, strict=True)
        )

    def loads(self, passed: Sequence[LineTraffic]) -> Loads:
        """Return the load of each link, of what passes along each dimension."""
        found = []
        for dim, (row, each) in enumerate(zip(self.rows, passed, strict=True)):
            others = [other for at, other in enumerate(self.rows) if at != dim]
            which = each.which.reshape([other.size for other in others])
            if others:
                which = which[np.ix_(*(other.members for other in others))]
            lines = _line_loads(row, each).reshape(-1, 2, row.length)[which]
            found.append(np.moveaxis(lines, (-2, -1), (0, dim + 1)))
        return np.stack(found)

    def edge_hops(self, tour: Tour) -> Indices:
        """Return the links of each edge of a tour, the closing one last."""
        hops = np.zeros(len(tour.cells), dtype=np.intp)
        for row, steps in zip(self.rows, tour.steps, strict=True):
            begin, end = np.array(steps.pairs, dtype=np.intp)
            hops[steps.edges] += np.abs(row.moves[begin, end])[steps.which]
        return hops

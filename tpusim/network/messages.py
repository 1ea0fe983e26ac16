"""A schedule as single messages: every step of every chain, with its dependencies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

import numpy as np

from tpusim.hardware import Span, Topology
from tpusim.network.algorithm import ALGORITHMS, schedule
from tpusim.network.all_to_all import all_shortest_moves, ordered_pairs
from tpusim.network.at_once import EACH_WAY, IN_MESH_ORDER, order_links
from tpusim.network.chains import ChainMove, mirror_path
from tpusim.network.groups import Chips, groups, on_torus
from tpusim.network.paths import link_paths
from tpusim.network.schedule import SchedulePhase, ScheduleStage
from tpusim.program import CollectiveKind

MIN_PACKETS = 256
"""Least packets that an all-to-all cuts the bytes of a chip into, so that links are shared as
finely as by the short packets of a real network.
"""

_TO_NEIGHBOURS = {
    ChainMove.SHIFT: 0.5,
    ChainMove.HALO: 0.5,
    ChainMove.ONWARD: 1.0,
    ChainMove.STEP: 1.0,
}
"""Chunks that each place sends in one direction, in moves that end at the neighbours."""

_LastArrivals = dict[int, tuple[int, ...]]
"""For each chip, the messages after which it has what it needs."""


class Message(NamedTuple):
    """One message of a collective, from a chip to another.

    links: numbers of the directed links that it crosses, in order. A link is numbered by its place
        in an array [dimension, direction (0 is +, 1 is -), *coordinates of the chip that it
        leaves].
    share: bytes, by byte of the collective's tensor.
    after: indices of the messages that must have arrived before it leaves.
    """

    links: tuple[int, ...]
    share: float
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CollectiveMoves:
    """The messages of a collective on ICI, for the hop-by-hop network.

    messages: of all chips.
    nbytes: of the tensor.
    launch_s: seconds before the first leaves.
    hop_s: seconds per hop.
    """

    messages: tuple[Message, ...]
    nbytes: float
    launch_s: float
    hop_s: float


@lru_cache(maxsize=16)
def messages(
    kind: CollectiveKind, algorithm: str, spans: tuple[Span, ...], topology: Topology
) -> tuple[Message, ...]:
    """Return all messages of all groups, each after its dependencies.

    A chip waits for the data that it passes on, and between phases for all of the phase before;
    nothing else holds it.
    """
    method = ALGORITHMS[algorithm]
    if method.phases is None and method.at_once is IN_MESH_ORDER:
        return tuple(Message(path, EACH_WAY, ()) for path in order_links(spans, topology))
    if method.phases is None:
        return packets(groups(on_torus(spans), topology), topology)
    return phase_messages(schedule(kind, algorithm, spans, topology))


def phase_messages(phases: Iterable[SchedulePhase]) -> tuple[Message, ...]:
    """Return the messages of phases, one after another."""
    sent: list[Message] = []
    arrived: _LastArrivals = {}
    for phase in phases:
        reached = [_ScheduleMessages(stage, arrived, sent).add() for stage in phase]
        arrived = {
            chip: tuple(number for last in reached for number in last.get(chip, ()))
            for chip in sorted(set().union(*reached))
        }
    return tuple(sent)


class _ScheduleMessages:
    """The messages of one stage, added to those `sent` before."""

    def __init__(self, stage: ScheduleStage, arrived: _LastArrivals, sent: list[Message]) -> None:
        chain = stage.chain
        self.stage, self.chain, self.sent = stage, chain, sent
        self.arrived = arrived
        self.numbers = np.ravel_multi_index(
            tuple(np.moveaxis(chain.chips, -1, 0)), chain.topology.dims
        ).tolist()
        edges = chain.forward.shape[1]
        self.paths = [
            [flat[group * edges : (group + 1) * edges] for group in range(len(self.numbers))]
            for flat in (
                link_paths(*chain.edges(side), chain.topology, chain.order(side)) for side in (0, 1)
            )
        ]

    def add(self) -> _LastArrivals:
        """Add all messages, and return the last that reach each chip."""
        last: _LastArrivals = {}
        for group in range(len(self.numbers)):
            for side in (0, 1):
                for place, number in self._one_way(group, side):
                    chip = self.numbers[group][place]
                    last[chip] = (*last.get(chip, ()), number)
        return last

    def _one_way(self, group: int, side: int) -> Iterator[tuple[int, int]]:
        """Add the messages of one direction of a group; yield each place and its last message.

        In the direction of transfer, place 0 is the first of the chain forwards and the last
        backwards.
        """
        if self.stage.move is ChainMove.SPREAD:
            yield from self._spread(group, side)
            return
        if self.stage.move is ChainMove.MIRROR:
            yield from self._mirror(group, side)
            return
        if self.stage.move in (ChainMove.ONWARD, ChainMove.STEP) and side:
            return
        n = self.chain.length
        move = self.stage.move
        sizes = (
            _ring_steps(move, self.chain.chunks, n) if self.chain.closed else _line_steps(move, n)
        )
        before: dict[int, list[int]] = {}
        for step in range(max(map(len, sizes))):
            for place, mine in enumerate(sizes):
                if step < len(mine):
                    number = self._send(group, side, place, mine[step], step, before)
                    before.setdefault((place + 1) % n, []).append(number)
        for place, numbers in before.items():
            yield (n - 1 - place if side else place), numbers[-1]

    def _send(
        self,
        group: int,
        side: int,
        place: int,
        size: float,
        step: int,
        before: dict[int, list[int]],
    ) -> int:
        """Add one message; `before` has the messages that each place has received so far."""
        n = self.chain.length
        at = n - 1 - place if side else place
        edge = (at - 1) % n if side else at
        after = self.arrived.get(self.numbers[group][at], ())
        needed = self._received_before(place, step)
        if needed is not None:
            after = (*after, before[place][needed])
        self.sent.append(Message(self.paths[side][group][edge], size * self.stage.chunk, after))
        return len(self.sent) - 1

    def _received_before(self, place: int, step: int) -> int | None:
        """Return the message that a place must have received before it sends a step."""
        if self.stage.move in _TO_NEIGHBOURS:
            return None
        if not self.chain.closed and self.stage.move is ChainMove.SCATTER:
            return step if place else None
        return step - 1 if step else None

    def _spread(self, group: int, side: int) -> Iterator[tuple[int, int]]:
        """Add one message from the first chip through all others: half the bytes per direction."""
        n, paths = self.chain.length, self.paths[side][group]
        if side and not self.chain.closed:
            return
        edges = range(n - 1, 0, -1) if side else range(n - 1)
        share = 0.5 if self.chain.closed else 1.0
        links = tuple(link for edge in edges for link in paths[edge])
        after = self.arrived.get(self.numbers[group][0], ())
        self.sent.append(Message(links, share * self.stage.chunk, after))
        yield (1 if side else n - 1), len(self.sent) - 1

    def _mirror(self, group: int, side: int) -> Iterator[tuple[int, int]]:
        """Add one message from each place whose way to its mirror image begins on this side."""
        n = self.chain.length
        for place in range(n):
            way = mirror_path(self.chain, place)
            if not way or way[0][0] != side:
                continue
            links = tuple(link for _, edge in way for link in self.paths[side][group][edge])
            after = self.arrived.get(self.numbers[group][place], ())
            self.sent.append(Message(links, self.stage.chunk, after))
            yield n - 1 - place, len(self.sent) - 1


def _ring_steps(move: ChainMove, n: int, places: int) -> list[list[float]]:
    """Return the sizes, in chunks, of the messages that each place of a ring of n chunks sends.

    Of one direction: chunks go half way round; on an even ring, half of the opposite one comes from
    each side, last in a gather and first in a reduction.
    """
    if move in _TO_NEIGHBOURS:
        return [[_TO_NEIGHBOURS[move]]] * places
    sizes = [1.0] * ((n - 1) // 2) + [0.5] * (n % 2 == 0)
    return [sizes if move is ChainMove.GATHER else sizes[::-1]] * places


def _line_steps(move: ChainMove, n: int) -> list[list[float]]:
    """Return the sizes, in chunks, of the messages of each place of a line in one direction."""
    if move in _TO_NEIGHBOURS:
        return [[_TO_NEIGHBOURS[move]]] * (n - 1) + [[]]
    if move is ChainMove.GATHER:
        return [[1.0] * (place + 1) for place in range(n - 1)] + [[]]
    return [[1.0] * (n - 1 - place) for place in range(n)]


def packets(members: Chips, topology: Topology) -> tuple[Message, ...]:
    """Return the packets of an all-to-all within each of the groups of chips."""
    return tuple(_packets(members, topology))


def _packets(members: Chips, topology: Topology) -> Iterator[Message]:
    """Yield the packets of an all-to-all: near ones first, by all shortest paths.

    The packets of a pair turn through the orders of dimensions, so that all links start at once.
    """
    starts, hops, weights = all_shortest_moves(*ordered_pairs(members), topology)
    used = np.flatnonzero(np.abs(hops).any(axis=0)).tolist()
    paths = [link_paths(starts, hops, topology, order) for order in permutations(used)]
    size = members.shape[1]
    count = max(1, -(-MIN_PACKETS // size))
    far = np.abs(hops).sum(axis=1)
    near_first = np.argsort(far, kind="stable").tolist()
    for packet in range(count):
        for pair in near_first:
            links = paths[(packet + int(far[pair])) % len(paths)][pair]
            if links:
                yield Message(links, float(weights[pair]) / size / count, ())

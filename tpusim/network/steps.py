"""A schedule as single messages: every step of every chain, with what each message waits for."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import permutations

import numpy as np

from tpusim.hardware import Span, Topology
from tpusim.network.algorithm import Algorithm
from tpusim.network.chains import Move
from tpusim.network.exchange import every_way, pairs
from tpusim.network.groups import Chips, groups, on_torus
from tpusim.network.messages import Message, Moves
from tpusim.network.paths import link_paths
from tpusim.network.schedule import Phase, Stage, schedule
from tpusim.program import CollectiveKind

PACKETS = 256
"""An all-to-all cuts what a chip sends into at least so many packets, so that links are shared as
finely as by the short packets of a real network."""

_Arrived = dict[int, tuple[int, ...]]
"""For each chip, the messages after which it has what it needs."""


def moves(
    kind: CollectiveKind, how: Algorithm, spans: tuple[Span, ...], topology: Topology,
    nbytes: float, launch_s: float, hop_s: float,
) -> Moves:  # fmt: skip
    """What the hop-by-hop network runs for a collective of `nbytes`."""
    return Moves(messages(kind, how, spans, topology), nbytes, launch_s, hop_s)


@lru_cache(maxsize=16)
def messages(
    kind: CollectiveKind, how: Algorithm, spans: tuple[Span, ...], topology: Topology
) -> tuple[Message, ...]:
    """All messages of all groups, each after those that it waits for.

    A chip waits for the data that it passes on, and between phases for all of the phase before;
    nothing else holds it.
    """
    if how is Algorithm.PAIRS:
        return packets(groups(on_torus(spans), topology), topology)
    return phase_messages(schedule(kind, how, spans, topology))


def phase_messages(phases: Iterable[Phase]) -> tuple[Message, ...]:
    """The messages of phases, one after another."""
    sent: list[Message] = []
    arrived: _Arrived = {}
    for phase in phases:
        reached = [_Steps(stage, arrived, sent).add() for stage in phase]
        arrived = {
            chip: tuple(number for last in reached for number in last.get(chip, ()))
            for chip in sorted(set().union(*reached))
        }
    return tuple(sent)


class _Steps:
    """The messages of one stage, added to those `sent` before."""

    def __init__(self, stage: Stage, arrived: _Arrived, sent: list[Message]) -> None:
        chain = stage.chain
        self.stage, self.chain, self.sent = stage, chain, sent
        self.arrived = arrived
        self.names = np.ravel_multi_index(
            tuple(np.moveaxis(chain.chips, -1, 0)), chain.topology.dims
        ).tolist()
        edges = chain.forward.shape[1]
        self.paths = [
            [flat[group * edges : (group + 1) * edges] for group in range(len(self.names))]
            for flat in (
                link_paths(*chain.edges(side), chain.topology, chain.order(side)) for side in (0, 1)
            )
        ]

    def add(self) -> _Arrived:
        """Add all messages; for each chip, the last that reach it."""
        last: _Arrived = {}
        for group in range(len(self.names)):
            for side in (0, 1):
                for place, number in self._one_way(group, side):
                    name = self.names[group][place]
                    last[name] = (*last.get(name, ()), number)
        return last

    def _one_way(self, group: int, side: int) -> Iterator[tuple[int, int]]:
        """Add the messages of one group in one direction; each chip and the last that reaches it.

        Seen in the direction of travel, place 0 is the first of the chain forwards and the last
        backwards.
        """
        if self.stage.move is Move.SPREAD:
            yield from self._spread(group, side)
            return
        if self.stage.move is Move.ONWARD and side:
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
        self, group: int, side: int, place: int, size: float, step: int,
        before: dict[int, list[int]],
    ) -> int:  # fmt: skip
        """Add one message; `before` has the messages that each place has received so far."""
        n = self.chain.length
        at = n - 1 - place if side else place
        edge = (at - 1) % n if side else at
        waits = self.arrived.get(self.names[group][at], ())
        needed = self._received_before(place, step)
        if needed is not None:
            waits = (*waits, before[place][needed])
        self.sent.append(Message(self.paths[side][group][edge], size * self.stage.chunk, waits))
        return len(self.sent) - 1

    def _received_before(self, place: int, step: int) -> int | None:
        """Which of the messages that a place receives must be there before it sends a step."""
        if self.stage.move in (Move.SHIFT, Move.HALO, Move.ONWARD):
            return None
        if not self.chain.closed and self.stage.move is Move.SCATTER:
            return step if place else None
        return step - 1 if step else None

    def _spread(self, group: int, side: int) -> Iterator[tuple[int, int]]:
        """One message from the first chip through all others, half of the bytes a direction."""
        n, paths = self.chain.length, self.paths[side][group]
        if side and not self.chain.closed:
            return
        edges = range(n - 1, 0, -1) if side else range(n - 1)
        share = 0.5 if self.chain.closed else 1.0
        links = tuple(link for edge in edges for link in paths[edge])
        waits = self.arrived.get(self.names[group][0], ())
        self.sent.append(Message(links, share * self.stage.chunk, waits))
        yield (1 if side else n - 1), len(self.sent) - 1


def _ring_steps(move: Move, n: int, places: int) -> list[list[float]]:
    """Sizes of the messages that each of the places of a ring of n chunks sends one way, in chunks.

    Chunks go half way round each way; of an even ring, the one opposite comes half from each side:
    last in a gather, first in a reduction.
    """
    if move in (Move.SHIFT, Move.ONWARD):
        return [[0.5 if move is Move.SHIFT else 1.0]] * places
    sizes = [1.0] * ((n - 1) // 2) + [0.5] * (n % 2 == 0)
    return [sizes if move is Move.GATHER else sizes[::-1]] * places


def _line_steps(move: Move, n: int) -> list[list[float]]:
    """Sizes of the messages that each place of a line sends one way, in chunks."""
    if move is Move.HALO:
        return [[0.5]] * (n - 1) + [[]]
    if move is Move.GATHER:
        return [[1.0] * (place + 1) for place in range(n - 1)] + [[]]
    return [[1.0] * (n - 1 - place) for place in range(n)]


def packets(members: Chips, topology: Topology) -> tuple[Message, ...]:
    """The packets of an all-to-all within each of the groups of chips."""
    return tuple(_exchange(members, topology))


def _exchange(members: Chips, topology: Topology) -> Iterator[Message]:
    """The packets of an all-to-all: near ones first, by all shortest ways.

    The packets of a pair turn through the orders of dimensions, so that all links start at once.
    """
    starts, ways, weights = every_way(*pairs(members), topology)
    used = np.flatnonzero(np.abs(ways).any(axis=0)).tolist()
    paths = [link_paths(starts, ways, topology, order) for order in permutations(used)]
    size = members.shape[1]
    count = max(1, -(-PACKETS // size))
    far = np.abs(ways).sum(axis=1)
    near_first = np.argsort(far, kind="stable").tolist()
    for packet in range(count):
        for pair in near_first:
            links = paths[(packet + int(far[pair])) % len(paths)][pair]
            if links:
                yield Message(links, float(weights[pair]) / size / count, ())

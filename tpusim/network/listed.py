"""Collectives among groups of devices that are listed one by one, and permutes of listed pairs.

A group is one ring, or line, through its chips. Both devices of a chip share its links, so what a
link carries for one device is what all messages put on it, by the number of devices of a chip.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Topology
from tpusim.hardware.listed import Listed
from tpusim.hardware.topology import DIMENSION_NAMES
from tpusim.network.algorithm import Algorithm
from tpusim.network.chains import Chain, Move, best_chain, orders
from tpusim.network.groups import Chips
from tpusim.network.messages import Message
from tpusim.network.paths import Loads, link_loads, link_paths, run_loads, shortest_moves
from tpusim.network.pattern import Pattern, busiest, loads_of, of_phases
from tpusim.network.schedule import Phase, Stage, stages_of
from tpusim.network.steps import packets, phase_messages
from tpusim.program import CollectiveKind

MOST_PAIRS = 500_000
"""So many pairs of an all-to-all are followed; of more, as many of each member, at random."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What listed groups put on one slice, by byte of the tensor on a device.

    pattern: on the torus; None where nothing leaves its chip. die: messages, or halves of a group,
    that cross between the devices of a chip, each way. devices: members of a group on the slice.
    slices: over which a group reaches, at most.
    """

    pattern: Pattern | None
    die: tuple[int, int]
    devices: int
    slices: int


@lru_cache(maxsize=256)
def spread(kind: CollectiveKind, listed: Listed, topology: Topology) -> Spread:
    """What listed groups or pairs put on the slice that has most of it."""
    ordered = np.sort(listed.places[..., 0], axis=1)
    slices = 1 + int((ordered[:, 1:] != ordered[:, :-1]).sum(axis=1).max(initial=0))
    found = [_spread(kind, each, topology, slices) for each in _each_slice(listed)]
    return max(found, key=_most) if found else Spread(None, (0, 0), 1, slices)


def _most(found: Spread) -> float:
    if found.pattern is None:
        return float(sum(found.die) > 0) - 1.0
    return max(load for _, load in found.pattern.links)


def listed_loads(kind: CollectiveKind, listed: Listed, topology: Topology) -> Loads:
    """Bytes on every link of the slice that has most, by byte of the tensor on all its devices."""
    return _loads(kind, _fullest(kind, listed, topology), topology)


def listed_messages(
    kind: CollectiveKind, listed: Listed, topology: Topology
) -> tuple[Message, ...]:  # fmt: skip
    """The messages of the slice that has most, for the hop-by-hop network."""
    most = _fullest(kind, listed, topology)
    if listed.pairs:
        paths = link_paths(*_apart(most, topology), topology, range(len(topology.dims)))
        return tuple(Message(path, 1.0, ()) for path in paths)
    if kind is CollectiveKind.ALL_TO_ALL:
        return packets(most.places[..., 1:-1], topology)
    return phase_messages(_phases(kind, most, topology))


def _fullest(kind: CollectiveKind, listed: Listed, topology: Topology) -> Listed:
    """What is listed within the slice that has most of it."""
    return max(_each_slice(listed), key=lambda each: _most(_spread(kind, each, topology, 1)))


def _each_slice(listed: Listed) -> Iterator[Listed]:
    """What is listed within each slice, once where several have the same."""
    places, seen = listed.places, set()
    for slice_ in np.unique(places[..., 0]).tolist():
        inside = _within(places, places[..., 0] == slice_, listed.pairs)
        inside[..., 0] = 0
        found = Listed.of(inside, listed.pairs)
        if inside.size and found not in seen:
            seen.add(found)
            yield found


def _within(places: Chips, here: NDArray[np.bool_], pairs: bool) -> Chips:
    """The groups' members on a slice, as many of each as the largest has; pairs as a whole."""
    counts = here.sum(axis=1)
    most = 2 if pairs else int(counts.max(initial=0))
    kept = counts == most
    return np.array(places[kept][here[kept]]).reshape(int(kept.sum()), most, places.shape[2])


@lru_cache(maxsize=512)
def _spread(kind: CollectiveKind, listed: Listed, topology: Topology, slices: int) -> Spread:
    places = listed.places
    if listed.pairs:
        return Spread(_permute(listed, topology), _crossings(places), 2, slices)
    die = (1, 1) if places[..., -1].any() and _meet(places) else (0, 0)
    if not (places[:, :, 1:-1] != places[:, :1, 1:-1]).any():
        return Spread(None, die, places.shape[1], slices)
    if kind is CollectiveKind.ALL_TO_ALL:
        found = _exchange(listed, topology)
    else:
        how = Algorithm.RING
        made = of_phases(how, _phases(kind, listed, topology))
        text = made.text.replace(" through {}", ", listed")
        found = Pattern(_links(made.loads), made.paths, text, made.power)
    return Spread(found, die, places.shape[1], slices)


def _links(loads: Sequence[tuple[tuple[int, str], float]]) -> tuple[tuple[str, float], ...]:
    return tuple((f"ici:{DIMENSION_NAMES[dim]}{side}", load) for (dim, side), load in loads)


def _loads(kind: CollectiveKind, listed: Listed, topology: Topology) -> Loads:
    if listed.pairs:
        return _permute_loads(listed, topology)
    if kind is CollectiveKind.ALL_TO_ALL:
        return _exchange_loads(listed, topology)
    return loads_of(_phases(kind, listed, topology))


def _both(places: Chips) -> bool:
    """Whether both devices of each chip belong to the same group."""
    return bool(places[..., -1].any()) and all(
        len(np.unique(group[:, 1:-1], axis=0)) * 2 == len(group) for group in places
    )


def _meet(places: Chips) -> bool:
    """Whether two devices of a chip belong to one group anywhere."""
    return any(len(np.unique(group[:, 1:-1], axis=0)) < len(group) for group in places)


def _crossings(places: Chips) -> tuple[int, int]:
    """Messages from the first device of a chip to the second, and the other way."""
    cores = places[:, :, -1]
    return int((cores[:, 0] < cores[:, 1]).any()), int((cores[:, 0] > cores[:, 1]).any())


def _apart(listed: Listed, topology: Topology) -> tuple[Chips, Chips]:
    """Where the messages of pairs that leave their chip start, and the links that they cross."""
    places = listed.places[..., 1:-1]
    leaves = (places[:, 0] != places[:, 1]).any(axis=1)
    starts, ends = places[leaves, 0], places[leaves, 1]
    return starts, shortest_moves(starts, ends, topology)


def _permute_loads(listed: Listed, topology: Topology) -> Loads:
    starts, moves = _apart(listed, topology)
    order = range(len(topology.dims))
    return link_loads(starts, moves, np.ones(len(starts)), topology, order)


def _permute(listed: Listed, topology: Topology) -> Pattern | None:
    """All pairs at once, each by a shortest way."""
    starts, moves = _apart(listed, topology)
    if not len(starts):
        return None
    loads = _permute_loads(listed, topology)
    most, hops = float(loads.max()), int(np.abs(moves).sum(axis=1).max())
    paths = ((most, hops),) if most <= 1 else ((most, 1), (1.0, hops))
    text = f"{len(listed.places)} pairs by shortest ways"
    return Pattern(_links(busiest(loads)), paths, text)


def _exchange_loads(listed: Listed, topology: Topology) -> Loads:
    """Every device spreads one byte over its group, half of it where two ways are as short."""
    places = listed.places[..., 1:-1]
    many, size, dims = places.shape
    count = min(size, max(1, MOST_PAIRS // (many * size)))
    apart = np.random.default_rng(0).permutation(size)[:count]
    members = np.arange(size)[:, None]
    ends = places[:, (members + apart) % size].reshape(-1, dims)
    starts = np.repeat(places, count, axis=1).reshape(-1, dims)
    weights = np.full(len(starts), 0.5 / count)
    follow = link_loads if topology.twisted else run_loads
    loads = [follow(starts, shortest_moves(starts, ends, topology, side), weights, topology,
                    range(dims)) for side in (1, -1)]  # fmt: skip
    return np.asarray(loads[0] + loads[1])


def _exchange(listed: Listed, topology: Topology) -> Pattern:
    places = listed.places[..., 1:-1]
    first = np.broadcast_to(places[:, :1], places.shape)
    far = np.abs(shortest_moves(first, places, topology)).sum(axis=2)
    loads = _exchange_loads(listed, topology)
    links, size = busiest(loads), places.shape[1]
    alone = (size - 1) / size / max(1, len(links))
    paths = ((float(loads.max()), 1), (alone, int(far.max())))
    return Pattern(_links(links), paths, f"every pair of {size}, listed")


@lru_cache(maxsize=256)
def _phases(kind: CollectiveKind, listed: Listed, topology: Topology) -> tuple[Phase, ...]:
    """The phases of a ring through the chips of each group."""
    chain = _chain(listed, topology)
    if kind is CollectiveKind.BROADCAST:
        return ((Stage(chain, Move.SPREAD, 1.0),),)
    return tuple((stage,) for stage in stages_of(kind, [chain]))


@lru_cache(maxsize=256)
def _chain(listed: Listed, topology: Topology) -> Chain:
    """The best chain through the chips of each group: see `chains.one_chain` for the orders."""
    places = listed.places
    chips = np.asarray(places[..., 1:-1])
    if _both(places):
        chips = np.stack([np.unique(group, axis=0) for group in chips])
    return best_chain(
        chain for ordered in _ordered(chips) for chain in Chain.ways(ordered, topology)
    )


def _ordered(chips: Chips) -> Iterator[Chips]:
    """Orders to go through groups: as on a grid where they are grids, else snakes, and as given."""
    dims = [dim for dim in range(chips.shape[2]) if (chips[..., dim] != chips[:, :1, dim]).any()]
    if len(dims) == 1:
        yield _by([chips[..., dims[0]]], chips)
        return
    grid = _grid(chips, dims)
    for turned in permutations(range(len(dims))):
        if grid is not None:
            yield from orders(grid, turned)
        else:
            yield from _sorted(chips, [dims[at] for at in turned])
    if grid is None:
        yield chips


def _grid(chips: Chips, dims: Sequence[int]) -> Chips | None:
    """The groups with their members along each of `dims`, [group, *members, dimension]."""
    rows = np.stack([group[np.lexsort(group[:, dims[::-1]].T)] for group in chips])
    sizes = [len(np.unique(rows[0, :, dim])) for dim in dims]
    if np.prod(sizes) != chips.shape[1]:
        return None
    grid = rows.reshape(len(chips), *sizes, -1)
    for at, dim in enumerate(dims):
        lines = np.moveaxis(grid[..., dim], at + 1, -1).reshape(len(chips), -1, sizes[at])
        if (lines != lines[:, :1]).any():
            return None
    return grid


def _sorted(chips: Chips, dims: Sequence[int]) -> Iterator[Chips]:
    """Row by row, and every other row backwards."""
    yield _by([chips[..., dim] for dim in dims], chips)
    keys, odd = [], np.zeros(chips.shape[:2], dtype=np.intp)
    for dim in dims:
        keys.append(np.where(odd % 2, -chips[..., dim], chips[..., dim]))
        odd = odd + chips[..., dim]
    yield _by(keys, chips)


def _by(keys: Sequence[NDArray[np.intp]], chips: Chips) -> Chips:
    order = np.lexsort([*keys][::-1], axis=1)
    return np.take_along_axis(chips, order[..., None], axis=1)

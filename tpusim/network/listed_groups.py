"""Collectives among groups of devices that are listed one by one, and permutes of listed pairs.

A group is one ring, or line, through its chips. Both devices of a chip share its links, so a link's
load for one device is that of all messages, over the number of devices of a chip.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import ListedGroups, Topology
from tpusim.network.chains import Chain, ChainMove, best_chain
from tpusim.network.grids import traversals
from tpusim.network.groups import Chips
from tpusim.network.messages import Message, packets, phase_messages
from tpusim.network.paths import Loads, link_loads, link_paths, run_loads, shortest_moves
from tpusim.network.pattern import Pattern, busiest_links, named_links, phases_loads, phases_pattern
from tpusim.network.schedule import SchedulePhase, ScheduleStage, chain_text, stages_of
from tpusim.program import CollectiveKind

MAX_FOLLOWED_PAIRS = 500_000
"""Pairs of an all-to-all that are followed; of more, equally many of each member are, at random."""


@dataclass(frozen=True, slots=True)
class ListedLoads:
    """The loads of listed groups on one slice, by byte of the tensor on a device.

    pattern: on the torus; None if nothing leaves its chip.
    die: messages, or halves of a group, that cross between the devices of a chip, per direction.
    devices: members of a group on the slice.
    slices: the most that a group reaches over.
    """

    pattern: Pattern | None
    die: tuple[int, int]
    devices: int
    slices: int


@lru_cache(maxsize=256)
def listed_pattern(kind: CollectiveKind, listed: ListedGroups, topology: Topology) -> ListedLoads:
    """Return the loads of listed groups or pairs on the busiest slice."""
    ordered = np.sort(listed.positions[..., 0], axis=1)
    slices = 1 + int((ordered[:, 1:] != ordered[:, :-1]).sum(axis=1).max(initial=0))
    found = [_listed_pattern(kind, each, topology, slices) for each in _each_slice(listed)]
    return max(found, key=_busiest_load) if found else ListedLoads(None, (0, 0), 1, slices)


def _busiest_load(found: ListedLoads) -> float:
    if found.pattern is None:
        return float(sum(found.die) > 0) - 1.0
    return max(load for _, load in found.pattern.links)


def listed_loads(kind: CollectiveKind, listed: ListedGroups, topology: Topology) -> Loads:
    """Return the load of every link of the busiest slice, by byte of tensor on its devices."""
    return _loads(kind, _busiest_slice(kind, listed, topology), topology)


def listed_messages(
    kind: CollectiveKind, listed: ListedGroups, topology: Topology
) -> tuple[Message, ...]:
    """Return the messages of the busiest slice, for the hop-by-hop network."""
    busiest = _busiest_slice(kind, listed, topology)
    if listed.pairs:
        paths = link_paths(*_pair_moves(busiest, topology), topology, range(len(topology.dims)))
        return tuple(Message(path, 1.0, ()) for path in paths)
    if kind is CollectiveKind.ALL_TO_ALL:
        return packets(busiest.positions[..., 1:-1], topology)
    return phase_messages(_phases(kind, busiest, topology))


def _busiest_slice(kind: CollectiveKind, listed: ListedGroups, topology: Topology) -> ListedGroups:
    """Return the groups or pairs within the busiest slice."""
    return max(
        _each_slice(listed),
        key=lambda each: _busiest_load(_listed_pattern(kind, each, topology, 1)),
    )


def _each_slice(listed: ListedGroups) -> Iterator[ListedGroups]:
    """Yield the groups or pairs within each slice, once if several slices have the same."""
    places, seen = listed.positions, set()
    for slice_ in np.unique(places[..., 0]).tolist():
        inside = _within(places, places[..., 0] == slice_, listed.pairs)
        inside[..., 0] = 0
        found = ListedGroups.of(inside, listed.pairs)
        if inside.size and found not in seen:
            seen.add(found)
            yield found


def _within(places: Chips, here: NDArray[np.bool_], pairs: bool) -> Chips:
    """Return the groups' members on a slice, of the largest groups only; pairs as a whole."""
    counts = here.sum(axis=1)
    most = 2 if pairs else int(counts.max(initial=0))
    kept = counts == most
    return np.array(places[kept][here[kept]]).reshape(int(kept.sum()), most, places.shape[2])


@lru_cache(maxsize=512)
def _listed_pattern(
    kind: CollectiveKind, listed: ListedGroups, topology: Topology, slices: int
) -> ListedLoads:
    places = listed.positions
    if listed.pairs:
        return ListedLoads(_permute_pattern(listed, topology), _crossings(places), 2, slices)
    die = (1, 1) if places[..., -1].any() and _share_chips(places) else (0, 0)
    if not (places[:, :, 1:-1] != places[:, :1, 1:-1]).any():
        return ListedLoads(None, die, places.shape[1], slices)
    if kind is CollectiveKind.ALL_TO_ALL:
        found = _exchange_pattern(listed, topology)
    else:
        phases = _phases(kind, listed, topology)
        made = phases_pattern(phases, chain_text(phases).replace(" through {}", ", listed"))
        found = Pattern(named_links(made.loads), made.paths, made.text, made.power)
    return ListedLoads(found, die, places.shape[1], slices)


def _loads(kind: CollectiveKind, listed: ListedGroups, topology: Topology) -> Loads:
    if listed.pairs:
        return _permute_loads(listed, topology)
    if kind is CollectiveKind.ALL_TO_ALL:
        return _exchange_loads(listed, topology)
    return phases_loads(_phases(kind, listed, topology))


def _has_both_devices(places: Chips) -> bool:
    """Return True if both devices of each chip belong to the same group."""
    return bool(places[..., -1].any()) and all(
        len(np.unique(group[:, 1:-1], axis=0)) * 2 == len(group) for group in places
    )


def _share_chips(places: Chips) -> bool:
    """Return True if two devices of a chip belong to one group anywhere."""
    return any(len(np.unique(group[:, 1:-1], axis=0)) < len(group) for group in places)


def _crossings(places: Chips) -> tuple[int, int]:
    """Return the messages from the first device of a chip to the second, and back."""
    cores = places[:, :, -1]
    return int((cores[:, 0] < cores[:, 1]).any()), int((cores[:, 0] > cores[:, 1]).any())


def _pair_moves(listed: ListedGroups, topology: Topology) -> tuple[Chips, Chips]:
    """Return starts and moves of the messages of pairs that leave their chip."""
    places = listed.positions[..., 1:-1]
    leaves = (places[:, 0] != places[:, 1]).any(axis=1)
    starts, ends = places[leaves, 0], places[leaves, 1]
    return starts, shortest_moves(starts, ends, topology)


def _permute_loads(listed: ListedGroups, topology: Topology) -> Loads:
    starts, moves = _pair_moves(listed, topology)
    order = range(len(topology.dims))
    return link_loads(starts, moves, np.ones(len(starts)), topology, order)


def _permute_pattern(listed: ListedGroups, topology: Topology) -> Pattern | None:
    """Return the pattern of all pairs at once, each by a shortest path."""
    starts, moves = _pair_moves(listed, topology)
    if not len(starts):
        return None
    loads = _permute_loads(listed, topology)
    most, hops = float(loads.max()), int(np.abs(moves).sum(axis=1).max())
    paths = ((most, hops),) if most <= 1 else ((most, 1), (1.0, hops))
    text = f"{len(listed.positions)} pairs by shortest ways"
    return Pattern(named_links(busiest_links(loads)), paths, text)


def _exchange_loads(listed: ListedGroups, topology: Topology) -> Loads:
    """Return the loads of an exchange: of two equally short paths each carries half."""
    places = listed.positions[..., 1:-1]
    many, size, dims = places.shape
    count = min(size, max(1, MAX_FOLLOWED_PAIRS // (many * size)))
    apart = np.random.default_rng(0).permutation(size)[:count]
    members = np.arange(size)[:, None]
    ends = places[:, (members + apart) % size].reshape(-1, dims)
    starts = np.repeat(places, count, axis=1).reshape(-1, dims)
    weights = np.full(len(starts), 0.5 / count)
    follow = link_loads if topology.twisted else run_loads
    loads = [
        follow(starts, shortest_moves(starts, ends, topology, side), weights, topology, range(dims))
        for side in (1, -1)
    ]
    return np.asarray(loads[0] + loads[1])


def _exchange_pattern(listed: ListedGroups, topology: Topology) -> Pattern:
    places = listed.positions[..., 1:-1]
    first = np.broadcast_to(places[:, :1], places.shape)
    far = np.abs(shortest_moves(first, places, topology)).sum(axis=2)
    loads = _exchange_loads(listed, topology)
    links, size = busiest_links(loads), places.shape[1]
    alone = (size - 1) / size / max(1, len(links))
    paths = ((float(loads.max()), 1), (alone, int(far.max())))
    return Pattern(named_links(links), paths, f"every pair of {size}, listed")


@lru_cache(maxsize=256)
def _phases(
    kind: CollectiveKind, listed: ListedGroups, topology: Topology
) -> tuple[SchedulePhase, ...]:
    """Return the phases of a ring through the chips of each group."""
    chain = _chain(listed, topology)
    if kind is CollectiveKind.BROADCAST:
        return ((ScheduleStage(chain, ChainMove.SPREAD, 1.0),),)
    return tuple((stage,) for stage in stages_of(kind, [chain]))


@lru_cache(maxsize=256)
def _chain(listed: ListedGroups, topology: Topology) -> Chain:
    """Return the best chain through the chips of each group, as `chains.one_chain` does."""
    places = listed.positions
    chips = np.asarray(places[..., 1:-1])
    if _has_both_devices(places):
        chips = np.stack([np.unique(group, axis=0) for group in chips])
    return best_chain(
        chain for ordered in _chip_orders(chips) for chain in Chain.variants(ordered, topology)
    )


def _chip_orders(chips: Chips) -> Iterator[Chips]:
    """Yield orders through groups: of a grid if they are grids, else snakes, and as given."""
    dims = [dim for dim in range(chips.shape[2]) if (chips[..., dim] != chips[:, :1, dim]).any()]
    if len(dims) == 1:
        yield _sort_by([chips[..., dims[0]]], chips)
        return
    grid = _listed_grid(chips, dims)
    for turned in permutations(range(len(dims))):
        if grid is not None:
            yield from traversals(grid, turned)
        else:
            yield from _row_orders(chips, [dims[at] for at in turned])
    if grid is None:
        yield chips


def _listed_grid(chips: Chips, dims: Sequence[int]) -> Chips | None:
    """Return the groups with their members along each of `dims`, [group, *members, dimension]."""
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


def _row_orders(chips: Chips, dims: Sequence[int]) -> Iterator[Chips]:
    """Yield the chips row by row, and with every other row backwards."""
    yield _sort_by([chips[..., dim] for dim in dims], chips)
    keys, odd = [], np.zeros(chips.shape[:2], dtype=np.intp)
    for dim in dims:
        keys.append(np.where(odd % 2, -chips[..., dim], chips[..., dim]))
        odd = odd + chips[..., dim]
    yield _sort_by(keys, chips)


def _sort_by(keys: Sequence[NDArray[np.intp]], chips: Chips) -> Chips:
    order = np.lexsort([*keys][::-1], axis=1)
    return np.take_along_axis(chips, order[..., None], axis=1)

"""The loads of a collective for one of its groups, some of whose links are slow.

A link with a share of its bandwidth takes as long as a healthy one that carries so much more, so a
slow link is a longer load: bytes over the share. A stage passes its chunks one after another, so it
is slowed as its slowest link is, relative to its busiest one; messages that are sent at once are
over when the slowest link is done. Groups that do not use the link keep their loads; which links a
group uses follows from its chains, and for messages sent at once from the lines between its chips.
Latencies stay what they are, and a chain keeps its order.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.algorithm import ALGORITHMS, schedule
from tpusim.network.chains import Chain, edge_weights
from tpusim.network.groups import Chips, covered_part
from tpusim.network.paths import Loads
from tpusim.network.pattern import Pattern, busiest_links, named_links, phases_paths
from tpusim.network.schedule import SchedulePhase, ScheduleStage
from tpusim.program import CollectiveKind

LinkMask = NDArray[np.bool_]
"""True for some links, [dimension, direction, *coordinates]."""


def slowed_pattern(
    kind: CollectiveKind,
    algorithm: str,
    spans: tuple[Span, ...],
    topology: Topology,
    members: Chips,
    slowness: Loads,
) -> Pattern | None:
    """Return the pattern of the group of some chips; None if none of its links is slow.

    members: coordinates of the group's chips, [member, dimension].
    slowness: of each link the factor by which it is slower than a healthy one,
        [dimension, direction, *coordinates].
    """
    inner, part, dims = covered_part(spans, topology)
    slow = on_part(slowness, members[0], dims)
    if (slow == 1).all():
        return None
    chips = members[:, list(dims)]
    method = ALGORITHMS[algorithm]
    if method.phases is None:
        loads = method.at_once.loads(inner, part)
        used = (loads > 0) & lines_between(chips, part)
        paths, power = method.at_once.paths(inner, part)
        factor = _factor(loads, used, slow)
        paths = [(factor * nbytes, hops) for nbytes, hops in paths]
        found = Pattern(
            named_links(busiest_links(loads * slow * used), dims), tuple(paths), "", power
        )
        return found if (slow[used] > 1).any() else None
    return _slowed_phases(schedule(kind, algorithm, inner, part), chips, slow, dims)


def _slowed_phases(
    phases: tuple[SchedulePhase, ...], chips: Chips, slow: Loads, dims: tuple[int, ...]
) -> Pattern | None:
    """Return the pattern of phases for the group of these chips."""
    own = {tuple(chip) for chip in chips.tolist()}
    used = {id(stage): used_by(stage, own) for phase in phases for stage in phase}
    if not any((slow[mask] > 1).any() for mask in used.values()):
        return None
    together = np.any(list(used.values()), axis=0)
    loads = np.sum([stage.loads() for phase in phases for stage in phase], axis=0)
    paths = phases_paths(phases, lambda stage: _factor(stage.loads(), used[id(stage)], slow))
    return Pattern(named_links(busiest_links(loads * slow * together), dims), paths, "")


def on_part(slowness: Loads, chip: NDArray[np.intp], dims: tuple[int, ...]) -> Loads:
    """Return the slowness on the part of the torus with these dimensions that a chip is in."""
    others = tuple(slice(None) if dim in dims else int(at) for dim, at in enumerate(chip.tolist()))
    return np.asarray(slowness[list(dims)][(slice(None), slice(None), *others)])


def used_by(stage: ScheduleStage, own: set[tuple[int, ...]]) -> LinkMask:
    """Return the links that the chains of a group's chips use in a stage."""
    chain, weights = stage.chain, edge_weights(stage.move, stage.chain)
    rows = [tuple(first) in own for first in chain.chips[:, 0].tolist()]
    return np.asarray(_rows_of(chain, np.array(rows)).loads(weights) > 0)


def _rows_of(chain: Chain, rows: NDArray[np.bool_]) -> Chain:
    return replace(
        chain, chips=chain.chips[rows], forward=chain.forward[rows], backward=chain.backward[rows]
    )


def _factor(loads: Loads, used: LinkMask, slow: Loads) -> float:
    """Return the time on the slowest of the links in use over that on the busiest healthy one."""
    return float((loads * slow)[used].max() / loads[used].max()) if used.any() else 1.0


def lines_between(chips: Chips, topology: Topology) -> LinkMask:
    """Return the links on the lines between chips, along one dimension after another.

    The chips of a group are all combinations of their positions along each dimension, so a message
    turns at positions of chips. Where they go round a ring, all of its links are between them.
    """
    found = np.zeros((len(topology.dims), 2, *topology.dims), dtype=np.bool_)
    if topology.twisted:
        return ~found
    for dim, length in enumerate(topology.dims):
        low, high = int(chips[:, dim].min()), int(chips[:, dim].max())
        ring = topology.wrap[dim] and 2 * (high - low) > length
        ahead = np.arange(length) if ring else np.arange(low, high)
        back = ahead if ring else ahead + 1
        lines = np.unique(np.delete(chips, dim, axis=1), axis=0)
        for line in lines.tolist():
            place: list[int | NDArray[np.intp]] = [*line]
            place.insert(dim, ahead)
            found[(dim, 0, *place)] = True
            place[dim] = back
            found[(dim, 1, *place)] = True
    return found

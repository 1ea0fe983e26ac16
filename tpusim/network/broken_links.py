"""The loads of a collective around broken links, and its pattern for one of its groups.

All groups of a collective send at once, and those whose route is cut use links of others
(`reroutes`). A group takes as long as the busiest link on its own routes, compared with the busiest
one on a healthy torus: twice as long where its ring goes round a broken link, as the links beside
carry its bytes and those of the ring that lends them. The lender shares them and takes as long. No
group is faster than on a healthy torus.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.algorithm import ALGORITHMS, schedule
from tpusim.network.chains import ChainMove, edge_weights
from tpusim.network.groups import Chips, covered_part
from tpusim.network.paths import Loads, link_shape
from tpusim.network.pattern import Pattern, busiest_links, named_links, on_all_links, phases_paths
from tpusim.network.reroutes import Rerouted, chain_walkers, chip_numbers, reroute
from tpusim.network.schedule import ScheduleStage
from tpusim.network.slow_links import LinkMask, lines_between, used_by
from tpusim.network.wild_first import LinkSet
from tpusim.program import CollectiveKind

_TO_NEIGHBOURS = (ChainMove.SHIFT, ChainMove.HALO, ChainMove.ONWARD, ChainMove.STEP)


class _SentStage(NamedTuple):
    """What is sent together: a stage of a schedule, or all messages if there is none."""

    stage: ScheduleStage | None
    rerouted: Rerouted


@lru_cache(maxsize=512)
def _rerouted(
    kind: CollectiveKind, algorithm: str, spans: tuple[Span, ...], topology: Topology, out: LinkSet
) -> tuple[tuple[_SentStage, ...], ...]:
    """Return what all groups send around broken links, phase by phase."""
    method = ALGORITHMS[algorithm]
    inner, part, dims = covered_part(spans, topology)
    if method.phases is None:
        loads = on_all_links(method.at_once.loads(inner, part), dims, topology)
        sent = method.at_once.walkers(spans, topology)
        found = reroute(sent, loads, topology, out, evenly=method.at_once.evenly)
        return ((_SentStage(None, found),),)
    return tuple(
        tuple(_SentStage(stage, _rerouted_stage(stage, dims, topology, out)) for stage in phase)
        for phase in schedule(kind, algorithm, inner, part)
    )


def _rerouted_stage(
    stage: ScheduleStage, dims: tuple[int, ...], topology: Topology, out: LinkSet
) -> Rerouted:
    before = on_all_links(stage.loads(), dims, topology)
    forward, backward = edge_weights(stage.move, stage.chain)
    weights = stage.chunk * forward, stage.chunk * backward
    sent = chain_walkers(stage.chain, weights, dims, topology)
    return reroute(sent, before, topology, out, evenly=False)


def rerouted_pattern(
    kind: CollectiveKind,
    algorithm: str,
    spans: tuple[Span, ...],
    topology: Topology,
    members: Chips,
    slowness: Loads,
    out: LinkSet,
) -> Pattern | None:
    """Return the pattern of the group of some chips; None if it is that of a healthy torus.

    members: coordinates of the group's chips, [member, dimension].
    slowness: of each link the factor by which it is slower than a healthy one,
        [dimension, direction, *coordinates].
    out: links that carry nothing.
    """
    group = _GroupRoutes(spans, topology, members, slowness, out)
    phases = _rerouted(kind, algorithm, spans, topology, out)
    found = {id(each.stage): group.slowed(each, phase) for phase in phases for each in phase}
    if all(each.factor == 1 and not each.further for each in found.values()):
        return None
    total = sum((each.rerouted.now for phase in phases for each in phase), np.zeros(()))
    used = np.any([each.used for each in found.values()], axis=0)
    links = named_links(busiest_links(total * slowness * used))
    method = ALGORITHMS[algorithm]
    if method.phases is None:
        at_once, power = method.at_once.paths(*covered_part(spans, topology)[:2])
        (own,) = found.values()
        scaled = tuple((own.factor * nbytes, hops + own.further) for nbytes, hops in at_once)
        return Pattern(links, scaled, "", power)
    stages = tuple(tuple(each.stage for each in phase if each.stage) for phase in phases)
    paths = phases_paths(
        stages,
        lambda stage: found[id(stage)].factor,
        lambda stage: found[id(stage)].further,
    )
    return Pattern(links, paths, "")


class _Slowed(NamedTuple):
    """What broken and slow links do to a stage of one group.

    used: the links on the group's routes.
    factor: time of its bytes over that on a healthy torus.
    further: hops that its latency grows by.
    """

    used: LinkMask
    factor: float
    further: int


@dataclass(frozen=True, slots=True, eq=False)
class _GroupRoutes:
    """A group of a collective on a torus with broken links; fields as in `rerouted_pattern`."""

    spans: tuple[Span, ...]
    topology: Topology
    members: Chips
    slowness: Loads
    out: LinkSet

    @property
    def own(self) -> NDArray[np.bool_]:
        """True for each chip of the group, by number."""
        found = np.zeros(self.topology.chips, dtype=np.bool_)
        found[chip_numbers(self.members, self.topology)] = True
        return found

    def slowed(self, sent: _SentStage, phase: Sequence[_SentStage]) -> _Slowed:
        """Return what happens to a stage of a phase."""
        healthy = self._healthy_links(sent.stage)
        used = sent.rerouted.used(healthy, self.own, self.out)
        before = np.sum([each.rerouted.before for each in phase], axis=0)
        now = np.sum([each.rerouted.now for each in phase], axis=0) * self.slowness
        most = float(before[healthy].max(initial=0))
        factor = float(now[used].max(initial=0)) / most if most else 1.0
        further = _further(sent.stage, sent.rerouted, self.own)
        return _Slowed(used, factor if factor > 1 + 1e-9 else 1.0, further)

    def _healthy_links(self, stage: ScheduleStage | None) -> LinkMask:
        """Return the links that the group uses on a healthy torus."""
        _, part, dims = covered_part(self.spans, self.topology)
        chips = self.members[:, list(dims)]
        if stage is None:
            mask = lines_between(chips, part)
        else:
            mask = used_by(stage, {tuple(chip) for chip in chips.tolist()})
        whole = np.zeros(link_shape(self.topology), dtype=np.bool_)
        first = enumerate(self.members[0].tolist())
        place = tuple(slice(None) if dim in dims else at for dim, at in first)
        for at, dim in enumerate(dims):
            whole[(dim, slice(None), *place)] = mask[at]
        return whole


def _further(stage: ScheduleStage | None, sent: Rerouted, own: NDArray[np.bool_]) -> int:
    """Return the hops that the latency of a group's stage grows by.

    own: True for each chip of the group.

    A gather passes half of the edges of a ring one after another, or all of those of a line; a
    shift passes one, and of messages that are sent at once the longest route decides.
    """
    if stage is None:
        return sent.beyond
    each = sent.further(own)
    if stage.move in _TO_NEIGHBOURS:
        return max(each, default=0)
    one_way = each[::2]
    return sum(one_way[: (len(one_way) + 1) // 2] if stage.chain.closed else one_way)

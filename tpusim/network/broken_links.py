"""The loads of a collective around broken links, and its pattern for one of its groups.

All groups of a collective send at once, and those whose route is cut use links of others
(`reroutes`). A group takes as long as the busiest link on its own routes, compared with the busiest
one on a healthy torus: twice as long where its ring goes round a broken link, as the links beside
carry its bytes and those of the ring that lends them. The lender shares them and takes as long. No
group is faster than on a healthy torus.
"""

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
from tpusim.network.reroutes import Rerouted, chain_walkers, reroute
from tpusim.network.schedule import ScheduleStage
from tpusim.network.slow_links import LinkMask, lines_between, on_part, used_by
from tpusim.network.wild_first import LinkSet, chip_numbers
from tpusim.program import CollectiveKind

_TO_NEIGHBOURS = (ChainMove.SHIFT, ChainMove.HALO, ChainMove.ONWARD, ChainMove.STEP)


class _SentStage(NamedTuple):
    """What is sent together: a stage of a schedule, or all messages if there is none."""

    stage: ScheduleStage | None
    rerouted: Rerouted


class _Sent(NamedTuple):
    """What all groups send around broken links.

    part, dims: the part of the torus that a group covers, and its dimensions.
    phases: stages that are sent together, phase by phase.
    changed: True for chips on whose part of the torus anything differs from a healthy one,
        [*coordinates].
    """

    part: Topology
    dims: tuple[int, ...]
    phases: tuple[tuple[_SentStage, ...], ...]
    changed: NDArray[np.bool_]


@lru_cache(maxsize=512)
def _sent(
    kind: CollectiveKind, algorithm: str, spans: tuple[Span, ...], topology: Topology, out: LinkSet
) -> _Sent:
    method = ALGORITHMS[algorithm]
    inner, part, dims = covered_part(spans, topology)
    phases: tuple[tuple[_SentStage, ...], ...]
    if method.phases is None:
        loads = on_all_links(method.at_once.loads(inner, part), dims, topology)
        walkers = method.at_once.walkers(spans, topology)
        found = reroute(walkers, loads, topology, out, evenly=method.at_once.evenly)
        phases = ((_SentStage(None, found),),)
    else:
        phases = tuple(
            tuple(_SentStage(stage, _rerouted_stage(stage, dims, topology, out)) for stage in phase)
            for phase in schedule(kind, algorithm, inner, part)
        )
    changed = np.zeros(topology.dims, dtype=np.bool_)
    for stage, each in (sent for phase in phases for sent in phase):
        changed |= (each.now != each.before).any(axis=(0, 1))
        changed.reshape(-1)[each.cut.starts] = True
        changed |= stage is None and each.beyond > 0
    whole = np.asarray(changed.any(axis=dims, keepdims=True))
    return _Sent(part, dims, phases, np.broadcast_to(whole, topology.dims))


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

    out: links that carry nothing; all else as of `slowed_pattern`.
    """
    sent = _sent(kind, algorithm, spans, topology, out)
    first = members[0]
    if not sent.changed[tuple(first)] and (on_part(slowness, first, sent.dims) == 1).all():
        return None
    own = np.zeros(topology.chips, dtype=np.bool_)
    own[chip_numbers(members, topology)] = True
    found: dict[int, _Slowed] = {}
    for phase in sent.phases:
        before = np.sum([each.rerouted.before for each in phase], axis=0)
        now = np.sum([each.rerouted.now for each in phase], axis=0) * slowness
        for stage, rerouted in phase:
            healthy = _healthy_links(stage, sent, topology, members)
            used = rerouted.used(healthy, own, out)
            most = float(before[healthy].max(initial=0))
            factor = float(now[used].max(initial=0)) / most if most else 1.0
            factor = factor if factor > 1 + 1e-9 else 1.0
            found[id(stage)] = _Slowed(used, factor, _further(stage, rerouted, own))
    if all(each.factor == 1 and not each.further for each in found.values()):
        return None
    total = sum((each.rerouted.now for phase in sent.phases for each in phase), np.zeros(()))
    used = np.any([each.used for each in found.values()], axis=0)
    links = named_links(busiest_links(total * slowness * used))
    method = ALGORITHMS[algorithm]
    if method.phases is None:
        at_once, power = method.at_once.paths(*covered_part(spans, topology)[:2])
        (slowed,) = found.values()
        scaled = tuple((slowed.factor * nbytes, hops + slowed.further) for nbytes, hops in at_once)
        return Pattern(links, scaled, "", power)
    stages = tuple(tuple(each.stage for each in phase if each.stage) for phase in sent.phases)
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


def _healthy_links(
    stage: ScheduleStage | None, sent: _Sent, topology: Topology, members: Chips
) -> LinkMask:
    """Return the links that the group of some chips uses in a stage on a healthy torus."""
    chips = members[:, list(sent.dims)]
    if stage is None:
        mask = lines_between(chips, sent.part)
    else:
        mask = used_by(stage, {tuple(chip) for chip in chips.tolist()})
    whole = np.zeros(link_shape(topology), dtype=np.bool_)
    first = enumerate(members[0].tolist())
    place = tuple(slice(None) if dim in sent.dims else at for dim, at in first)
    for at, dim in enumerate(sent.dims):
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

"""The route of a collective: what it puts on each link, by byte of its tensor.

Everything is linear in the tensor's bytes, so a collective over a group is a `CollectiveRoute`,
worked out once from the coordinates of its chips (`tpusim.network`); its seconds are one
multiplication away.

A group with both devices of a chip (v2, v3, 7x) moves each byte to the chip once and then across
the die, so each device carries half of it over ICI; the algorithm "flat" has each device move all
of it. All-to-alls carry each device's own bytes in both cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, prod
from operator import mul

from tpusim.base.errors import PlanError
from tpusim.costs.links import DCN_RECEIVE, DCN_SEND, DIE_LINKS
from tpusim.costs.tasks import HBM
from tpusim.hardware import DIE, ListedGroups, Span, Topology
from tpusim.network import (
    ALGORITHMS,
    Algorithm,
    CollectiveMoves,
    LinkSet,
    ListedLoads,
    Loads,
    default_algorithm,
    is_flat,
    link_loads_of,
    listed_loads,
    listed_messages,
    listed_pattern,
    messages,
    on_torus,
    pattern,
    rerouted_messages,
    resolve_algorithm,
    shift_pattern,
)
from tpusim.program import CollectiveKind

BUSIEST_WEIGHT = 64
"""The weight of the busiest link; the weights of the others are whole numbers too, rounded up."""

_HBM_BYTES = {
    CollectiveKind.ALL_GATHER: 2.0,
    CollectiveKind.REDUCE_SCATTER: 3.0,
    CollectiveKind.ALL_REDUCE: 2.5,
    CollectiveKind.ALL_TO_ALL: 2.0,
    CollectiveKind.PERMUTE: 2.0,
    CollectiveKind.BROADCAST: 2.0,
}
"""HBM bytes per byte received: written and read again; adding beside also reads the operand."""

ADDED_BYTES = (1.0, 2.0)
"""HBM bytes per byte added after the transfers: read of the operand; read and written as a sum."""

ADDING_KINDS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True)
class RouteMessages:
    """A collective on the torus, from which its single messages are made.

    part: of the tensor that each device carries over ICI.
    hops: of the pattern.
    listed: the groups, if they are listed one by one instead of given by spans.
    out: links that carry nothing, around which messages go.
    """

    kind: CollectiveKind
    algorithm: str
    spans: tuple[Span, ...]
    topology: Topology
    part: float
    hops: int
    listed: ListedGroups | None = None
    out: LinkSet = frozenset()

    def loads(self) -> Loads:
        """Return the bytes on every single link, by byte of the tensor."""
        if self.listed is not None:
            return self.part * listed_loads(self.kind, self.listed, self.topology)
        return self.part * link_loads_of(self.kind, self.algorithm, self.spans, self.topology)

    def collective_moves(self, nbytes: float, launch_s: float, hop_s: float) -> CollectiveMoves:
        """Return the messages for a tensor of so many bytes."""
        if self.listed is not None:
            sent = listed_messages(self.kind, self.listed, self.topology)
        else:
            sent = messages(self.kind, self.algorithm, self.spans, self.topology)
        if self.out:
            evenly = self.kind is CollectiveKind.ALL_TO_ALL
            sent = rerouted_messages(sent, self.topology, self.out, evenly=evenly)
        return CollectiveMoves(sent, nbytes * self.part, launch_s, hop_s)


@dataclass(frozen=True, slots=True)
class CollectiveRoute:
    """A collective over a group, by byte of its tensor on one device.

    share: bytes on each link of weight `BUSIEST_WEIGHT`.
    links: link class and weight.
    hops: links crossed one after another.
    paths: bytes and hops of other paths through it on ICI, which may take longer.
    power: joins the paths (see `network.Pattern`).
    added_bytes: bytes that are added up, after the transfers or beside them (`adds_after`).
    launched: false for a group of one, which does nothing.
    text: the algorithm in words.
    carried: the data that crosses the torus, for single messages.
    hbm_bytes: bytes in HBM of the operand and of the result.
    added_hbm_bytes: bytes in HBM per byte that is added after the transfers.
    kind: the collective that it is carried out as within a slice; None across slices.
    """

    share: float
    links: tuple[tuple[str, int], ...]
    hops: int
    paths: tuple[tuple[float, int], ...] = ()
    power: float = inf
    added_bytes: float = 0.0
    adds_after: bool = False
    launched: bool = True
    text: str = ""
    carried: RouteMessages | None = None
    hbm_bytes: tuple[float, float] = (0.0, 0.0)
    added_hbm_bytes: float = sum(ADDED_BYTES)
    kind: CollectiveKind | None = None

    @property
    def uses(self) -> tuple[tuple[str, int], ...]:
        """The resources that it uses, with weights: its links, and HBM for `hbm_bytes`."""
        drawn = sum(self.hbm_bytes)
        return (*self.links, (HBM, link_weight(drawn / self.share))) if drawn else self.links

    def with_hbm_shares(self, hbm: tuple[float, float]) -> "CollectiveRoute":
        """Return the route with only these shares of operand and result in HBM.

        The rest is in VMEM or CMEM and draws nothing on HBM.
        """
        if not self.launched or hbm == (1.0, 1.0):
            return self
        operand, result = map(mul, hbm, self.hbm_bytes)
        return replace(
            self, hbm_bytes=(operand, result), added_hbm_bytes=sum(map(mul, hbm, ADDED_BYTES))
        )


NO_ROUTE = CollectiveRoute(share=0.0, links=(), hops=0, launched=False, text="nothing")


def route(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology, requested: str = ""
) -> CollectiveRoute:
    """Return the route of a collective over the group that the spans make, within a slice.

    requested: the name of an algorithm, with " flat" after it to have each device of a chip move
        all bytes itself; empty for the algorithm that the compiler picks.

    Raise PlanError for an algorithm that cannot carry out the kind.
    """
    spans, text = tuple(spans), ""
    algorithm = resolve_algorithm(kind, spans, topology, requested)
    if (instead := ALGORITHMS[algorithm].runs_as) is not None:
        kind, text = instead, f"as an {instead}, "
        algorithm = default_algorithm(kind, spans, topology)
    return _route(kind, algorithm, spans, topology, text, is_flat(requested))


@lru_cache(maxsize=4096)
def _route(
    kind: CollectiveKind,
    algorithm: str,
    spans: tuple[Span, ...],
    topology: Topology,
    text: str,
    flat: bool,
) -> CollectiveRoute:
    if prod(span.size for span in spans) == 1:
        return NO_ROUTE
    if not on_torus(spans):
        return _over_die(kind, text)
    return _over_torus(kind, algorithm, spans, topology, text, flat)


def _over_die(kind: CollectiveKind, text: str) -> CollectiveRoute:
    """Return the route between the two devices of a chip.

    A permute sends both halves to the same neighbour, a broadcast all bytes to the only one.
    """
    whole = kind in (CollectiveKind.PERMUTE, CollectiveKind.BROADCAST)
    share = 1.0 if whole else die_bytes(kind)
    links = tuple((link, BUSIEST_WEIGHT) for link in DIE_LINKS)
    return CollectiveRoute(
        share,
        links,
        passes(kind),
        added_bytes=added_bytes(kind, 2),
        text=f"{text}across the die",
        hbm_bytes=hbm_bytes(kind, 2),
        kind=kind,
    )


def _over_torus(
    kind: CollectiveKind,
    algorithm: str,
    spans: tuple[Span, ...],
    topology: Topology,
    text: str,
    flat: bool,
) -> CollectiveRoute:
    """Return the route over ICI, and across the die if both devices of a chip are in the group."""
    torus, dies = on_torus(spans), prod(span.size for span in spans if span.dim == DIE)
    devices = dies * prod(span.size for span in torus)
    found = pattern(kind, algorithm, torus, topology)
    method = ALGORITHMS[algorithm]
    part = 0.5 if dies == 2 and method.halved and not flat else 1.0
    share = part * max(load for _, load in found.links)
    weights = {link: link_weight(part * load / share) for link, load in found.links}
    hops = 0
    if dies == 2:
        weights |= dict.fromkeys(DIE_LINKS, link_weight(die_bytes(kind) / share))
        hops = passes(kind)
        text += "each device for itself, " if flat else "and across the die, "
    adds_after = method.adds_after and kind in ADDING_KINDS
    return CollectiveRoute(
        share,
        tuple(weights.items()),
        found.hops + hops,
        paths=tuple((part * nbytes, further + hops) for nbytes, further in found.paths),
        power=found.power,
        added_bytes=added_bytes(kind, devices),
        adds_after=adds_after,
        text=text + found.text,
        carried=RouteMessages(kind, algorithm, torus, topology, part, found.hops),
        hbm_bytes=hbm_bytes(kind, devices, adds_after),
        kind=kind,
    )


def listed_route(
    kind: CollectiveKind, listed: ListedGroups, topology: Topology, devices: int, requested: str
) -> tuple[CollectiveRoute, int, int]:
    """Return the route within a slice, the devices of a group there, and the slices of a group.

    devices: of a chip.

    Groups that are parts of the torus are carried out as those of axes; others on one ring through
    their chips, whatever algorithm is requested. Of several slices, the busiest decides.
    """
    if listed.spans or not listed.data:
        size = prod(span.size for span in listed.spans)
        return route(kind, listed.spans, topology, requested), size, listed.slices
    if listed.pairs and kind is not CollectiveKind.PERMUTE:
        raise PlanError(f"pairs of devices are listed for {kind}, which takes groups of them")
    found = listed_pattern(kind, listed, topology)
    return _over_listed(kind, listed, topology, found, devices), found.devices, found.slices


def _over_listed(
    kind: CollectiveKind, listed: ListedGroups, topology: Topology, found: ListedLoads, devices: int
) -> CollectiveRoute:
    """Return the route of what listed groups put on the torus and between the devices of a chip."""
    part, crossing = 1 / devices, dict(zip(DIE_LINKS, found.die, strict=True))
    if found.pattern is None and not any(found.die):
        return NO_ROUTE
    across = 1.0 if kind is CollectiveKind.PERMUTE else die_bytes(kind)
    loads = dict(found.pattern.links) if found.pattern else {}
    share = max([part * load for load in loads.values()], default=across)
    weights = {link: link_weight(part * load / share) for link, load in loads.items()}
    weights |= {link: link_weight(across * many / share) for link, many in crossing.items() if many}
    links, hbm = tuple(weights.items()), hbm_bytes(kind, found.devices)
    hops = passes(kind) if any(found.die) else 0
    if (inside := found.pattern) is None:
        return CollectiveRoute(
            share,
            links,
            hops,
            added_bytes=added_bytes(kind, found.devices),
            text="across the die",
            hbm_bytes=hbm,
            kind=kind,
        )
    algorithm = Algorithm.PAIRS if kind is CollectiveKind.ALL_TO_ALL else Algorithm.RING
    return CollectiveRoute(
        share,
        links,
        inside.hops + hops,
        paths=tuple((part * nbytes, further + hops) for nbytes, further in inside.paths),
        power=inside.power,
        added_bytes=added_bytes(kind, found.devices),
        text=inside.text,
        carried=RouteMessages(kind, algorithm, (), topology, part, inside.hops, listed),
        hbm_bytes=hbm,
        kind=kind,
    )


def shift_route(
    spans: Sequence[Span],
    topology: Topology,
    backward: bool,
    closed: bool,
    out: LinkSet = frozenset(),
) -> CollectiveRoute:
    """Return the route of what each device sends to the next one along the spans, by byte of it.

    backward: to the one before.
    closed: the last sends to the first as well.
    out: links that carry nothing; the busiest link around them decides.
    """
    torus, dies = on_torus(spans), prod(span.size for span in spans if span.dim == DIE)
    weights = {DIE_LINKS[backward]: BUSIEST_WEIGHT} if dies > 1 else {}
    if dies * prod(span.size for span in torus) == 1:
        return NO_ROUTE
    links, hops = shift_pattern(torus, topology, backward, closed, out) if torus else ((), 0)
    share = max((load for _, load in links), default=1.0)
    weights |= {link: link_weight(load / share) for link, load in links}
    return CollectiveRoute(
        share,
        tuple(weights.items()),
        max(hops, 1),
        text="to the next",
        hbm_bytes=hbm_bytes(CollectiveKind.PERMUTE, 2),
        kind=CollectiveKind.PERMUTE,
    )


def dcn_route(
    kind: CollectiveKind, slices: int, links: Sequence[str] = (DCN_SEND, DCN_RECEIVE)
) -> CollectiveRoute:
    """Return the route across slices: `(n-1)/n` of the bytes, twice for an all-reduce.

    links: of DCN that it draws on.

    Each device talks to its counterparts on the other slices through its share of the host's NIC,
    and receives as many bytes as it sends. A permute sends all its bytes."""
    if slices == 1:
        return NO_ROUTE
    drawn = tuple((link, BUSIEST_WEIGHT) for link in links)
    return CollectiveRoute(
        received_bytes(kind, slices),
        drawn,
        hops=0,
        text=f"send and receive, {slices} slices",
        hbm_bytes=hbm_bytes(kind, slices),
    )


def passes(kind: CollectiveKind) -> int:
    """Return the passes of a collective over its links: two for an all-reduce, else one."""
    return 2 if kind is CollectiveKind.ALL_REDUCE else 1


def die_bytes(kind: CollectiveKind) -> float:
    """Return the bytes per direction over the die-to-die link: half the tensor per pass."""
    return 0.5 * passes(kind)


def received_bytes(kind: CollectiveKind, devices: int) -> float:
    """Return the bytes that a device receives, by byte of the tensor."""
    if kind in (CollectiveKind.PERMUTE, CollectiveKind.BROADCAST):
        return 1.0
    return passes(kind) * (devices - 1) / devices


def hbm_bytes(kind: CollectiveKind, devices: int, adds_after: bool = False) -> tuple[float, float]:
    """Return the bytes in HBM of the operand and of the result, by byte of the tensor.

    adds_after: additions come after the transfers, not beside them.

    Of the operand a device reads once what it sends first, or adds to what arrives; it writes and
    reads everything else in the result.
    """
    read = received_bytes(kind, devices) / passes(kind)
    if kind is CollectiveKind.ALL_GATHER:
        read = 1 / devices
    elif kind is CollectiveKind.BROADCAST:
        read = 0.0
    whole = (2.0 if adds_after else _HBM_BYTES[kind]) * received_bytes(kind, devices)
    return read, whole - read


def added_bytes(kind: CollectiveKind, devices: int) -> float:
    """Return the bytes that a device adds to its own, by byte of the tensor."""
    return (devices - 1) / devices if kind in ADDING_KINDS else 0.0


def link_weight(ratio: float) -> int:
    """Return the weight of a link with this ratio to the busiest one, rounded up."""
    return max(1, ceil(BUSIEST_WEIGHT * ratio - 1e-9))

"""The route of a collective: what it puts on each link, by byte of its tensor.

Everything is linear in the tensor's bytes, so a collective over a group is a `Route`, worked out
once from the coordinates of its chips (`tpusim.network`), and its seconds are one multiplication
away.

A group that both devices of a chip belong to (v2, v3, 7x) moves each byte to the chip once and then
across the die, so each device carries half of it over ICI; the algorithm "flat" has each device
move all of it. All-to-alls carry each device's own bytes either way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, prod
from operator import mul

from tpusim.costs.links import ARRIVING, DIE_LINKS, LEAVING
from tpusim.costs.tasks import HBM
from tpusim.hardware import DIE, Span, Topology
from tpusim.hardware.listed import Listed
from tpusim.network import (
    Algorithm,
    Moves,
    algorithm,
    is_flat,
    link_loads_of,
    listed_loads,
    listed_messages,
    moves,
    on_torus,
    pattern,
    shift,
)
from tpusim.network.paths import Loads
from tpusim.program import CollectiveKind

WHOLE = 64
"""The weight of the busiest link: those of the others are whole numbers too, rounded up."""

_HBM_BYTES = {
    CollectiveKind.ALL_GATHER: 2.0,
    CollectiveKind.REDUCE_SCATTER: 3.0,
    CollectiveKind.ALL_REDUCE: 2.5,
    CollectiveKind.ALL_TO_ALL: 2.0,
    CollectiveKind.PERMUTE: 2.0,
    CollectiveKind.BROADCAST: 2.0,
}
"""HBM bytes per byte received: written and read again; one added beside also reads its partner."""

ADDED_BYTES = (1.0, 2.0)
"""HBM bytes per byte added after the transfers: read of the operand; read and written as a sum."""

REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True)
class Carried:
    """What runs on the torus, for its single messages: `part` of the tensor, over so many hops."""

    kind: CollectiveKind
    how: Algorithm
    spans: tuple[Span, ...]
    topology: Topology
    part: float
    hops: int
    listed: Listed | None = None

    def loads(self) -> Loads:
        """Bytes on every single link, by byte of the tensor."""
        if self.listed is not None:
            return self.part * listed_loads(self.kind, self.listed, self.topology)
        return self.part * link_loads_of(self.kind, self.how, self.spans, self.topology)

    def moves(self, nbytes: float, launch_s: float, hop_s: float) -> Moves:
        """The messages for a tensor of so many bytes."""
        if self.listed is not None:
            sent = listed_messages(self.kind, self.listed, self.topology)
            return Moves(sent, nbytes * self.part, launch_s, hop_s)
        return moves(self.kind, self.how, self.spans, self.topology, nbytes * self.part, launch_s,
                     hop_s)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Route:
    """A collective over a group, by byte of its tensor on one device.

    share: bytes on each link of weight `WHOLE`. links: link class and weight. hops: links crossed
    one after another. paths: bytes and hops of other ways through it on ICI, which may take longer,
    and the `power` that joins them (see `network.Pattern`). added: bytes that are added up, `after`
    the transfers or beside them. launched: false for a group of one, which does nothing. text: the
    algorithm in words. touched: bytes in HBM of the operand and of the result, `summed` those per
    byte that is added after the transfers.
    """

    share: float
    links: tuple[tuple[str, int], ...]
    hops: int
    paths: tuple[tuple[float, int], ...] = ()
    power: float = inf
    added: float = 0.0
    after: bool = False
    launched: bool = True
    text: str = ""
    carried: Carried | None = None
    touched: tuple[float, float] = (0.0, 0.0)
    summed: float = sum(ADDED_BYTES)

    @property
    def uses(self) -> tuple[tuple[str, int], ...]:
        """What it draws on, with weights: its links, and HBM for the bytes touched there."""
        drawn = sum(self.touched)
        return (*self.links, (HBM, weight(drawn / self.share))) if drawn else self.links

    def lying(self, hbm: tuple[float, float]) -> "Route":
        """The route where only these shares of operand and result are in HBM.

        What lies in VMEM or CMEM takes nothing of HBM.
        """
        if not self.launched or hbm == (1.0, 1.0):
            return self
        operand, result = map(mul, hbm, self.touched)
        return replace(self, touched=(operand, result), summed=sum(map(mul, hbm, ADDED_BYTES)))


NOTHING = Route(share=0.0, links=(), hops=0, launched=False, text="nothing")


def route(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology, asked: str = ""
) -> Route:
    """The route of a collective over the group that the spans make, within a slice.

    asked: an `Algorithm`, with " flat" after it where each device of a chip shall move all bytes
    itself, or empty for the one that the compiler picks.
    Raises PlanError for an algorithm that the kind cannot use.
    """
    return _route(kind, tuple(spans), topology, asked)


@lru_cache(maxsize=4096)
def _route(kind: CollectiveKind, spans: tuple[Span, ...], topology: Topology, asked: str) -> Route:
    how = algorithm(kind, spans, topology, asked)
    if prod(span.size for span in spans) == 1:
        return NOTHING
    text = ""
    if how is Algorithm.ALL_REDUCE:
        kind, text = CollectiveKind.ALL_REDUCE, "as an all-reduce, "
        how = algorithm(kind, spans, topology, "")
    if not on_torus(spans):
        return _over_die(kind, text)
    return _over_torus(kind, how, spans, topology, text, is_flat(asked))


def _over_die(kind: CollectiveKind, text: str) -> Route:
    """The route between the two devices of a chip.

    A permute sends both halves to the same neighbour, a broadcast all to the one there is.
    """
    whole = kind in (CollectiveKind.PERMUTE, CollectiveKind.BROADCAST)
    share = 1.0 if whole else die_bytes(kind)
    links = tuple((link, WHOLE) for link in DIE_LINKS)
    return Route(share, links, passes(kind), added=added(kind, 2), text=f"{text}across the die",
                 touched=touched(kind, 2))  # fmt: skip


def _over_torus(
    kind: CollectiveKind, how: Algorithm, spans: tuple[Span, ...], topology: Topology, text: str,
    apart: bool,
) -> Route:  # fmt: skip
    """The route over ICI, and across the die for groups that both devices of a chip belong to."""
    torus, dies = on_torus(spans), prod(span.size for span in spans if span.dim == DIE)
    devices = dies * prod(span.size for span in torus)
    found = pattern(kind, how, torus, topology)
    part = 0.5 if dies == 2 and how is not Algorithm.PAIRS and not apart else 1.0
    share = part * max(load for _, load in found.links)
    weights = {link: weight(part * load / share) for link, load in found.links}
    hops = 0
    if dies == 2:
        weights |= dict.fromkeys(DIE_LINKS, weight(die_bytes(kind) / share))
        hops = passes(kind)
        text += "each device for itself, " if apart else "and across the die, "
    after = how is Algorithm.ND and kind in REDUCTIONS
    return Route(
        share, tuple(weights.items()), found.hops + hops,
        paths=tuple((part * nbytes, further + hops) for nbytes, further in found.paths),
        power=found.power, added=added(kind, devices), after=after, text=text + found.text,
        carried=Carried(kind, how, torus, topology, part, found.hops),
        touched=touched(kind, devices, after),
    )  # fmt: skip


def shift_route(spans: Sequence[Span], topology: Topology, backward: bool, closed: bool) -> Route:
    """The route of what each device sends to the next one along the spans, by byte of it.

    backward: to the one before. closed: the last sends to the first as well.
    """
    torus, dies = on_torus(spans), prod(span.size for span in spans if span.dim == DIE)
    weights = {DIE_LINKS[backward]: WHOLE} if dies > 1 else {}
    if dies * prod(span.size for span in torus) == 1:
        return NOTHING
    links, hops = shift(torus, topology, backward, closed) if torus else ((), 0)
    share = max((load for _, load in links), default=1.0)
    weights |= {link: weight(load / share) for link, load in links}
    return Route(share, tuple(weights.items()), max(hops, 1), text="to the next",
                 touched=touched(CollectiveKind.PERMUTE, 2))  # fmt: skip


def dcn_route(
    kind: CollectiveKind, slices: int, links: Sequence[str] = (LEAVING, ARRIVING)
) -> Route:
    """The route of a collective across slices: `(n-1)/n` of the bytes, twice for an all-reduce.

    Each device talks to its twins of the other slices through its share of the host's network card.
    As many bytes arrive as leave. A permute sends all its bytes. links: of DCN that it draws on.
    """
    if slices == 1:
        return NOTHING
    drawn = tuple((link, WHOLE) for link in links)
    return Route(received(kind, slices), drawn, hops=0, text=f"send and receive, {slices} slices",
                 touched=touched(kind, slices))  # fmt: skip


def passes(kind: CollectiveKind) -> int:
    """An all-reduce passes over the links twice: reduce-scatter, then all-gather."""
    return 2 if kind is CollectiveKind.ALL_REDUCE else 1


def die_bytes(kind: CollectiveKind) -> float:
    """Bytes each way over the die-to-die link, where both take part: half the tensor a pass."""
    return 0.5 * passes(kind)


def received(kind: CollectiveKind, devices: int) -> float:
    """Bytes that a device receives, by byte of the tensor."""
    if kind in (CollectiveKind.PERMUTE, CollectiveKind.BROADCAST):
        return 1.0
    return passes(kind) * (devices - 1) / devices


def touched(kind: CollectiveKind, devices: int, after: bool = False) -> tuple[float, float]:
    """Bytes in HBM of the operand and of the result, by byte of the tensor.

    Of the operand a device reads once what it sends first, or adds to what comes; it writes and
    reads all else where the result lies. after: additions come after the transfers, not beside.
    """
    read = received(kind, devices) / passes(kind)
    if kind is CollectiveKind.ALL_GATHER:
        read = 1 / devices
    elif kind is CollectiveKind.BROADCAST:
        read = 0.0
    whole = (2.0 if after else _HBM_BYTES[kind]) * received(kind, devices)
    return read, whole - read


def added(kind: CollectiveKind, devices: int) -> float:
    """Bytes that a device adds to its own."""
    return (devices - 1) / devices if kind in REDUCTIONS else 0.0


def weight(ratio: float) -> int:
    """The weight of a link with this ratio to the busiest one, not understated."""
    return max(1, ceil(WHOLE * ratio - 1e-9))

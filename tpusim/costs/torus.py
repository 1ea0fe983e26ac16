"""A group of devices on the torus, as the collectives see it: dimensions with ways and strides."""

from dataclasses import dataclass
from functools import reduce
from math import prod

from tpusim.hardware import DIE, Span, Topology
from tpusim.hardware.topology import DIMENSION_NAMES


@dataclass(frozen=True, slots=True)
class Way:
    """The part of a group that lies on one dimension of the torus.

    size: devices of the group along it. stride: links between neighbours of the group, which is
    also the number of groups that share each link. ways: 2 on a ring, whose two directions each
    carry half, 1 on a line, whose end link carries everything.
    """

    name: str
    size: int
    stride: int
    ways: int

    @property
    def links(self) -> tuple[str, str]:
        """The two link classes: one a direction."""
        return f"ici:{self.name}+", f"ici:{self.name}-"

    @property
    def hops(self) -> float:
        """Links that the farthest message crosses: half way round a ring, or the whole line."""
        return self.stride * (self.size / 2 if self.ways == 2 else self.size - 1)

    @property
    def rate(self) -> float:
        """Full links that a gather has at its disposal here."""
        return self.ways / self.stride


@dataclass(frozen=True, slots=True)
class Group:
    """Devices of one collective: `ways` over the torus, `dies` 2 where both of a chip take part."""

    ways: tuple[Way, ...]
    dies: int
    whole: bool

    @property
    def chips(self) -> int:
        """Chips of the group."""
        return prod(way.size for way in self.ways)

    @property
    def devices(self) -> int:
        """Devices of the group."""
        return self.chips * self.dies


def _joined(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """The spans with those on one dimension made one: sizes multiply, the least stride stays."""

    def join(found: dict[int, Span], span: Span) -> dict[int, Span]:
        old = found.get(span.dim, Span(span.dim, 1, span.stride))
        stride = min(old.stride, span.stride)
        return {**found, span.dim: Span(span.dim, old.size * span.size, stride)}

    first: dict[int, Span] = {}
    return tuple(reduce(join, (span for span in spans if span.size > 1), first).values())


def _way(span: Span, topology: Topology) -> Way:
    """A ring where the span goes all the way round a wrapped dimension, else a line."""
    round_trip = span.size * span.stride == topology.dims[span.dim] and topology.wrap[span.dim]
    return Way(DIMENSION_NAMES[span.dim], span.size, span.stride, 2 if round_trip else 1)


def group(spans: tuple[Span, ...], topology: Topology) -> Group:
    """The group that the spans make on the torus."""
    joined = _joined(spans)
    ways = tuple(_way(span, topology) for span in joined if span.dim != DIE)
    chips = prod(way.size for way in ways)
    dies = 2 if len(ways) < len(joined) else 1
    return Group(ways, dies, whole=chips == topology.chips)


def one_ring(of: Group) -> Way:
    """One ring through all chips of the group, laid row by row along its best dimension.

    Rows run both ways along that dimension, so the ring's two directions use its two link classes;
    the few turns between rows are left out. The best dimension is a ring, then has the least
    stride, then is the longest. The ring closes where that dimension does, and also on two or more
    lines of an even number of chips (a 2x2 face is a ring of four).
    """
    best = min(of.ways, key=lambda way: (-way.ways, way.stride, -way.size))
    closes = best.ways == 2 or (len(of.ways) > 1 and of.chips % 2 == 0)
    return Way(best.name, of.chips, best.stride, 2 if closes else 1)

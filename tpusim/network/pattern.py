"""What a collective puts on the torus, in numbers: bytes a link class, hops, and words."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from tpusim.hardware import Span, Topology
from tpusim.hardware.topology import DIMENSION_NAMES
from tpusim.network.algorithm import Algorithm, dimension_sizes
from tpusim.network.exchange import exchange_loads, waits
from tpusim.network.groups import covered
from tpusim.network.paths import Loads, link_shape
from tpusim.network.schedule import Phase, schedule
from tpusim.program import CollectiveKind, Number
from tpusim.program.numeric import largest, power_sum

Paths = tuple[tuple[float, int], ...]
"""Bytes, by byte of the tensor, and hops."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A collective among the chips that its spans cover, by byte of its tensor on a device.

    links: for each link class (`ici:x+`) in use, the bytes on its busiest link. paths: ways through
    the collective, each with the bytes that pass one after another and the hops that their latency
    adds. power: of the power sum that joins them; infinite where the longest alone decides.
    text: the algorithm, in words.
    """

    links: tuple[tuple[str, float], ...]
    paths: Paths
    text: str
    power: float = math.inf

    def seconds(self, nbytes: Number, rate: float, hop_s: float) -> Number:
        """Seconds alone on links of `rate` B/s, `hop_s` seconds a hop; without the launch."""
        return paths_seconds(self.paths, self.power, nbytes, rate, hop_s)

    @property
    def hops(self) -> int:
        """The least hops of any path: latency before or between the bytes of the busiest link."""
        return min(hops for _, hops in self.paths)


def paths_seconds(paths: Paths, power: float, nbytes: Number, rate: float, hop_s: float) -> Number:
    """Seconds until the last of all paths is done: the longest, or the power sum of the two.

    The power sum is scaled such that many bytes take what the first path, the busiest link, takes.
    """
    times = [nbytes * share / rate + hops * hop_s for share, hops in paths]
    if math.isinf(power):
        return reduce(largest, times)
    (most, _), (first, _) = paths
    busy, far = times
    seconds: Number = power_sum(busy, far, power) / (1 + (first / most) ** power) ** (1 / power)
    return seconds


def pattern(
    kind: CollectiveKind, how: Algorithm, spans: tuple[Span, ...], topology: Topology
) -> Pattern:
    """The pattern of a collective that is carried out by the algorithm `how`.

    Chunks of a chain wait for each other, so their latencies and bytes add up, phase by phase. The
    messages of an all-to-all do not wait: see `exchange.waits`.
    """
    inner, part, dims = covered(spans, topology)
    found = _pattern(kind, how, inner, part)
    links = tuple((f"ici:{DIMENSION_NAMES[dims[dim]]}{side}", load)
                  for (dim, side), load in found.loads)  # fmt: skip
    names = ",".join(DIMENSION_NAMES[dim] for dim in dimension_sizes(spans))
    return Pattern(links, found.paths, found.text.format(names), found.power)


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern whose dimensions are numbers, for all tori on which it comes up."""

    loads: tuple[tuple[tuple[int, str], float], ...]
    paths: Paths
    text: str
    power: float = math.inf


@lru_cache(maxsize=4096)
def _pattern(
    kind: CollectiveKind, how: Algorithm, spans: tuple[Span, ...], topology: Topology
) -> Found:
    if how is Algorithm.PAIRS:
        chips = math.prod(span.size for span in spans)
        text = f"every pair of {chips} through {{}} by shortest ways"
        paths, power = waits(spans, topology)
        return Found(busiest(exchange_loads(spans, topology)), tuple(paths), text, power)
    return of_phases(how, schedule(kind, how, spans, topology))


def of_phases(how: Algorithm, phases: Sequence[Phase]) -> Found:
    """What phases put on the torus; the names of the dimensions are to be filled in."""
    return Found(busiest(loads_of(phases)), _paths(phases), _words(how, phases))


def loads_of(phases: Sequence[Phase]) -> Loads:
    """Bytes on each link in all phases together, by byte of the tensor."""
    return np.asarray(np.sum([stage.loads() for phase in phases for stage in phase], axis=0))


def _paths(phases: Sequence[Phase]) -> Paths:
    """The paths through all phases: any path of any stage of each."""
    found: Paths = ((0.0, 0),)
    for phase in phases:
        steps = {step for stage in phase for step in stage.paths}
        found = _longest({(a + b, x + y) for a, x in found for b, y in steps})
    return found


def _longest(paths: Iterable[tuple[float, int]]) -> Paths:
    """The paths without those that have fewer bytes and no more hops than another."""
    kept: list[tuple[float, int]] = []
    for nbytes, hops in sorted(paths, reverse=True):
        if not kept or hops > kept[-1][1]:
            kept.append((nbytes, hops))
    return tuple(kept)


def link_loads_of(
    kind: CollectiveKind, how: Algorithm, spans: Sequence[Span], topology: Topology
) -> Loads:
    """Bytes on every single link, by byte of the tensor, [dimension, direction, *coordinates]."""
    inner, part, dims = covered(spans, topology)
    pairs = how is Algorithm.PAIRS
    loads = exchange_loads(inner, part) if pairs else loads_of(schedule(kind, how, inner, part))
    whole = np.zeros(link_shape(topology))
    shape = [length if dim in dims else 1 for dim, length in enumerate(topology.dims)]
    for at, dim in enumerate(dims):
        whole[dim] = loads[at].reshape(2, *shape)
    return whole


def busiest(loads: Loads) -> tuple[tuple[tuple[int, str], float], ...]:
    """The busiest link of each dimension and direction, those without a load left out."""
    most = loads.reshape(*loads.shape[:2], -1).max(axis=2)
    return tuple(
        ((dim, "+-"[side]), float(most[dim, side]))
        for dim in range(len(most))
        for side in (0, 1)
        if most[dim, side] > 0
    )


def _words(how: Algorithm, phases: Sequence[Phase]) -> str:
    """The algorithm in words; the names of the dimensions are to be filled in."""
    chain, colours = phases[0][0].chain, len(phases[0])
    shape = "ring" if chain.closed else "line"
    if how is Algorithm.ND and colours > 1:
        return f"all of {{}} at once, {colours} colours"
    if how in (Algorithm.NEIGHBOURS, Algorithm.HALO):
        return f"neighbours on a {shape} of {chain.length} through {{}}"
    if how is Algorithm.ONWARD:
        return f"onward on a {shape} of {chain.length} through {{}}"
    return f"one {shape} of {chain.length} through {{}}"

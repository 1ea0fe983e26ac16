"""The loads of a collective on the torus: bytes per link class, hops, and words."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from tpusim.hardware import DIMENSION_NAMES, Span, Topology
from tpusim.network.algorithm import ALGORITHMS, schedule
from tpusim.network.groups import covered_part, dimension_sizes, merged
from tpusim.network.paths import Loads, link_shape
from tpusim.network.schedule import SchedulePhase, ScheduleStage
from tpusim.program import CollectiveKind, Number, largest, power_sum

Paths = tuple[tuple[float, int], ...]
"""Bytes, by byte of the tensor, and hops."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A collective among the chips that its spans cover, by byte of its tensor on a device.

    links: the bytes on the busiest link of each link class in use (`ici:x+`).
    paths: paths through the collective, each with the bytes that pass one after another and the
        hops that their latency adds.
    power: of the power sum that joins the paths; infinite if the longest alone decides.
    text: the algorithm, in words.
    """

    links: tuple[tuple[str, float], ...]
    paths: Paths
    text: str
    power: float = math.inf

    def seconds(self, nbytes: Number, rate: float, hop_s: float) -> Number:
        """Return the seconds alone on links of `rate` B/s, at `hop_s` a hop, without the launch."""
        return paths_seconds(self.paths, self.power, nbytes, rate, hop_s)

    @property
    def hops(self) -> int:
        """The least hops of any path: latency before or between the bytes of the busiest link."""
        return min(hops for _, hops in self.paths)


def paths_seconds(paths: Paths, power: float, nbytes: Number, rate: float, hop_s: float) -> Number:
    """Return the seconds until all paths are done: of the longest, or the power sum of the two.

    The power sum is scaled so that many bytes take as long as the first path, the busiest link.
    """
    times = [nbytes * share / rate + hops * hop_s for share, hops in paths]
    if math.isinf(power):
        return reduce(largest, times)
    (most, _), (first, _) = paths
    busy, far = times
    seconds: Number = power_sum(busy, far, power) / (1 + (first / most) ** power) ** (1 / power)
    return seconds


def pattern(
    kind: CollectiveKind, algorithm: str, spans: tuple[Span, ...], topology: Topology
) -> Pattern:
    """Return the pattern of a collective that is carried out by the named algorithm.

    Chunks of a chain wait for each other, so their latencies and bytes add up, phase by phase. The
    messages of an all-to-all do not wait: see `exchange_paths`.
    """
    inner, part, dims = covered_part(spans, topology)
    if ALGORITHMS[algorithm].phases is not None:
        inner = merged(inner)
    found = _pattern(kind, algorithm, inner, part)
    links = named_links(found.loads, dims)
    names = ",".join(DIMENSION_NAMES[dim] for dim in dimension_sizes(spans))
    return Pattern(links, found.paths, found.text.format(names), found.power)


@dataclass(frozen=True, slots=True)
class RelativePattern:
    """A pattern whose dimensions are numbers, for all tori on which it occurs."""

    loads: tuple[tuple[tuple[int, str], float], ...]
    paths: Paths
    text: str
    power: float = math.inf


@lru_cache(maxsize=4096)
def _pattern(
    kind: CollectiveKind, algorithm: str, spans: tuple[Span, ...], topology: Topology
) -> RelativePattern:
    method = ALGORITHMS[algorithm]
    if method.phases is None:
        text = method.at_once.text.format(math.prod(span.size for span in spans))
        paths, power = method.at_once.paths(spans, topology)
        loads = busiest_links(method.at_once.loads(spans, topology))
        return RelativePattern(loads, tuple(paths), text, power)
    phases = schedule(kind, algorithm, spans, topology)
    return phases_pattern(phases, method.describe(phases))


def phases_pattern(phases: Sequence[SchedulePhase], text: str) -> RelativePattern:
    """Return the pattern of phases; the names of the dimensions are to be filled in."""
    return RelativePattern(busiest_links(phases_loads(phases)), phases_paths(phases), text)


def phases_loads(phases: Sequence[SchedulePhase]) -> Loads:
    """Return the bytes on each link in all phases together, by byte of the tensor."""
    return np.asarray(np.sum([stage.loads() for phase in phases for stage in phase], axis=0))


def phases_paths(
    phases: Sequence[SchedulePhase],
    slowness: Callable[[ScheduleStage], float] = lambda _: 1.0,
    further: Callable[[ScheduleStage], int] = lambda _: 0,
) -> Paths:
    """Return the paths through all phases: any path of any stage of each.

    slowness: the factor by which the bytes of a stage take longer.
    further: the hops that it takes more.
    """
    found: Paths = ((0.0, 0),)
    for phase in phases:
        steps = {
            (slowness(stage) * nbytes, hops + further(stage))
            for stage in phase
            for nbytes, hops in stage.paths
        }
        found = _longest_paths({(a + b, x + y) for a, x in found for b, y in steps})
    return found


def _longest_paths(paths: Iterable[tuple[float, int]]) -> Paths:
    """Return the paths without those that have fewer bytes and no more hops than another."""
    kept: list[tuple[float, int]] = []
    for nbytes, hops in sorted(paths, reverse=True):
        if not kept or hops > kept[-1][1]:
            kept.append((nbytes, hops))
    return tuple(kept)


def link_loads_of(
    kind: CollectiveKind, algorithm: str, spans: Sequence[Span], topology: Topology
) -> Loads:
    """Return the load of every link per byte of tensor, [dimension, direction, *coordinates]."""
    inner, part, dims = covered_part(spans, topology)
    method = ALGORITHMS[algorithm]
    if method.phases is None:
        return on_all_links(method.at_once.loads(inner, part), dims, topology)
    return on_all_links(phases_loads(schedule(kind, algorithm, inner, part)), dims, topology)


def on_all_links(loads: Loads, dims: Sequence[int], topology: Topology) -> Loads:
    """Return loads on some dimensions of a torus as those of all its links."""
    whole = np.zeros(link_shape(topology))
    shape = [length if dim in dims else 1 for dim, length in enumerate(topology.dims)]
    for at, dim in enumerate(dims):
        whole[dim] = loads[at].reshape(2, *shape)
    return whole


def link_class(dim: int, side: str) -> str:
    """Return the name of the links of a dimension and direction, such as `ici:x+`."""
    return f"ici:{DIMENSION_NAMES[dim]}{side}"


def named_links(
    loads: Sequence[tuple[tuple[int, str], float]], dims: Sequence[int] = range(3)
) -> tuple[tuple[str, float], ...]:
    """Return loads by the names of their links; dims: the dimensions that they count from 0."""
    return tuple((link_class(dims[dim], side), load) for (dim, side), load in loads)


def busiest_links(loads: Loads) -> tuple[tuple[tuple[int, str], float], ...]:
    """Return the load of the busiest link of each dimension and direction that has any load."""
    most = loads.reshape(*loads.shape[:2], -1).max(axis=2)
    return tuple(
        ((dim, "+-"[side]), float(most[dim, side]))
        for dim in range(len(most))
        for side in (0, 1)
        if most[dim, side] > 0
    )

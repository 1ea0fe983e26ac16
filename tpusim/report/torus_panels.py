"""The panels of the torus heat map: links that are alike are drawn once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from tpusim.network.paths import Loads
from tpusim.report.places import ranges
from tpusim.report.torus import TorusUse

MOST_PLANES = 4
"""Planes of one direction that are drawn apart; of more, each place shows the busiest."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The links of directions that are alike, [row, column], and the planes that are alike."""

    title: str
    shares: Loads


@dataclass(frozen=True, slots=True)
class Panels:
    """What the heat map shows: the dimensions down and across, panels, and unused dimensions."""

    down: str
    across: str
    panels: tuple[Panel, ...]
    unused: tuple[str, ...]


def torus_panels(use: TorusUse) -> Panels:
    """The fewest panels that show all links that are in use.

    In three dimensions the planes are cut across the dimension along which most are alike, the
    shortest of such; directions of one dimension that are alike share their panels.
    """
    names = use.topology.names
    used = [name for name in names if any(use.busiest.get(f"{name}{way}") for way in "+-")]
    ways = {
        title: shares
        for name in used
        for title, shares in _alike({f"{name}{way}": use.of(f"{name}{way}") for way in "+-"})
    }
    unused = tuple(name for name in names if name not in used)
    if len(names) < 3:
        flat = tuple(Panel(title, np.atleast_2d(shares)) for title, shares in ways.items())
        return Panels("" if len(names) == 1 else "x", names[-1], flat, unused)
    dims = use.topology.dims
    cuts = {cut: [_planes(title, shares, cut) for title, shares in ways.items()]
            for cut in range(3)}  # fmt: skip
    best = min(cuts, key=lambda cut: (sum(map(len, cuts[cut])), -prod(dims) // dims[cut], -cut))
    down, across = (name for name in names if name != names[best])
    chosen = (_few(planes, names[best], dims[best]) for planes in cuts[best])
    return Panels(down, across, tuple(panel for each in chosen for panel in each), unused)


def _alike(named: Mapping[str, Loads]) -> Iterator[tuple[str, Loads]]:
    """Arrays by name, those that are equal once, under all their names."""
    groups: list[tuple[list[str], Loads]] = []
    for name, shares in named.items():
        for names, known in groups:
            if np.array_equal(known, shares, equal_nan=True):
                names.append(name)
                break
        else:
            groups.append(([name], shares))
    yield from ((" and ".join(names), shares) for names, shares in groups)


@dataclass(frozen=True, slots=True)
class _Plane:
    way: str
    places: list[int]
    shares: Loads


def _planes(way: str, shares: Loads, cut: int) -> list[_Plane]:
    """The planes with links of a direction across dimension `cut`, those that are alike once."""
    found: dict[bytes, _Plane] = {}
    for place, plane in enumerate(np.moveaxis(shares, cut, 0)):
        if not np.isnan(plane).all():
            found.setdefault(plane.tobytes(), _Plane(way, [], plane)).places.append(place)
    return list(found.values())


def _few(planes: list[_Plane], cut: str, length: int) -> Iterator[Panel]:
    """The panels of a direction's planes; of too many, the busiest link at each place."""
    if len(planes) > MOST_PLANES:
        title = f"{planes[0].way}, the busiest of {cut} = 0–{length - 1}"
        yield Panel(title, np.fmax.reduce([plane.shares for plane in planes]))
        return
    for plane in planes:
        where = f", {cut} = {ranges(plane.places)}" if length > 1 else ""
        yield Panel(f"{plane.way}{where}", plane.shares)

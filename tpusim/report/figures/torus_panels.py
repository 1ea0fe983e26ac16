"""The panels of the torus heat map: equal links are drawn once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tpusim.network.paths import Loads
from tpusim.report.figures.canvas import join_words
from tpusim.report.figures.label_positions import number_ranges
from tpusim.report.figures.torus_labels import in_tenths
from tpusim.report.figures.torus_use import TorusUse

MOST_PLANES = 4
"""Planes of one direction that are drawn separately; of more, each cell shows the busiest."""


@dataclass(frozen=True, slots=True)
class TorusPanel:
    """The links of equal directions, [row, column], in equal planes; the title names both."""

    title: str
    shares: Loads


@dataclass(frozen=True, slots=True)
class TorusPanels:
    """The panels of the heat map, their dimensions down and across, and unused dimensions."""

    down: str
    across: str
    panels: tuple[TorusPanel, ...]
    unused: tuple[str, ...]


def torus_panels(use: TorusUse) -> TorusPanels:
    """Return the fewest panels that show all links in use.

    In three dimensions the planes are cut across the dimension along which most are equal, the
    shortest of such; equal directions share their panels. Links are equal to a tenth of a percent,
    as numbers do not show more.
    """
    names = use.topology.names
    used = [name for name in names if any(use.busiest.get(f"{name}{sign}") for sign in "+-")]
    merged = list(_merge_equal({way: use.of(way) for name in used for way in _ways(name)}))
    unused = tuple(name for name in names if name not in used)
    if len(names) < 3:
        flat = tuple(TorusPanel(title, np.atleast_2d(shares)) for title, shares in merged)
        return TorusPanels("" if len(names) == 1 else "x", names[-1], flat, unused)
    dims = use.topology.dims
    cuts = {cut: [_planes(title, shares, cut) for title, shares in merged] for cut in range(3)}
    best = min(cuts, key=lambda cut: (sum(map(len, cuts[cut])), -prod(dims) // dims[cut], -cut))
    down, across = (name for name in names if name != names[best])
    chosen = (_plane_panels(planes, names[best], dims[best]) for planes in cuts[best])
    return TorusPanels(down, across, tuple(panel for each in chosen for panel in each), unused)


def _merge_equal(named: Mapping[str, Loads]) -> Iterator[tuple[str, Loads]]:
    """Yield arrays by name, equal ones once under all their names."""
    groups: list[tuple[list[str], Loads]] = []
    for name, shares in named.items():
        for names, known in groups:
            if np.array_equal(in_tenths(known), in_tenths(shares), equal_nan=True):
                names.append(name)
                break
        else:
            groups.append(([name], shares))
    yield from ((_title(names), shares) for names, shares in groups)


def _ways(name: str) -> tuple[str, str]:
    """Return both directions of a dimension."""
    return f"{name}+", f"{name}-"


def _title(ways: Sequence[str]) -> str:
    """Return directions in words; both of a dimension are one: `x± and y+`."""
    names = dict.fromkeys(way[0] for way in ways)
    both = {name for name in names if {*_ways(name)} <= {*ways}}
    parts = (f"{name}±" if name in both else _way_of(name, ways) for name in names)
    return join_words(list(parts))


def _way_of(name: str, ways: Sequence[str]) -> str:
    return next(way for way in ways if way[0] == name)


@dataclass(frozen=True, slots=True)
class _TorusPlane:
    direction: str
    positions: list[int]
    shares: Loads


def _planes(direction: str, shares: Loads, cut: int) -> list[_TorusPlane]:
    """Return the planes of a direction across dimension `cut` that have links, equal ones once."""
    found: dict[bytes, _TorusPlane] = {}
    for position, plane in enumerate(np.moveaxis(shares, cut, 0)):
        if not np.isnan(plane).all():
            known = found.setdefault(in_tenths(plane).tobytes(), _TorusPlane(direction, [], plane))
            known.positions.append(position)
    return list(found.values())


def _plane_panels(planes: list[_TorusPlane], cut: str, length: int) -> Iterator[TorusPanel]:
    """Yield the panels of a direction's planes; of too many, the busiest link in each cell."""
    if len(planes) > MOST_PLANES:
        title = f"{planes[0].direction}, the busiest of {cut} = 0–{length - 1}"
        yield TorusPanel(title, np.fmax.reduce([plane.shares for plane in planes]))
        return
    for plane in planes:
        where = f", {cut} = {number_ranges(plane.positions)}" if length > 1 else ""
        yield TorusPanel(f"{plane.direction}{where}", plane.shares)

"""How busy each resource is in each tenth of the step."""

from typing import NamedTuple

import numpy as np

from tpusim.costs import CORE, DCN, FROM_HOST, HBM, TO_HOST
from tpusim.program import Compute, walk_ops
from tpusim.report.figures.utilisation import both_ways
from tpusim.report.link_traffic import Floats, link_series, record_starts, spread_evenly
from tpusim.results import LEAST_SHOWN, PICO, Result, operation_of

PARTS = 10
"""Equal parts of the step in which the busy shares are given."""


class ResourceRow(NamedTuple):
    """A resource, its busy share of each of `PARTS` parts of the step, and of the step."""

    name: str
    shares: tuple[float, ...]
    mean: float


def resource_rows(result: Result) -> list[ResourceRow]:
    """Return the rows of MXU, HBM, each ICI dimension, DCN and PCIe.

    Directions that are alike are one row; DCN and PCIe are left out where they are idle.
    """
    total = result.timeline.total_ps
    edges = np.linspace(0, total, PARTS + 1)
    mxu = _mxu(result, edges)
    rows = [ResourceRow("MXU", tuple(mxu.tolist()), float(mxu.mean()))]
    busy = {use.link: use.busy_ps / total for use in result.shown.links}
    series = link_series(result, edges)
    order = sorted(series, key=lambda link: (link != HBM, link.startswith(DCN), link))
    for name, (link, *_) in both_ways(order, lambda a, b: _alike(series[a], series[b])):
        off_chip = link.startswith(DCN) or link in (TO_HOST, FROM_HOST)
        if not off_chip or busy[link] >= LEAST_SHOWN:
            rows.append(ResourceRow(name, tuple(series[link].tolist()), busy[link]))
    return rows


def _alike(one: Floats, other: Floats) -> bool:
    """Return True if two series are equal as far as numbers show."""
    return bool(np.allclose(one, other, rtol=0, atol=LEAST_SHOWN))


def _mxu(result: Result, edges: Floats) -> Floats:
    """Return the matrix FLOP/s of one device over its bf16 peak."""
    devices = len(result.programs) and result.pod.devices // len(result.programs)
    flops: dict[str, float] = {}
    for op, _ in walk_ops(result.program.body, result.program.segments):
        if isinstance(op, Compute):
            flops[op.name] = float(op.flops.total) / devices
    peak = result.peak_flops / result.pod.devices * PICO
    flows = []
    for record in result.shown.tasks:
        if record.stream == CORE and flops.get(operation_of(record)):
            starts = record_starts(record)
            flows.append((starts, starts + record.duration_ps, flops[operation_of(record)] / peak))
    return spread_evenly(flows, edges)

"""How busy each resource is in each tenth of the step."""

from typing import NamedTuple

import numpy as np

from tpusim.costs import CORE, DCN, FROM_HOST, HBM, TO_HOST
from tpusim.program import Compute, walk_ops
from tpusim.report.figures.utilisation import resource_name
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
    for link in sorted(series, key=lambda link: (link != HBM, link.startswith(DCN), link)):
        other = series.get(f"{link[:-1]}{'-' if link.endswith('+') else '+'}")
        alike = other is not None and np.array_equal(series[link], other)
        off_chip = link.startswith(DCN) or link in (TO_HOST, FROM_HOST)
        if (alike and link.endswith("-")) or (off_chip and busy[link] < LEAST_SHOWN):
            continue
        name = resource_name(link[:-1] if alike else link)
        rows.append(ResourceRow(name, tuple(series[link].tolist()), busy[link]))
    return rows


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

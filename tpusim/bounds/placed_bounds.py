"""Bounds of plans on the placements that the simulation chooses from.

The bound of a plan takes each collective to lie as well as it can by itself (`bound`). On any one
placement the axes share the dimensions of the torus: what one has, another has not. So the least
over the candidates, each with all its collectives, is a tighter bound, for some ten times the work.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.bounds.footprints import MOST_DIMENSIONS
from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.bounds.plan_bounds import bounds
from tpusim.hardware import DCN_PREFIX, Placement, Slice, candidates
from tpusim.hardware.spans import DIE
from tpusim.models import Architecture

UNSHARED = 1 << 32
"""The stride of an axis along a dimension that it has one position of."""

_Footprint = tuple[tuple[int, ...], ...]


def placed_seconds(
    model: Architecture, plans: PlanArrays, answers: GroupAnswers
) -> NDArray[np.float64]:
    """Return seconds that no step of each plan is shorter than on any of its candidates.

    plans: with the placement left to the simulation.
    answers: what earlier calls for the same slices found.
    """
    axes = [axis for axis in plans.mesh if not axis.startswith(DCN_PREFIX)]
    known: dict[Hashable, list[_Footprint]] = {}
    rows: list[int] = []
    each: list[_Footprint] = []
    numbers = np.stack([plans.pod, *plans.mesh.values()], axis=1).tolist()
    for at, (number, *sizes) in enumerate(numbers):
        key = (number, *sizes)
        if key not in known:
            mesh = dict(zip(plans.mesh, sizes, strict=True))
            known[key] = _distinct_footprints(plans.pods[number], mesh, axes)
        each += known[key]
        rows += [at] * len(known[key])
    table = np.array(each, np.int64)
    footprints = {axis: table[:, n] for n, axis in enumerate(axes)}
    placed = replace(plans.take(np.array(rows)), footprints=footprints)
    found = np.full(len(plans), np.inf)
    np.minimum.at(found, rows, bounds(model, placed, answers).seconds)
    return found


def _distinct_footprints(
    pod: Slice, mesh: Mapping[str, int], axes: Sequence[str]
) -> list[_Footprint]:
    """Return the distinct footprints of the axes on the candidates, as `PlanArrays` has them."""
    found = (
        tuple(columns_of(placement, axis) for axis in axes) for placement in candidates(pod, mesh)
    )
    return list(dict.fromkeys(found))


def columns_of(placement: Placement, axis: str) -> tuple[int, ...]:
    """Return the footprint of an axis on a placement, in the columns of `PlanArrays.footprints`."""
    spans = placement.spans(axis)
    sizes = (
        prod(span.size for span in spans if span.dim == dim)
        for dim in (DIE, *range(MOST_DIMENSIONS))
    )
    strides = (
        min((span.stride for span in spans if span.dim == dim and span.size > 1), default=UNSHARED)
        for dim in range(MOST_DIMENSIONS)
    )
    return (*sizes, *strides)

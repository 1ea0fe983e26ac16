"""Layouts in which weights are updated: as the step reads them, or divided further.

A weight that is replicated over an axis can be updated in parts: its gradient is then scattered
over the axis where it would be all-reduced, each device has its part of the moments and updates its
part of the weight, and the parts are gathered when the next step begins (Xu et al.,
arXiv:2004.13336; the first stage of ZeRO, arXiv:1910.02054). All of it follows from one more layout
for each weight.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from tpusim.graph import Graph, Tensor
from tpusim.partition.layout import Layout
from tpusim.plan import Axes, Sharding


class WeightUpdates(NamedTuple):
    """What the frame around a body asks of the gradients of weights.

    axes: over which updates are divided (`weight_update_axes`).
    late: gradients are summed over devices once per step, not once per microbatch.
    """

    axes: Axes = ()
    late: bool = False


def update_layouts(
    graph: Graph, sharding: Sharding, over: Axes, found: Mapping[str, Layout]
) -> tuple[tuple[str, Layout], ...]:
    """Return the layouts of the weights whose updates are divided further than they are stored.

    graph: a training step.
    over: axes over which updates are divided.
    found: the layout of each weight.

    Each such axis that does not shard a weight divides one of its dimensions
    evenly: one that is sharded already, as gradients that are scattered over all axes of one
    dimension move in rings, and over those of two in an all-reduce (language model over 4 x 4
    devices of v5e, libtpu 0.0.42.1); else the largest. A weight without one is updated by each
    device.
    """
    axes = tuple(axis for axis in over if axis in sharding.active_axes)
    trained = {weight for weight, _ in graph.gradients}
    pairs = (
        (p.tensor.name, _divided(p.tensor, found[p.tensor.name], axes, graph.sizes, sharding.mesh))
        for p in graph.parameters
        if axes and p.tensor.name in trained
    )
    return tuple((name, layout) for name, layout in pairs if layout != found[name])


def _divided(
    weight: Tensor,
    layout: Layout,
    axes: Axes,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
) -> Layout:
    """Return the layout of a weight, with further axes."""
    made = list(layout)
    for axis in axes:
        if any(axis in taken for taken in made):
            continue
        parts = [prod(mesh[each] for each in taken) * mesh[axis] for taken in made]
        fits = [
            (bool(layout[place]), sizes[dim] // count, -place)
            for place, (dim, count) in enumerate(zip(weight.dims, parts, strict=True))
            if sizes[dim] % count == 0
        ]
        if fits:
            place = -max(fits)[-1]
            made[place] = (*made[place], axis)
    return tuple(made)

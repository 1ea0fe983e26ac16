"""Batch norms over groups of examples: the mesh axes over which a group's statistics are summed.

Consecutive examples are a group (Ying et al., arXiv:1811.06992, section 3.4: distributed batch
normalisation). Examples are divided over the axes of the batch in their order, so the devices of a
group are those of the last ones.
"""

from collections.abc import Mapping
from math import prod

from tpusim.base.errors import PlanError
from tpusim.base.units import format_mesh
from tpusim.graph import Graph, Pointwise, walk
from tpusim.partition.layout import Layout
from tpusim.plan import Axes, Sharding

NormGroups = tuple[tuple[tuple[Axes, int], Axes], ...]
"""For the axes of a batch and the examples of a group: the axes over which it is summed."""


def norm_groups(graph: Graph, sharding: Sharding, found: Mapping[str, Layout]) -> NormGroups:
    """Return the axes of the sums of each kind of group in a graph.

    found: the layout of each forward tensor.

    Raise PlanError for groups that do not divide the examples of a microbatch or of a device, and
    for those whose devices are no axes of the mesh.
    """
    made = {}
    for op, _ in walk(graph.ops):
        if isinstance(op, Pointwise) and op.group:
            main = op.main
            layout = found.get(main.primal or main.name, ())
            axes = layout[0] if layout else ()
            key = axes, op.group
            if key not in made:
                made[key] = _summed(op.group, axes, graph.sizes[main.dims[0]], sharding.mesh)
    return tuple(made.items())


def _summed(group: int, axes: Axes, batch: int, mesh: Mapping[str, int]) -> Axes:
    devices = prod(mesh[axis] for axis in axes)
    own, where = batch // devices, f"norm_group is {group}"
    if batch % group:
        raise PlanError(
            f"{where} examples, which do not divide the {batch} of a step or microbatch; write a "
            f"number that divides {batch}, or 0 for all of them"
        )
    if own % group == 0:
        return ()
    for first in range(len(axes)):
        last = axes[first:]
        if own * prod(mesh[axis] for axis in last) == group:
            return last
    if group % own:
        raise PlanError(
            f"{where} examples, but a device has {own}; write a multiple of {own}, or a number "
            "that divides it"
        )
    count = group // own
    sizes = format_mesh(mesh, axes)
    raise PlanError(
        f"{where} examples, those of {count} devices, which are not the last axes of the batch "
        f"({sizes}); {_instead(count, own, axes, mesh)}"
    )


def _instead(count: int, own: int, axes: Axes, mesh: Mapping[str, int]) -> str:
    """Return what to write for groups of `count` devices, of `own` examples each."""
    left = count
    for place in reversed(range(len(axes))):
        axis = axes[place]
        if mesh[axis] % left == 0:
            divided = f"{{ {axis} = {mesh[axis] // left}, group = {left} }}"
            order = [*axes[: place + 1], "group", *axes[place + 1 :]]
            rule = ", ".join(f'"{name}"' for name in order)
            return f"divide {axis}, mesh = {divided}, with rules.act_batch = [{rule}]"
        if left % mesh[axis]:
            break
        left //= mesh[axis]
    ends = (own * prod(mesh[axis] for axis in axes[first:]) for first in range(len(axes) + 1))
    return f"write a norm_group of {', '.join(map(str, sorted(ends)))}"

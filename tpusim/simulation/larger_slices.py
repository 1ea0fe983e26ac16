"""Plans on larger slices of the same chip, whose mesh has the further devices on one axis."""

from collections.abc import Iterator, Mapping
from math import prod

from tpusim.base.errors import TpusimError
from tpusim.hardware import DCN_PREFIX, Slice, default_shape, format_shape, legal_shapes
from tpusim.plan import STAGE_AXES, Plan

FIRST_AXES = ("fsdp", "data")
"""The axes that get more devices, where a mesh has them; then the others in their order."""

NEW_AXES = ("fsdp", "tensor")
"""Axes that get them in the end, though a mesh lacks them."""

LAST_AXES = (*STAGE_AXES, "expert", "context")
"""Axes that are not made larger: what they divide has a number of its own."""


def larger_slices(pod: Slice) -> Iterator[Slice]:
    """Yield the slices of the chip with a multiple of the chips of a slice, the smallest first."""
    now = pod.topology.chips
    shapes = legal_shapes(pod.slice_rules)
    for chips in sorted({size for dims in shapes if (size := prod(dims)) > now}):
        if chips % now == 0:
            try:
                yield pod.changed(shape=format_shape(default_shape(pod.slice_rules, chips)))
            except TpusimError:  # slow or broken parts that it does not have
                continue


def larger_axes(mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes that may get the devices of a larger slice, the usual one first."""
    known = [axis for axis in FIRST_AXES if axis in mesh]
    others = [axis for axis in mesh if axis not in LAST_AXES and not axis.startswith(DCN_PREFIX)]
    return tuple(dict.fromkeys((*known, *others, *NEW_AXES)))


def on_larger(plan: Plan, before: Slice, pod: Slice, axis: str) -> Plan:
    """Return a plan on a larger slice, whose devices an axis of the mesh gets."""
    times = pod.topology.chips // before.topology.chips
    mesh = {**plan.mesh, axis: plan.mesh.get(axis, 1) * times}
    return plan.replace(mesh=mesh, placement=None)

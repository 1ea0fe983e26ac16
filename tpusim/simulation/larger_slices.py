"""Plans on larger slices of the same chip, whose mesh has the further devices on one axis."""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from tpusim.base.errors import TpusimError
from tpusim.hardware import DCN_PREFIX, Slice, default_shape, format_shape, legal_shapes
from tpusim.plan import STAGE_AXES, Plan

FIRST_AXES = ("fsdp", "data")
"""The axes that get more devices, where a mesh has them; then the others in their order."""

NEW_AXES = ("fsdp", "tensor")
"""Axes that get them in the end, though a mesh lacks them."""

LAST_AXES = (*STAGE_AXES, "expert", "context")
"""Axes that are not made larger: what they divide has a number of its own."""


class LargerPlan(NamedTuple):
    """A plan on a larger slice.

    axis: of the mesh, that got the devices.
    """

    pod: Slice
    plan: Plan
    axis: str


def larger_slices(pod: Slice) -> Iterator[Slice]:
    """Yield the slices of the chip with a multiple of the chips of a slice, the smallest first."""
    now = pod.topology.chips
    shapes = legal_shapes(pod.slice_rules)
    for chips in sorted({size for dims in shapes if (size := prod(dims)) > now}):
        if chips % now == 0:
            try:
                yield pod.changed(shape=format_shape(default_shape(pod.slice_rules, chips)))
            except TpusimError:  # slow parts that it does not have
                continue


def larger_plans(plan: Plan, before: Slice, pod: Slice) -> Iterator[LargerPlan]:
    """Yield the plans with the devices of a larger slice on one axis, the usual one first."""
    times = pod.topology.chips // before.topology.chips
    axes = [axis for axis in FIRST_AXES if axis in plan.mesh]
    axes += [axis for axis in plan.mesh if axis not in (*axes, *LAST_AXES)]
    axes += [axis for axis in NEW_AXES if axis not in axes]
    for axis in axes:
        if not axis.startswith(DCN_PREFIX):
            mesh = dict(plan.mesh) | {axis: plan.mesh.get(axis, 1) * times}
            yield LargerPlan(pod, plan.replace(mesh=mesh, placement=None), axis)

"""The resource that bounds each task of a step: the one that needs longest for its part alone.

A task on the core is bound by the matrix unit, the vector unit or HBM, whichever would take longest
if the others took no time; a transfer by the link that its bytes load longest, or by several
dimensions of the torus where they are loaded alike. Launches and the latency of hops come before
and belong to neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tpusim.costs import (
    DISPATCH,
    HBM,
    ICI,
    INPUT,
    SKEW,
    STRAGGLERS,
    Task,
    work_seconds,
)
from tpusim.engine import BUBBLE
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Device, PeakRates
from tpusim.program import Compute, EstimatedWork, Program, Single, Work, walk_ops

MXU, VECTOR_UNIT, HBM_BANDWIDTH = "MXU", "vector unit", "HBM"
LAUNCHES = "launches and latency"
HOST, PIPELINE_BUBBLE, SLICE_SKEW = "host", "pipeline bubble", "slice skew"

_BY_LABEL = {
    BUBBLE: PIPELINE_BUBBLE,
    STRAGGLERS: "stragglers",
    SKEW: SLICE_SKEW,
    DISPATCH: HOST,
    INPUT: HOST,
}
"""Resources of what is bound by no unit or link of the device."""

_WAITS = (BUBBLE, STRAGGLERS)
"""Labels of waits that are for no task of the lane."""

_LINKS = {HBM: HBM_BANDWIDTH, "die": "die to die", "dcn": "DCN", "pcie": "PCIe"}
"""Resources of links, by the start of their names; `ici:y+` is ICI y."""

SAME_LOAD = 1e-9
"""Links are loaded alike if their times differ by no more, as a fraction."""

FREE = 1e12
"""The factor on a rate at which its unit takes no time."""


def resource_of_link(link: str) -> str:
    """Return the resource that a link is, outside of ICI.

    >>> [resource_of_link(link) for link in ("dcn+", "dcn:0..2-", "hbm", "die+")]
    ['DCN', 'DCN', 'HBM', 'die to die']
    """
    return _LINKS[link.rstrip("+-").partition(":")[0]]


@dataclass(frozen=True, slots=True)
class TaskBound:
    """What the time of a task belongs to.

    launch_ps: before its work begins.
    resource: what bounds the rest.
    """

    launch_ps: int
    resource: str

    def parts(self, length_ps: int) -> tuple[tuple[str, int], ...]:
        """Return resources and picoseconds that sum to a length."""
        launch = min(self.launch_ps, length_ps)
        return (LAUNCHES, launch), (self.resource, length_ps - launch)


class LaneBounds:
    """The bounds of the tasks of one lane, by name, each worked out once."""

    def __init__(
        self, tasks: Mapping[str, Task], ops: Mapping[str, Single], lane: "LaneMachine"
    ) -> None:
        self.tasks = tasks
        self._ops = ops
        self._lane = lane
        self._known: dict[tuple[str, str], TaskBound] = {}

    def of(self, name: str, label: str) -> TaskBound:
        """Return the bound of a task.

        label: of the core's time in it, which decides where no task has the name.
        """
        found = self._known.get((name, label))
        if found is None:
            task = None if label in _WAITS else self.tasks.get(name)
            found = self._known[name, label] = self._bound(task, label)
        return found

    def _bound(self, task: Task | None, label: str) -> TaskBound:
        known = _BY_LABEL.get(label)
        if task is None or (known and not task.uses):
            return TaskBound(0, known or HOST)
        op = self._ops.get(task.name)
        if isinstance(op, Compute):
            return self._lane.work_bound(op.work, task)
        return TaskBound(picoseconds(task.delay_s), self._lane.slowest_link(task))


@dataclass(slots=True)
class LaneMachine:
    """The device and the links of a lane."""

    device: Device
    links: Mapping[str, float]
    _works: dict[Work, tuple[float, str]] = field(default_factory=dict)
    _alone: "dict[str, Device]" = field(default_factory=dict)

    def slowest_link(self, task: Task) -> str:
        """Return the resource that a task's bytes load longest."""
        loads = {link: weight / self.links[link] for link, weight in task.uses}
        longest = max(loads.values(), default=0.0)
        slowest = [link for link, load in loads.items() if load >= longest * (1 - SAME_LOAD)]
        dims = sorted({link[len(ICI) + 1 : -1] for link in slowest if link.startswith(f"{ICI}:")})
        if dims:
            return f"ICI {','.join(dims)}"
        return resource_of_link(slowest[0]) if slowest else LAUNCHES

    def work_bound(self, work: Work, task: Task) -> TaskBound:
        """Return the bound of a task of the core."""
        found = self._works.get(work)
        if found is None:
            found = self._works[work] = self._slowest_unit(work, task)
        launch_s, unit = found
        return TaskBound(picoseconds(launch_s), unit)

    def _slowest_unit(self, work: Work, task: Task) -> tuple[float, str]:
        """Return the seconds of launches, and the unit that takes longest alone."""
        units = _UNITS if task.label != "vector" else _UNITS[::-1]
        if isinstance(work, EstimatedWork):
            memory = task.bytes / self.links[HBM] >= task.work_s
            return 0.0, HBM_BANDWIDTH if memory else units[0]
        alone = {unit: float(work_seconds(work, self._only(unit))) for unit in units}
        launch_s = float(work_seconds(work, self.device) - work_seconds(work, self._only("")))
        return max(launch_s, 0.0), max(alone, key=lambda unit: alone[unit])

    def _only(self, unit: str) -> Device:
        """Return the device without launches, all of whose units but one take no time.

        unit: the one that takes its time; "" if all do.
        """
        if not self._alone:
            costs = replace(self.device.costs, op_launch=0.0, vector_launch=0.0)
            self._alone[""] = base = replace(self.device, costs=costs)
            flops = PeakRates.of({dtype: rate * FREE for dtype, rate in base.flops.items()})
            free: dict[str, dict[str, Any]] = {
                MXU: {"flops": flops},
                VECTOR_UNIT: {"vpu_flops": base.vpu_flops * FREE},
                HBM_BANDWIDTH: {"hbm_bandwidth": base.hbm_bandwidth * FREE},
            }
            for own in _UNITS:
                changes = {k: v for each in free if each != own for k, v in free[each].items()}
                self._alone[own] = replace(base, **changes)
        return self._alone[unit]


_UNITS = (MXU, HBM_BANDWIDTH, VECTOR_UNIT)


def operations_by_name(program: Program) -> dict[str, Single]:
    """Return the operations of a program, by name."""
    return {op.name: op for op, _ in walk_ops(program.body, program.segments)}

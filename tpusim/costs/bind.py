"""From a program to its tasks: every operation gets its seconds, bytes and links."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tpusim.costs.attention import attention_seconds
from tpusim.costs.collective import (
    DCN,
    NOTHING,
    PCIE,
    Route,
    capacities,
    dcn_route,
    delay_seconds,
    route,
)
from tpusim.costs.convolution import convolution_seconds
from tpusim.costs.matmul import matmul_seconds
from tpusim.costs.tasks import CORE, HBM, CostedProgram, Task, TaskLoop, TaskOp
from tpusim.costs.vector import group_seconds
from tpusim.hardware import Chip, Device, Placement, Slice
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.program import (
    Attention,
    Collective,
    CollectiveKind,
    Compute,
    Convolution,
    Dep,
    Loop,
    Matmul,
    Mode,
    Number,
    Op,
    Program,
    Transfer,
    Vector,
    Work,
)

HOST = "host"

_SECONDS: Mapping[type, tuple[str, Callable[..., Number]]] = {
    Matmul: ("matmul", matmul_seconds),
    Convolution: ("convolution", convolution_seconds),
    Attention: ("attention", attention_seconds),
    Vector: ("vector", group_seconds),
}


def work_seconds(work: Work, device: Device) -> Number:
    """Seconds of an operation alone on the device. Raises PlanError for a dtype without a rate."""
    return _SECONDS[type(work)][1](work, device)


@dataclass(frozen=True, slots=True)
class _Group:
    """A collective's group: its route and size within the slice, and its route across slices."""

    ici_axes: tuple[str, ...]
    dcn_axes: tuple[str, ...]
    ici: Route
    dcn: Route
    ici_size: int


@dataclass(frozen=True, slots=True)
class _Machine:
    """What the operations of one program are costed on; groups are worked out once each."""

    chip: Chip
    device: Device
    pod: Slice
    placement: Placement
    sizes: Mapping[str, int]
    groups: dict[tuple[CollectiveKind, tuple[str, ...], str], _Group] = field(default_factory=dict)

    def group(self, op: Collective) -> _Group:
        """The group of a collective."""
        key = (op.kind, op.axes, op.algorithm)
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = self._group(*key)
        return found

    def _group(self, kind: CollectiveKind, axes: tuple[str, ...], algorithm: str) -> _Group:
        dcn = tuple(axis for axis in axes if axis.startswith(DCN_PREFIX))
        ici = tuple(axis for axis in axes if axis not in dcn)
        spans = tuple(span for axis in ici for span in self.placement.spans(axis))
        slices = prod(self.sizes[axis] for axis in dcn)
        within = route(kind, spans, self.pod.topology, algorithm)
        size = prod(self.sizes[axis] for axis in ici)
        return _Group(ici, dcn, within, dcn_route(kind, slices), size)


def _compute(op: Compute, machine: _Machine) -> Task:
    """A task on the core that draws its HBM bytes evenly over its seconds."""
    label, seconds = _SECONDS[type(op.work)]
    return Task(
        name=op.name,
        phase=op.phase,
        label=label,
        work_s=float(seconds(op.work, machine.device)),
        bytes=float(op.work.read_bytes + op.work.write_bytes),
        uses=((HBM, 1),),
        deps=op.deps,
        allocs=op.allocs,
        frees=op.frees,
    )


def _transfer(op: Transfer) -> Task:
    """A task on the host's stream, over PCIe."""
    return Task(
        name=op.name,
        phase=op.phase,
        label=HOST,
        stream=HOST,
        bytes=float(op.bytes),
        uses=((PCIE, 1), (HBM, 1)),
        deps=op.deps,
        allocs=op.allocs,
        frees=op.frees,
    )


def _over(op: Collective, path: Route, nbytes: float, stream: str, chip: Chip) -> Task:
    """A collective that stays within the slice, or runs across slices only."""
    return Task(
        name=op.name,
        phase=op.phase,
        label="+".join(op.axes),
        stream=CORE if op.mode is Mode.SYNC else stream,
        delay_s=delay_seconds(path, chip),
        bytes=nbytes * path.share,
        uses=path.uses,
        deps=op.deps,
        allocs=op.allocs,
        frees=op.frees,
    )


def _split(op: Collective, group: _Group, chip: Chip) -> tuple[Task, Task]:
    """A collective within the slice and across slices: two tasks, one after the other.

    Reductions shrink to a shard first, gathers cross first, so that DCN carries 1/n of the tensor,
    as compiled programs for two slices do (libtpu 0.0.42.1). The second task keeps the name.
    """
    whole = op.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE)
    nbytes = float(op.bytes)
    crossing = nbytes if whole else nbytes / group.ici_size
    stream = _stream(group.ici_axes)
    within = _over(replace(op, axes=group.ici_axes), group.ici, nbytes, stream, chip)
    across = _over(replace(op, axes=group.dcn_axes), group.dcn, crossing, DCN, chip)
    inward = op.kind is CollectiveKind.ALL_GATHER
    first, last = (across, within) if inward else (within, across)
    name = f"{op.name}/{first.label}"
    return replace(first, name=name, frees=()), replace(last, deps=(Dep(name),), allocs=())


def _stream(axes: tuple[str, ...]) -> str:
    """The transfer stream of a group within the slice."""
    return f"ici:{','.join(axes)}"


def _collective(op: Collective, machine: _Machine) -> tuple[Task, ...]:
    """The tasks of a collective: none of its time is left where the group is one device."""
    group, chip = machine.group(op), machine.chip
    if group.dcn is NOTHING:
        return (_over(op, group.ici, float(op.bytes), _stream(op.axes), chip),)
    if group.ici is NOTHING:
        return (_over(op, group.dcn, float(op.bytes), DCN, chip),)
    return _split(op, group, chip)


def _tasks(op: Op, machine: _Machine) -> tuple[TaskOp, ...]:
    """The tasks of one operation."""
    if isinstance(op, Compute):
        return (_compute(op, machine),)
    if isinstance(op, Collective):
        return _collective(op, machine)
    if isinstance(op, Loop):
        return (TaskLoop(name=op.name, trips=op.trips, body=_body(op.body, machine)),)
    return (_transfer(op),)


def _body(body: tuple[Op, ...], machine: _Machine) -> tuple[TaskOp, ...]:
    """The tasks of a body, in order."""
    return tuple(task for op in body for task in _tasks(op, machine))


def cost_program(program: Program, pod: Slice, placement: Placement) -> CostedProgram:
    """The program as tasks on one device of the pod, and the links that they share.

    A synchronous collective runs on the core; any other on the stream of its axes (`ici:...`), or
    on `dcn`, and a transfer on `host`. A collective of one device keeps its allocations and takes
    no time. Links have the capacity of one device: see `capacities`.

    Raises PlanError for an axis that is not placed, a dtype that the chip cannot multiply, and an
    algorithm that the collective cannot use.
    """
    chip = pod.chip
    machine = _Machine(chip, chip.device, pod, placement, dict(program.axes))
    return CostedProgram(
        name=program.name,
        body=_body(program.body, machine),
        links=tuple(capacities(chip).items()),
        resident=program.resident,
    )

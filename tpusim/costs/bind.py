"""From a program to its tasks: every operation gets its seconds, bytes and links."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeGuard

from tpusim.costs.attention import attention_seconds
from tpusim.costs.communicate import Machine, collective_tasks
from tpusim.costs.convolution import convolution_seconds
from tpusim.costs.estimate import estimate_seconds
from tpusim.costs.host import INPUT, host_tasks
from tpusim.costs.links import FROM_HOST, TO_HOST, capacities
from tpusim.costs.matmul import matmul_seconds
from tpusim.costs.rates import hbm_seconds
from tpusim.costs.send import Sends
from tpusim.costs.skew import skew_seconds
from tpusim.costs.tasks import (
    HBM,
    CostedProgram,
    Task,
    TaskLoop,
    TaskOp,
    TaskSegment,
    TopTask,
    core_seconds,
    first_phase,
)
from tpusim.costs.vector import group_seconds
from tpusim.hardware import Device, Placement, Slice
from tpusim.program import (
    Attention,
    Barrier,
    Call,
    Collective,
    Compute,
    Convolution,
    Estimate,
    Loop,
    Matmul,
    Number,
    Op,
    Program,
    Segment,
    Several,
    TopOp,
    Transfer,
    TransferKind,
    Vector,
    Wait,
    Work,
    kind_of,
)

HOST = "host"
SKEW = "slice skew"
WAIT = "wait"

_SECONDS: Mapping[type, Callable[..., Number]] = {
    Matmul: matmul_seconds,
    Convolution: convolution_seconds,
    Attention: attention_seconds,
    Vector: group_seconds,
    Estimate: estimate_seconds,
}


def work_seconds(work: Work, device: Device) -> Number:
    """Seconds of an operation alone on the device. Raises PlanError for a dtype without a rate.

    Parts that are one operation are launched once.
    """
    if isinstance(work, Several):
        launches = (len(work.parts) - 1) * device.costs.op_launch
        return sum(work_seconds(part, device) for part in work.parts) - launches
    return _SECONDS[type(work)](work, device)


def _compute(op: Compute, machine: Machine) -> Task:
    """A task on the core that draws its HBM bytes evenly over its seconds."""
    return Task(
        name=op.name,
        phase=op.phase,
        label=kind_of(op.work),
        work_s=float(work_seconds(op.work, machine.device)),
        bytes=float(op.work.read_bytes + op.work.write_bytes),
        uses=((HBM, 1),),
        deps=op.deps,
        allocs=op.allocs,
        frees=op.frees,
    )


_TRANSFERS = {
    TransferKind.TO_HOST: (HOST, (TO_HOST,)),
    TransferKind.FROM_HOST: (HOST, (FROM_HOST,)),
    TransferKind.INPUT: (INPUT, (FROM_HOST,)),
    TransferKind.DMA: (str(TransferKind.DMA), ()),
    TransferKind.SPARSECORE: (str(TransferKind.SPARSECORE), ()),
}
"""What a breakdown calls a wait for each kind, and the links that it uses besides HBM."""


def _transfer(op: Transfer, machine: Machine) -> Task:
    """A task on its kind's own stream; what stays on the chip goes at the rate of copies."""
    label, links = _TRANSFERS[op.kind]
    alone = 0.0 if links else float(hbm_seconds(op.bytes, 0, machine.device))
    return Task(
        name=op.name,
        phase=op.phase,
        label=label,
        stream=str(op.kind),
        work_s=alone,
        bytes=float(op.bytes),
        uses=(*((link, 1) for link in links), (HBM, 1)),
        deps=op.deps,
        allocs=op.allocs,
        frees=op.frees,
    )


def _tasks(op: Op, machine: Machine) -> tuple[TaskOp, ...]:
    """The tasks of one operation."""
    if isinstance(op, Compute):
        return (_compute(op, machine),)
    if isinstance(op, Collective):
        return collective_tasks(op, machine)
    if isinstance(op, Wait):
        return (_wait(op),)
    if isinstance(op, Barrier):
        return (Task(name=op.name, phase=op.phase, label=SKEW, deps=op.deps),)
    if isinstance(op, Loop):
        return (TaskLoop(name=op.name, trips=op.trips, body=_body(op.body, machine)),)
    return (_transfer(op, machine),)


def _wait(op: Wait) -> Task:
    """A task of no length, before which the core waits."""
    return Task(
        name=op.name, phase=op.phase, label=WAIT, deps=op.deps, allocs=op.allocs, frees=op.frees
    )


def _body(body: tuple[Op, ...], machine: Machine) -> tuple[TaskOp, ...]:
    """The tasks of a body, in order."""
    return tuple(task for op in body for task in _tasks(op, machine))


def cost_program(program: Program, pod: Slice, placement: Placement) -> CostedProgram:
    """The program of all devices, of one lane, as tasks; see `cost_programs`."""
    return cost_programs((program,), pod, placement)[0]


def cost_programs(
    programs: Sequence[Program], pod: Slice, placement: Placement
) -> tuple[CostedProgram, ...]:
    """The programs of a pipeline's stages, in their order, as tasks.

    What is one object in several of them, a segment or an operation of a body, is costed once and
    stays one object, so the engine runs it once.

    Each is the program as tasks on one device of the pod, and the links that they share.

    A synchronous collective runs on the core; any other on the stream of its axes (`ici:...`), or
    on `dcn`, and a transfer on the stream of its kind. A collective of one device keeps its
    allocations and takes no time. Links have the capacity of one device: see `capacities`.

    Raises PlanError for an axis that is not placed, a dtype that the chip cannot multiply, and an
    algorithm that the collective cannot use.
    """
    machine = Machine.of(programs[0], pod, placement)
    found = capacities(pod.chip, pod.dcn_oversubscription, machine.cards.links())
    links, costs = tuple(found.items()), _Costs(machine, len(programs))
    return tuple(costs.lane(stage, program, links) for stage, program in enumerate(programs))


Links: TypeAlias = tuple[tuple[str, float], ...]


class _Costs:
    """What the lanes of one step share."""

    __slots__ = ("_known", "_segments", "_sends", "machine")

    def __init__(self, machine: Machine, stages: int) -> None:
        self.machine = machine
        self._sends = Sends(machine, stages)
        self._known: dict[int, tuple[TaskOp, ...]] = {}
        self._segments: dict[int, TaskSegment] = {}

    def lane(self, stage: int, program: Program, links: Links) -> CostedProgram:
        """The program of one stage."""
        segments = tuple(self._segment(segment) for segment in program.segments)
        phases = {segment.name: first_phase(segment.body) for segment in segments}
        body = tuple(task for op in program.body for task in self._top(op, phases))
        return CostedProgram(
            name=program.name,
            body=_with_skew(body, dict(links), segments, self.machine.pod),
            links=links,
            resident=program.resident,
            torus=self.machine.pod.topology.dims,
            host=host_tasks(program, self.machine.chip),
            segments=segments,
            ways=tuple(self._sends.ways(stage, program.body, phases)),
        )

    def _segment(self, segment: Segment) -> TaskSegment:
        found = self._segments.get(id(segment))
        if found is None:
            body = _body(segment.body, self.machine)
            found = self._segments[id(segment)] = TaskSegment(name=segment.name, body=body)
        return found

    def _top(self, op: TopOp, segments: Container[str]) -> tuple[TopTask, ...]:
        if isinstance(op, Call):
            if op.segment not in segments:
                raise ValueError(f"call {op.name!r} runs {op.segment!r}, which is no segment")
            return (op,)
        found = self._known.get(id(op))
        if found is None:
            found = self._known[id(op)] = _tasks(op, self.machine)
        return found


def _with_skew(
    body: tuple[TopTask, ...], links: Mapping[str, float], segments: Sequence[TaskSegment],
    pod: Slice,
) -> tuple[TopTask, ...]:  # fmt: skip
    """The body with the barriers' waits: a share of the time that its core works."""
    if pod.num_slices == 1:
        return body
    skew = skew_seconds(core_seconds(body, links, segments), pod.num_slices, pod.chip)
    return tuple(replace(op, delay_s=skew) if _is_barrier(op) else op for op in body)


def _is_barrier(op: TopTask) -> TypeGuard[Task]:
    return isinstance(op, Task) and op.label == SKEW

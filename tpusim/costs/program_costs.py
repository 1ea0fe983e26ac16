"""From a program to its tasks: every operation gets its seconds, bytes and links.

The host works beside the step. JAX dispatches asynchronously: a step is started while the one
before runs ("Asynchronous dispatch", JAX documentation). A device that is faster than its host
waits for it, so the host's seconds per step are a lower bound of the step, and cost nothing if the
step is longer. In a synchronous loop, whose host reads the loss of each step before it starts the
next, the devices wait for the host's turnaround in every step.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from tpusim.base.phase import Phase
from tpusim.costs.attention import attention_seconds
from tpusim.costs.cached_attention import cached_attention_seconds
from tpusim.costs.cached_linear import cached_linear_seconds
from tpusim.costs.compute import (
    estimate_seconds,
    group_seconds,
    hbm_seconds,
    step_matmul_seconds,
)
from tpusim.costs.convolution import convolution_seconds
from tpusim.costs.linear_attention import linear_attention_seconds
from tpusim.costs.links import FROM_HOST, TO_HOST
from tpusim.costs.network_tasks import (
    CollectiveCosts,
    KnownParts,
    StageMessageCosts,
    collective_tasks,
)
from tpusim.costs.tasks import (
    DISPATCH,
    HBM,
    HOST_LABEL,
    INPUT,
    ON_HOST,
    SKEW,
    WAIT_LABEL,
    CostedProgram,
    Task,
    TaskLoop,
    TaskOp,
    TaskSegment,
    TopTask,
    core_seconds,
    first_phase,
)
from tpusim.hardware import Chip, Device, Placement, Slice
from tpusim.program import (
    AttentionWork,
    Barrier,
    CachedAttentionWork,
    CachedLinearWork,
    Call,
    Collective,
    CombinedWork,
    Compute,
    ConvolutionWork,
    EstimatedWork,
    LinearAttentionWork,
    Loop,
    MatmulWork,
    Number,
    Op,
    Program,
    Segment,
    TopOp,
    Transfer,
    TransferKind,
    VectorWork,
    WaitOp,
    Work,
    kind_of,
)

_SECONDS_OF: Mapping[type, Callable[..., Number]] = {
    MatmulWork: step_matmul_seconds,
    ConvolutionWork: convolution_seconds,
    AttentionWork: attention_seconds,
    CachedAttentionWork: cached_attention_seconds,
    CachedLinearWork: cached_linear_seconds,
    LinearAttentionWork: linear_attention_seconds,
    VectorWork: group_seconds,
    EstimatedWork: estimate_seconds,
}


def work_seconds(work: Work, device: Device) -> Number:
    """Return the seconds of an operation of a step with no other beside it; its parts launch once.

    Raise PlanError if the chip has no rate for a dtype.
    """
    if isinstance(work, CombinedWork):
        launches = (len(work.parts) - 1) * device.costs.op_launch
        return sum(work_seconds(part, device) for part in work.parts) - launches
    return _SECONDS_OF[type(work)](work, device)


def _task(op: Compute | Transfer | WaitOp, **costs: Any) -> Task:
    """Return the task of an operation with these costs."""
    return Task(
        name=op.name, phase=op.phase, deps=op.deps, allocs=op.allocs, frees=op.frees, **costs
    )


def _compute_task(op: Compute, machine: CollectiveCosts) -> Task:
    """Return a task on the core that draws its HBM bytes evenly over its seconds."""
    seconds = float(work_seconds(op.work, machine.device))
    kind = kind_of(op.work)
    return _task(
        op,
        label=kind,
        work_s=seconds if kind == VECTOR else seconds * slowest_chip(machine.pod),
        bytes=float(op.work.read_bytes + op.work.write_bytes),
        uses=((HBM, 1),),
    )


VECTOR = "vector"
"""The kind of work that HBM bounds, whose bandwidth does not depend on a chip's clock."""

_TRANSFERS = {
    TransferKind.TO_HOST: (HOST_LABEL, (TO_HOST,)),
    TransferKind.FROM_HOST: (HOST_LABEL, (FROM_HOST,)),
    TransferKind.INPUT: (INPUT, (FROM_HOST,)),
    TransferKind.DMA: (str(TransferKind.DMA), ()),
    TransferKind.SPARSECORE: (str(TransferKind.SPARSECORE), ()),
}
"""The label of each kind in the breakdown, and the links that it uses besides HBM."""


def _transfer_task(op: Transfer, machine: CollectiveCosts) -> Task:
    """Return a task on its kind's own stream; within the chip it moves as fast as copies do.

    What a SparseCore picks moves at `gather_efficiency` of it.
    """
    label, links = _TRANSFERS[op.kind]
    picked = op.kind is TransferKind.SPARSECORE
    share = machine.device.costs.gather_efficiency if picked else 1.0
    alone = 0.0 if links else float(hbm_seconds(op.bytes, 0, machine.device)) / share
    return _task(
        op,
        label=label,
        stream=str(op.kind),
        work_s=alone,
        bytes=float(op.bytes),
        uses=(*((link, 1) for link in links), (HBM, 1)),
    )


def _op_tasks(op: Op, machine: CollectiveCosts) -> tuple[TaskOp, ...]:
    """Return the tasks of one operation."""
    if isinstance(op, Compute):
        return (_compute_task(op, machine),)
    if isinstance(op, Collective):
        return collective_tasks(op, machine)
    if isinstance(op, WaitOp):
        return (_task(op, label=WAIT_LABEL),)
    if isinstance(op, Barrier):
        return (Task(name=op.name, phase=op.phase, label=SKEW, deps=op.deps),)
    if isinstance(op, Loop):
        body = _body_tasks(op.body, machine)
        loop = TaskLoop(name=op.name, trips=op.trips, body=body, allocs=op.allocs, frees=op.frees)
        return (loop,)
    return (_transfer_task(op, machine),)


def _body_tasks(body: tuple[Op, ...], machine: CollectiveCosts) -> tuple[TaskOp, ...]:
    """Return the tasks of a body, in order."""
    return tuple(task for op in body for task in _op_tasks(op, machine))


def cost_program(program: Program, pod: Slice, placement: Placement) -> CostedProgram:
    """Return the program of all devices, of one lane, as tasks; see `cost_programs`."""
    return cost_programs((program,), pod, placement)[0]


def cost_programs(
    programs: Sequence[Program],
    pod: Slice,
    placement: Placement,
    known: KnownParts | None = None,
) -> tuple[CostedProgram, ...]:
    """Return the programs of a pipeline's stages, in order, as tasks on one device of the pod.

    known: see `CollectiveCosts`; for programs of one slice and mesh on several placements.

    A segment or operation that several programs share is costed once and stays one object, so the
    engine runs it once.

    A synchronous collective runs on the core; any other on the stream of its axes (`ici:...`), or
    on `dcn`, and a transfer on the stream of its kind. A collective of one device keeps its
    allocations and takes no time. Links have the capacity of one device: see `capacities`.

    Raise PlanError for an axis that is not placed, a dtype that the chip cannot multiply, and an
    algorithm that the collective cannot use.
    """
    return cost_lanes(programs, CollectiveCosts.of(programs[0], pod, placement, known))


def cost_lanes(programs: Sequence[Program], machine: CollectiveCosts) -> tuple[CostedProgram, ...]:
    """Return the programs of a pipeline's stages as tasks on a device of this machine."""
    links, costs = machine.link_rates, _ProgramCosts(machine, len(programs))
    return tuple(costs.lane(stage, program, links) for stage, program in enumerate(programs))


def cost_lane(program: Program, machine: CollectiveCosts) -> CostedProgram:
    """Return a program of all devices as tasks on a device of this machine."""
    return cost_lanes((program,), machine)[0]


Links: TypeAlias = tuple[tuple[str, float], ...]


class _ProgramCosts:
    """The costs that the lanes of one step share."""

    def __init__(self, machine: CollectiveCosts, stages: int) -> None:
        self.machine = machine
        self._sends = StageMessageCosts(machine, stages)
        self._known: dict[int, tuple[TaskOp, ...]] = {}
        self._segments: dict[int, TaskSegment] = {}

    def lane(self, stage: int, program: Program, links: Links) -> CostedProgram:
        """Return the tasks of one stage."""
        segments = tuple(self._segment(segment) for segment in program.segments)
        phases = {segment.name: first_phase(segment.body) for segment in segments}
        body = tuple(self._body(program.body, phases))
        skewed = _with_slice_skew(body, dict(links), segments, self.machine.pod)
        return CostedProgram(
            name=program.name,
            body=(*turnaround(program, self.machine.chip), *skewed),
            links=links,
            resident=program.resident,
            torus=self.machine.pod.topology.dims,
            host=host_tasks(program, self.machine.chip),
            segments=segments,
            messages=tuple(self._sends.messages(stage, program.body, phases)),
        )

    def _segment(self, segment: Segment) -> TaskSegment:
        found = self._segments.get(id(segment))
        if found is None:
            body = _body_tasks(segment.body, self.machine)
            found = self._segments[id(segment)] = TaskSegment(name=segment.name, body=body)
        return found

    def _body(self, body: Sequence[TopOp], segments: Container[str]) -> list[TopTask]:
        """Return the tasks of a body, with its calls of segments as they are."""
        tasks: list[TopTask] = []
        for op in body:
            if isinstance(op, Call):
                if op.segment not in segments:
                    raise ValueError(f"call {op.name!r} runs {op.segment!r}, which is no segment")
                tasks.append(op)
                continue
            found = self._known.get(id(op))
            if found is None:
                found = self._known[id(op)] = _op_tasks(op, self.machine)
            tasks += found
        return tasks


def _with_slice_skew(
    body: tuple[TopTask, ...],
    links: Mapping[str, float],
    segments: Sequence[TaskSegment],
    pod: Slice,
) -> tuple[TopTask, ...]:
    """Return the body with the barriers' delays: a share of the seconds of its core."""
    if pod.num_slices == 1:
        return body
    skew = skew_seconds(core_seconds(body, links, segments), pod.num_slices, pod.chip)
    return tuple(replace(op, delay_s=skew) if _is_barrier(op) else op for op in body)


def slowest_chip(pod: Slice) -> float:
    """Return the time that the array of a slice's slowest chip takes, over that of the mean.

    `1 + chip_jitter m`, with m the expected maximum of as many standard normal variables as the
    slice has chips: all wait for the slowest in the collectives of each layer. One model on 8, 16,
    32, 128 and 256 chips of v6e takes up to 5 % longer for it (see `costs.chip_jitter`).
    """
    return 1 + pod.chip.costs.chip_jitter * expected_maximum(pod.topology.chips)


def _is_barrier(op: TopTask) -> TypeGuard[Task]:
    return isinstance(op, Task) and op.label == SKEW


def skew_seconds(work_s: float, slices: int, chip: Chip) -> float:
    """Return the seconds that a step of `work_s` on each slice waits for the slowest of them.

    Each slice's step varies by `slice_jitter` of its length, and gradients that cross slices make
    all wait for the last: the expected maximum, which grows by about 2.3 % of the step per doubling
    (six pairs of runs, see `costs.slice_jitter`).
    """
    return work_s * chip.costs.slice_jitter * expected_maximum(slices)


@cache
def expected_maximum(count: int) -> float:
    """Return the expected largest of `count` independent standard normal variables.

    `n x integral of x phi(x) Phi(x)^(n-1)`: 0 for one, 0.564 for two, 2.07 for 32 (order
    statistics; David and Nagaraja, "Order Statistics", section 3.2).

    >>> round(expected_maximum(2), 4), round(expected_maximum(32), 3)
    (0.5642, 2.07)
    """
    if count == 1:
        return 0.0
    x = np.linspace(-9.0, 9.0, 18001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    below = np.cumsum(density) * (x[1] - x[0])
    return float((x * count * density * below ** (count - 1)).sum() * (x[1] - x[0]))


def host_tasks(program: Program, chip: Chip) -> tuple[Task, ...]:
    """Return the tasks of the host beside a step; none for a program without an input.

    One thread of the host starts the step and makes its batch, as a plain training loop does.
    """
    tasks: list[Task] = []
    for op in program.body:
        if isinstance(op, Transfer) and op.kind is TransferKind.INPUT:
            tasks += [_host_task(DISPATCH, DISPATCH, chip.costs.dispatch)] if not tasks else []
            tasks += [_host_task(f"make {op.name}", INPUT, float(op.host_s))]
    return tuple(task for task in tasks if task.delay_s)


def turnaround(program: Program, chip: Chip) -> tuple[Task, ...]:
    """Return the device's wait for the host between two steps, if their loop is synchronous."""
    waits = (op for op in program.body if isinstance(op, Transfer) and op.after_step)
    return tuple(
        Task(name="turnaround", phase=op.phase, label=DISPATCH, delay_s=chip.costs.turnaround)
        for op in waits
    )


def _host_task(name: str, label: str, seconds: float) -> Task:
    return Task(name=name, phase=Phase.FORWARD, label=label, stream=ON_HOST, delay_s=seconds)

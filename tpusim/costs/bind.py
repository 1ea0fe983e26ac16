"""From a program to its tasks: every operation gets its seconds, bytes and links."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeGuard

from tpusim.costs.attention import attention_seconds
from tpusim.costs.communicate import Machine, collective_tasks
from tpusim.costs.convolution import convolution_seconds
from tpusim.costs.host import INPUT, host_tasks
from tpusim.costs.links import FROM_HOST, TO_HOST, capacities
from tpusim.costs.matmul import matmul_seconds
from tpusim.costs.skew import skew_seconds
from tpusim.costs.tasks import HBM, CostedProgram, Task, TaskLoop, TaskOp, core_seconds
from tpusim.costs.vector import group_seconds
from tpusim.hardware import Device, Placement, Slice
from tpusim.program import (
    Attention,
    Barrier,
    Collective,
    Compute,
    Convolution,
    Loop,
    Matmul,
    Number,
    Op,
    Program,
    Transfer,
    TransferKind,
    Vector,
    Work,
)

HOST = "host"
SKEW = "slice skew"

_SECONDS: Mapping[type, tuple[str, Callable[..., Number]]] = {
    Matmul: ("matmul", matmul_seconds),
    Convolution: ("convolution", convolution_seconds),
    Attention: ("attention", attention_seconds),
    Vector: ("vector", group_seconds),
}


def work_seconds(work: Work, device: Device) -> Number:
    """Seconds of an operation alone on the device. Raises PlanError for a dtype without a rate."""
    return _SECONDS[type(work)][1](work, device)


def _compute(op: Compute, machine: Machine) -> Task:
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
    """A task on its direction's stream to or from the host, over PCIe."""
    link = TO_HOST if op.kind is TransferKind.TO_HOST else FROM_HOST
    label = INPUT if op.kind is TransferKind.INPUT else HOST
    return Task(
        name=op.name,
        phase=op.phase,
        label=label,
        stream=str(op.kind),
        bytes=float(op.bytes),
        uses=((link, 1), (HBM, 1)),
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
    if isinstance(op, Barrier):
        return (Task(name=op.name, phase=op.phase, label=SKEW, deps=op.deps),)
    if isinstance(op, Loop):
        return (TaskLoop(name=op.name, trips=op.trips, body=_body(op.body, machine)),)
    return (_transfer(op),)


def _body(body: tuple[Op, ...], machine: Machine) -> tuple[TaskOp, ...]:
    """The tasks of a body, in order."""
    return tuple(task for op in body for task in _tasks(op, machine))


def cost_program(program: Program, pod: Slice, placement: Placement) -> CostedProgram:
    """The program as tasks on one device of the pod, and the links that they share.

    A synchronous collective runs on the core; any other on the stream of its axes (`ici:...`), or
    on `dcn`, and a transfer on the stream of its kind. A collective of one device keeps its
    allocations and takes no time. Links have the capacity of one device: see `capacities`.

    Raises PlanError for an axis that is not placed, a dtype that the chip cannot multiply, and an
    algorithm that the collective cannot use.
    """
    chip = pod.chip
    machine = Machine.of(program, pod, placement)
    links = capacities(chip, pod.dcn_oversubscription)
    return CostedProgram(
        name=program.name,
        body=_with_skew(_body(program.body, machine), links, pod),
        links=tuple(links.items()),
        resident=program.resident,
        torus=pod.topology.dims,
        host=host_tasks(program, chip),
    )


def _with_skew(
    body: tuple[TaskOp, ...], links: Mapping[str, float], pod: Slice
) -> tuple[TaskOp, ...]:
    """The body with the barriers' waits: a share of the time that its core works."""
    if pod.num_slices == 1:
        return body
    skew = skew_seconds(core_seconds(body, links), pod.num_slices, pod.chip)
    return tuple(replace(op, delay_s=skew) if _is_barrier(op) else op for op in body)


def _is_barrier(op: TaskOp) -> TypeGuard[Task]:
    return isinstance(op, Task) and op.label == SKEW

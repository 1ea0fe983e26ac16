"""A program becomes tasks: streams, labels, links, delays."""

from dataclasses import replace
from math import pi, sqrt

import pytest

from tpusim.base import Phase, PlanError
from tpusim.costs import Task, TaskLoop, cost_program, matmul_seconds, work_seconds
from tpusim.hardware import Placement, Slice, Span
from tpusim.program import (
    Alloc,
    Barrier,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Loop,
    MatmulWork,
    Mode,
    Op,
    Program,
    Transfer,
    TransferKind,
    VectorWork,
    WaitOp,
)

POD = Slice("v5e", "16x16", num_slices=2)
PLACED = Placement(
    (("fsdp", (Span(0, 16),)), ("tensor", (Span(1, 16),)), ("one", ()), ("dcn_data", ()))
)
AXES = (("fsdp", 16), ("tensor", 16), ("one", 1), ("dcn_data", 2))
MATMUL = MatmulWork(1, 4096, 4096, 4096, "bf16", 6e7, 3e7, 1e6)
HELD = Alloc("w", 8.0, "weights")


def tasks(*ops: Op) -> tuple[Task | TaskLoop, ...]:
    return cost_program(Program(name="step", axes=AXES, body=ops), POD, PLACED).body


def task(op: Op) -> Task:
    (found,) = tasks(op)
    assert isinstance(found, Task)
    return found


def moved(task: Task) -> dict[str, float]:
    """Bytes on each link."""
    return {link: task.bytes * weight for link, weight in task.uses}


def gather(**changes: object) -> Collective:
    base = Collective(
        name="gather",
        phase=Phase.FORWARD,
        kind=CollectiveKind.ALL_GATHER,
        axes=("fsdp",),
        bytes=1.6e9,
        dtype="bf16",
        deps=(Dep("before", 1),),
        allocs=(HELD,),
        frees=("v",),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_computation_draws_its_bytes_over_its_seconds() -> None:
    found = task(Compute(name="wi", phase=Phase.BACKWARD, work=MATMUL, frees=("x",)))
    device = POD.chip.device
    assert (found.label, found.stream, found.phase) == ("matmul", "core", Phase.BACKWARD)
    assert found.work_s == matmul_seconds(MATMUL, device)
    assert (found.bytes, found.uses, found.frees) == (9e7, (("hbm", 1),), ("x",))
    assert found.bytes / found.work_s <= device.hbm_bandwidth


def test_a_collective_waits_then_fills_both_directions() -> None:
    found = task(gather())
    costs = POD.chip.costs
    assert (found.label, found.stream) == ("fsdp", "core")
    assert found.delay_s == pytest.approx(costs.collective_launch + 8 * costs.hop_latency)
    assert moved(found) == pytest.approx(
        {"ici:x+": 1.6e9 * 15 / 32, "ici:x-": 1.6e9 * 15 / 32, "hbm": 1.6e9 * 15 / 8}
    )
    assert (found.deps, found.allocs, found.frees) == ((Dep("before", 1),), (HELD,), ("v",))


def test_asynchronous_collectives_have_a_stream_for_their_axes() -> None:
    found = task(gather(axes=("fsdp", "tensor"), mode=Mode.ASYNC))
    assert (found.stream, found.label) == ("ici:fsdp,tensor", "fsdp+tensor")
    assert task(gather(mode=Mode.RING)).stream == "ici:fsdp"


def test_a_group_of_one_takes_no_time_and_keeps_its_memory() -> None:
    found = task(gather(axes=("one",)))
    assert (found.delay_s, found.work_s, found.bytes, found.uses) == (0, 0, 0, ())
    assert (found.allocs, found.frees) == ((HELD,), ("v",))


def test_across_slices_runs_on_dcn() -> None:
    found = task(gather(axes=("dcn_data",), kind=CollectiveKind.ALL_REDUCE, mode=Mode.ASYNC))
    assert (found.stream, found.moves) == ("dcn", None)
    assert moved(found)["dcn+"] == moved(found)["dcn-"] == 1.6e9
    costs = POD.chip.costs
    assert found.delay_s == pytest.approx(costs.collective_launch + 2 * costs.dcn_latency)


def test_a_reduction_over_both_shrinks_before_it_crosses() -> None:
    op = gather(axes=("fsdp", "dcn_data"), kind=CollectiveKind.ALL_REDUCE)
    within, across = tasks(op)
    assert isinstance(within, Task)
    assert isinstance(across, Task)
    assert (within.label, across.label, across.name) == ("fsdp", "dcn_data", "gather")
    assert moved(within)["ici:x+"] == pytest.approx(1.6e9 * 15 / 16)
    assert moved(across)["dcn+"] == 1.6e9 / 16
    assert (within.deps, across.deps) == (op.deps, (Dep(within.name),))
    assert (within.allocs, across.frees) == ((HELD,), ("v",))
    assert (within.frees, across.allocs) == ((), ())


def test_a_gather_over_both_crosses_first() -> None:
    across, within = tasks(gather(axes=("dcn_data", "fsdp")))
    assert isinstance(across, Task)
    assert isinstance(within, Task)
    assert (across.label, within.label) == ("dcn_data", "fsdp")
    assert moved(across)["dcn+"] == 1.6e9 / 16 / 2


def test_an_all_reduce_over_a_plane_adds_when_its_transfers_are_done() -> None:
    """Two operands read and a sum written of all but a device's own part, over HBM alone."""
    op = gather(axes=("fsdp", "tensor"), kind=CollectiveKind.ALL_REDUCE)
    moving, adding = tasks(op)
    assert isinstance(moving, Task)
    assert isinstance(adding, Task)
    assert adding.deps == (Dep(moving.name),)
    assert moved(adding) == pytest.approx({"hbm": 3 * 1.6e9 * 255 / 256})
    assert adding.work_s >= adding.bytes / POD.chip.hbm_bandwidth
    assert len(tasks(gather(kind=CollectiveKind.ALL_REDUCE))) == 1


def test_a_task_knows_its_messages_in_bytes_of_its_own() -> None:
    """What all chips send in the y direction is the task's bytes there on each of 256 links."""
    found = task(gather())
    assert found.moves is not None
    moves = found.moves()
    sent = sum(message.share * len(message.links) for message in moves.messages) * moves.nbytes
    assert sent == pytest.approx(256 * (moved(found)["ici:x+"] + moved(found)["ici:x-"]))
    assert (moves.launch_s, moves.hop_s) == pytest.approx(
        (POD.chip.costs.collective_launch, POD.chip.costs.hop_latency)
    )


def test_slices_wait_for_the_slowest_at_a_barrier() -> None:
    """A share of the core's seconds, and nothing where there is one slice."""
    work = Compute(name="wi", phase=Phase.FORWARD, work=MATMUL)
    computed, barrier = tasks(work, Barrier(name="b", phase=Phase.BACKWARD, axes=("dcn_data",)))
    assert isinstance(computed, Task)
    assert isinstance(barrier, Task)
    assert (barrier.label, barrier.work_s, barrier.bytes) == ("slice skew", 0, 0)
    jitter = POD.chip.costs.slice_jitter
    assert barrier.delay_s == pytest.approx(computed.work_s * jitter / sqrt(pi), rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "label", "links"),
    [
        (TransferKind.TO_HOST, "host", ("pcie+", "hbm")),
        (TransferKind.FROM_HOST, "host", ("pcie-", "hbm")),
        (TransferKind.INPUT, "input", ("pcie-", "hbm")),
        (TransferKind.DMA, "dma", ("hbm",)),
        (TransferKind.SPARSECORE, "sparsecore", ("hbm",)),
    ],
)
def test_each_kind_of_transfer_has_a_stream_and_its_links(
    kind: TransferKind, label: str, links: tuple[str, ...]
) -> None:
    found = task(Transfer(name="t", phase=Phase.FORWARD, kind=kind, bytes=5.0))
    assert (found.stream, found.label, found.bytes) == (kind, label, 5.0)
    assert found.uses == tuple((link, 1) for link in links)


def test_a_copy_on_the_chip_goes_at_the_rate_that_copies_reach() -> None:
    found = task(Transfer(name="t", phase=Phase.FORWARD, kind=TransferKind.DMA, bytes=1e9))
    assert found.work_s * POD.chip.hbm_bandwidth * POD.chip.costs.hbm_efficiency == pytest.approx(
        1e9
    )


def test_a_wait_takes_no_time_on_the_core_and_keeps_what_it_waits_for() -> None:
    found = task(WaitOp(name="w", phase=Phase.BACKWARD, deps=(Dep("t"),), frees=("a",)))
    assert (found.stream, found.delay_s, found.work_s, found.bytes) == ("core", 0, 0, 0)
    assert (found.deps, found.frees) == ((Dep("t"),), ("a",))


def test_loops_stay_loops() -> None:
    (loop,) = tasks(Loop(name="layers", trips=64, body=(gather(),)))
    assert isinstance(loop, TaskLoop)
    assert (loop.trips, len(loop.body)) == (64, 1)


def test_every_link_that_is_used_has_a_capacity() -> None:
    ops = (gather(), gather(name="d", axes=("dcn_data",)))
    program = cost_program(Program(name="step", axes=AXES, body=ops), POD, PLACED)
    capacities = dict(program.links)
    used = {link for each in program.body if isinstance(each, Task) for link, _ in each.uses}
    assert used <= set(capacities)
    assert capacities["ici:x+"] == 45e9
    assert capacities["hbm"] == POD.chip.hbm_bandwidth


def test_two_devices_of_a_chip_have_half_a_link_each() -> None:
    pod = Slice("7x", "4x4x4")
    program = Program(name="step", axes=(("fsdp", 4),), body=())
    placed = Placement((("fsdp", (Span(0, 4),)),))
    capacities = dict(cost_program(program, pod, placed).links)
    assert capacities["ici:z-"] == pytest.approx(45e9)
    assert capacities["hbm"] == pod.chip.hbm_bandwidth / 2
    assert capacities["die+"] == pod.chip.die_to_die_bandwidth


def test_a_dtype_without_a_rate_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(PlanError, match=r"dtype 'fp4': v5e has no matrix rate for it; .*bf16"):
        work_seconds(replace(MATMUL, dtype="fp4"), POD.chip.device)


def test_an_axis_without_a_place_is_refused() -> None:
    with pytest.raises(PlanError, match="no axis 'expert'"):
        tasks(gather(axes=("expert",)))


def test_a_group_takes_the_slower_of_bytes_and_operations() -> None:
    device = POD.chip.device
    launch = device.costs.vector_launch
    bytes_bound = work_seconds(VectorWork(1e9, 1e9, 1), device) - launch
    flops_bound = work_seconds(VectorWork(1, 1, 1e12), device) - launch
    assert bytes_bound == pytest.approx(2e9 / (device.hbm_bandwidth * device.costs.hbm_efficiency))
    assert flops_bound == pytest.approx(1e12 / device.vpu_flops / device.costs.vector_efficiency)

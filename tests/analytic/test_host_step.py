"""Steps that the host bounds: its dispatch, the making of a batch, and its copy over PCIe."""

from dataclasses import replace
from typing import Any

import pytest
from plans import plan_of, program_of, small

from tpusim.hardware import Chip, Slice, load_chip
from tpusim.plan import LOOPS
from tpusim.program import Transfer, TransferKind
from tpusim.results import Result
from tpusim.simulation import simulate

TINY = small(layers=1)
SECOND = 10**12  # picoseconds


def v5e(**changes: Any) -> Chip:
    return load_chip("v5e").replace(**changes)


def step(chip: Chip, mesh: dict[str, int], shape: str = "4x4", **changes: Any) -> Result:
    return simulate(TINY, plan_of(mesh, **changes), Slice(chip, shape))


def batch(mesh: dict[str, int], **changes: Any) -> Transfer:
    (found,) = (
        op
        for op in program_of(TINY, plan_of(mesh, **changes), Slice("v5e", "4x4")).body
        if isinstance(op, Transfer) and op.kind is TransferKind.INPUT
    )
    return found


def test_a_step_takes_as_long_as_its_dispatch() -> None:
    bound = step(v5e(dispatch="1 s"), {"data": 16})
    free = step(v5e(dispatch=0.0), {"data": 16})
    assert bound.timeline.total_ps == SECOND
    assert bound.breakdown_s["exposed dispatch"] == pytest.approx(1 - free.step_time_s)


def test_a_host_that_takes_twice_the_step_halves_the_speed() -> None:
    """What is exposed is what the step does not hide."""
    free = step(v5e(dispatch=0.0), {"data": 16})
    bound = step(v5e(dispatch=0.0), {"data": 16}, input_s=2 * free.step_time_s)
    assert bound.step_time_s == pytest.approx(2 * free.step_time_s)
    assert bound.breakdown_s["exposed input"] == pytest.approx(free.step_time_s)
    assert bound.mfu == pytest.approx(free.mfu / 2)


def test_one_thread_dispatches_and_makes_the_batch() -> None:
    both = step(v5e(dispatch="0.25 s"), {"data": 16}, input_s=0.5)
    assert both.timeline.total_ps == 0.75 * SECOND
    assert both.breakdown_s["exposed input"] == 0.5
    assert both.breakdown_s["exposed dispatch"] == pytest.approx(0.25, rel=0.01)


def test_the_devices_of_a_synchronous_loop_wait_for_each_turnaround() -> None:
    chip = v5e(turnaround="0.25 s")
    free, bound = (step(chip, {"data": 16}, loop=loop) for loop in LOOPS)
    assert bound.timeline.total_ps == free.timeline.total_ps + SECOND // 4
    assert bound.breakdown_s["exposed dispatch"] == 0.25


@pytest.mark.parametrize(
    ("mesh", "shards"),
    [({"data": 16}, 16), ({"data": 4, "tensor": 4}, 4), ({"fsdp": 8, "tensor": 2}, 8)],
)
def test_each_device_is_sent_its_own_tokens(mesh: dict[str, int], shards: int) -> None:
    """Four bytes each; devices that share tokens are each sent them."""
    assert batch(mesh).bytes == 4 * 32 * 16 / shards


def test_a_sequence_in_parts_is_sent_in_parts() -> None:
    assert batch({"data": 4, "seq": 4}, rules={"act_seq": "seq"}).bytes == 4 * 32 * 16 / 16


def test_all_microbatches_are_sent_once_a_step() -> None:
    assert batch({"data": 16}, microbatches=2) == batch({"data": 16})


@pytest.mark.parametrize(("name", "devices"), [("v5e", 1), ("7x", 2)])
def test_a_slow_pcie_bounds_the_step(name: str, devices: int) -> None:
    """512 sequences of 16 tokens for each of a chip's devices, over its share of 10 kB/s."""
    chip = load_chip(name).replace(pcie_bandwidth="10 kB/s", dispatch=0.0)
    pod = Slice(chip, "2x2x1" if devices > 1 else "2x2")
    plan = plan_of({"data": pod.devices}, global_batch=512 * pod.devices)
    found = simulate(TINY, plan, pod)
    assert found.step_time_s == pytest.approx(4 * 512 * 16 / (1e4 / devices))
    assert found.breakdown_s["exposed input"] > 0.99 * found.step_time_s


def test_the_copy_and_the_making_of_the_next_batch_overlap() -> None:
    """The copy of one batch takes 0.5 s, the making of the next one 0.5 s too."""
    slow = v5e(pcie_bandwidth="1 kB/s", dispatch=0.0)
    plan = plan_of({"data": 4}, global_batch=32)
    pod = Slice(slow, "2x2")
    made = simulate(TINY, replace(plan, input_s=0.5), pod)
    assert made.step_time_s == pytest.approx(4 * 128 / 1e3)
    assert made.timeline.total_ps == simulate(TINY, plan, pod).timeline.total_ps


def test_a_report_says_what_is_waited_for() -> None:
    text = " ".join(str(step(v5e(), {"data": 16}, input_s=2.0)).split())
    assert "input made in 2 s" in text
    assert "exposed input" in text

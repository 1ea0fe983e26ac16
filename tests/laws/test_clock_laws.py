"""A lower clock of the cores: compute slows down by it, memory and links do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import plan_of, small

from tpusim.costs import work_seconds
from tpusim.costs.compute import group_seconds
from tpusim.hardware import Slice, load_chip
from tpusim.program import MatmulWork, VectorWork
from tpusim.results import PlanResult
from tpusim.simulation import simulate

MESHES = ({"fsdp": 16}, {"data": 4, "tensor": 4}, {"fsdp": 4, "tensor": 4})
SHARES = st.sampled_from([0.1, 0.3, 0.5, 0.8, 0.95])


def step(mesh: dict[str, int], share: float, chip: str = "v5e") -> PlanResult:
    own = Slice(chip, "4x4").chip.clock
    pod = Slice(chip, "4x4", clock=share * own)
    return simulate(small(embed=512, mlp=2048), plan_of(mesh, global_batch=64, seq_len=512), pod)


@given(st.sampled_from(MESHES), SHARES, st.sampled_from(["v5e", "v6e"]))
def test_a_step_takes_longer_and_at_most_by_the_clock(
    mesh: dict[str, int], share: float, chip: str
) -> None:
    own, slow = step(mesh, 1, chip), step(mesh, share, chip)
    assert own.step_time_s <= slow.step_time_s <= own.step_time_s / share * (1 + 1e-9)
    assert slow.hbm_peak_bytes == own.hbm_peak_bytes
    assert slow.flops == own.flops
    ratio = own.step_time_s / slow.step_time_s
    assert slow.mfu == pytest.approx(own.mfu * ratio), "against the peak at the chip's own clock"


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_the_time_of_a_large_matmul_and_of_a_copy(share: float) -> None:
    """A matmul of 16384^3 is bound by the array, a copy of 1 GB by HBM."""
    own = Slice("v5e", "4x4").chip
    slow = own.at_clock(share * own.clock)
    square = MatmulWork(1, 16384, 16384, 16384, "bf16", 1.1e9, 0.5e9)
    copy = VectorWork(0.5e9, 0.5e9, 0)
    launch = own.costs.op_launch
    times = [work_seconds(square, chip.device) - launch for chip in (own, slow)]
    assert times[1] / times[0] == pytest.approx(1 / share, rel=0.01)
    assert work_seconds(copy, slow.device) == work_seconds(copy, own.device)


def test_relayouts_on_the_chip_slow_down_by_the_clock() -> None:
    """The cross-lane unit is a part of the core; a launch is not."""
    own = load_chip("7x")
    slow = own.at_clock(own.clock / 2)
    moved = VectorWork(0, 0, 0, crossing=1e6, compiled=True)
    launch = own.costs.chip_launch or 0.0
    took = [group_seconds(moved, chip.device) - launch for chip in (own, slow)]
    assert took[1] == pytest.approx(2 * took[0])

"""Buffers of experts where nothing is dropped: capacity for all that could arrive."""

from typing import Any

import pytest
from lowered import ExpertCapacity
from plans import any_program_of, flat, plan_of, small

from tpusim.base import PlanError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, MatmulWork, VectorWork
from tpusim.simulation import simulate

MESH = {"expert": 4, "fsdp": 2}
POD = Slice("v4", "2x2x2")


def moe(**changes: Any) -> Transformer:
    return small(**({"experts": 8, "experts_per_token": 2, "expert_mlp": 128} | changes))


def works(plan: Plan) -> dict[str, MatmulWork | VectorWork | float]:
    """What each operation of the layers does, and the bytes of collectives."""
    found: dict[str, MatmulWork | VectorWork | float] = {}
    for op, _ in flat(any_program_of(moe(), plan, POD).body):
        if isinstance(op, Compute) and isinstance(op.work, MatmulWork | VectorWork):
            found[op.name] = op.work
        if isinstance(op, Collective):
            found[op.name] = op.bytes
    return found


@pytest.mark.parametrize(
    ("devices", "experts", "choices", "factor", "rows"),
    [
        (1, 256, 8, 0, 1),
        (4, 256, 8, 0, 4),  # all tokens of the four devices could choose one's experts
        (128, 256, 8, 0, 32),  # but each of its two experts only once
        (4, 256, 8, 1.5, 1.5),
        (1, 256, 8, 1.5, 1),
    ],
)
def test_there_is_room_for_what_could_come(
    devices: int, experts: int, choices: int, factor: float, rows: float
) -> None:
    """The examples of MaxText's `get_ragged_buffer_size`."""
    assert ExpertCapacity(experts, choices, factor).over(devices, 1.0) == rows


def test_what_is_filled_takes_of_the_room() -> None:
    assert ExpertCapacity(8, 2).over(4, 1.6) * 1.6 == 4
    assert ExpertCapacity(8, 2, 1.5).over(4, 2.0) == 1, "nothing is dropped"


def test_passes_go_through_the_room_and_kernels_and_exchanges_do_not() -> None:
    mean, all_of_it = (
        works(plan_of(MESH, expert_buffer=factor, without_passes=["weight-gradients-last"]))
        for factor in (1.0, 0.0)
    )  # fmt: skip
    assert mean.keys() == all_of_it.keys()
    changed = {name for name in mean if mean[name] != all_of_it[name]}
    assert changed
    for name in changed:
        one, other = mean[name], all_of_it[name]
        assert isinstance(one, VectorWork)
        assert isinstance(other, VectorWork)
        assert (other.read_bytes, other.write_bytes) == (4 * one.read_bytes, 4 * one.write_bytes)
    assert {"layer/expert_silu", "bwd/layer/expert_silu/d", "bwd/layer/dispatched/dsum"} <= changed


def test_a_sum_over_tensor_goes_through_the_room_too() -> None:
    """Four experts' devices have 4 times the rows; what is exchanged is the same."""
    mesh = {"expert": 4, "tensor": 2}
    mean, all_of_it = (works(plan_of(mesh, expert_buffer=factor)) for factor in (1.0, 0.0))
    sums = {
        name: (mean[name], all_of_it[name])
        for name, one in mean.items()
        if isinstance(one, int | float) and one != all_of_it[name]
    }
    assert sums
    for name, (one, other) in sums.items():
        assert "all-to-all" not in name
        assert other == 4 * one
    assert any("expert_out" in name for name in sums)


def test_more_room_takes_more_memory_and_no_more_flops() -> None:
    results = [
        simulate(moe(embed=256, expert_mlp=512), plan_of(MESH, expert_buffer=factor), POD)
        for factor in (1.0, 1.5, 0.0)
    ]
    peaks = [result.hbm_peak_bytes for result in results]
    assert peaks == sorted(set(peaks))
    assert len({result.flops for result in results}) == 1


def test_a_capacity_sizes_its_buffers_itself() -> None:
    plan = plan_of(MESH, capacity_factor=1.0, dispatch="sort")
    again = "sort/layer/dispatched@expert"
    assert works(plan)[again] == works(plan_of(MESH, expert_buffer=1.0))[again]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"expert_buffer": 0.5}, "plan.expert_buffer is 0.5; write a number of at least 1"),
        ({"expert_buffer": 2.0, "capacity_factor": 1.0}, "a capacity gives buffers their size"),
    ],
)
def test_mistakes_are_told(changes: dict[str, float], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan_of(MESH, **changes).check_together()


def test_a_model_without_experts_has_no_such_buffers() -> None:
    with pytest.raises(PlanError, match=r"plan\.expert_buffer is 2\.0, but the model has no"):
        simulate(small(), plan_of({"fsdp": 8}).replace(expert_buffer=2.0), POD)

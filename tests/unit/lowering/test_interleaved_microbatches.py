"""Two microbatches across slices: both forward passes come before the first backward pass."""

from typing import Any

import pytest
from plans import plan_of, small

from tpusim.hardware import Slice
from tpusim.program import Loop
from tpusim.results import PlanResult
from tpusim.simulation import simulate

TWO = Slice("v5p", "2x2x4", num_slices=2)
FORWARD = "microbatches/forward"


def result(pod: Slice = TWO, **keys: Any) -> PlanResult:
    mesh = {"dcn_data": 2, "fsdp": 16} if pod is TWO else {"fsdp": 16}
    given = {"microbatches": 2, "global_batch": 128, "seq_len": 1024, "remat": "dots"}
    return simulate(small(embed=1024, mlp=4096), plan_of(mesh, **(given | keys)), pod)


def loops(made: PlanResult) -> dict[str, int]:
    return {op.name: op.trips for op in made.program.body if isinstance(op, Loop)}


def test_two_microbatches_across_slices_hold_what_both_save() -> None:
    one = result(global_batch=64, microbatches=1)
    two, four = result(), result(global_batch=256, microbatches=4)
    assert loops(two) == {FORWARD: 2, "microbatches": 2}
    saved = [made.memory_bytes["saved activations"] for made in (one, two, four)]
    assert saved == [saved[0], 2 * saved[0], saved[0]]


@pytest.mark.parametrize(
    "keys",
    [{"microbatches": 4}, {"pod": Slice("v5p", "2x2x4")}, {"lowering": "ideal"}],
    ids=lambda keys: next(iter(keys)),
)
def test_elsewhere_a_microbatch_ends_before_the_next(keys: dict[str, Any]) -> None:
    assert FORWARD not in loops(result(**keys))

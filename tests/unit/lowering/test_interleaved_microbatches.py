"""Two microbatches across slices: both are under way up to the first layer's backward pass."""

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


def flat(made: PlanResult) -> list[Loop]:
    """The loops within those over microbatches."""
    around = (op for op in made.program.body if isinstance(op, Loop))
    return [op for one in around for op in one.body if isinstance(op, Loop)]


def loops(made: PlanResult) -> dict[str, int]:
    return {op.name: op.trips for op in made.program.body if isinstance(op, Loop)}


def test_two_microbatches_across_slices_hold_what_both_save() -> None:
    one = result(global_batch=64, microbatches=1)
    two, four = result(), result(global_batch=256, microbatches=4)
    assert set(loops(two).values()) == {2}
    first, *_, last = loops(two)
    assert (first, last) == (FORWARD, "microbatches")
    saved = [made.memory_bytes["saved activations"] for made in (one, two, four)]
    assert saved == [saved[0], 2 * saved[0], saved[0]]


def test_each_operation_of_the_head_and_the_first_layer_runs_for_both_before_the_next() -> None:
    """The layer leaves its own loop, and what it computes again comes before the head."""
    names = [name.removeprefix("microbatches/") for name in loops(result(remat="full"))]
    again, logits, back = (
        names.index(name)
        for name in ("bwd/layer/wi_0 (first)", "logits", "bwd/layer/wi_0/dx (first)")
    )
    assert again < logits < back
    (layers,) = (op for op in flat(result(remat="full")) if op.name == "layers/d")
    assert layers.trips == small().layers - 1


def test_both_hold_the_first_layers_buffers_and_one_copy_of_its_weights() -> None:
    one = result(global_batch=64, microbatches=1, remat="full")
    held = {part.tensor: part for part in result(remat="full").timeline.memory[0].held}
    alone = {part.tensor: part for part in one.timeline.memory[0].held}
    both = {name for name, part in held.items() if part.count == 2}
    assert {"logits", "bwd/layer/mlp_hidden", "bwd/layer/mlp_in_0"} <= both
    assert held["bwd/layer/mlp_in_0"].bytes == 2 * alone["bwd/layer/mlp_in_0"].bytes
    assert all(part.count == 1 for part in held.values() if part.category == "gathered weights")


@pytest.mark.parametrize("remat", ["full", "none"])
def test_the_work_is_that_of_the_microbatches(remat: str) -> None:
    """Only how the parts are scheduled differs, so FLOPs are those of twice as many devices."""
    two, four = result(remat=remat), result(remat=remat, microbatches=4, global_batch=256)
    work = [made.flops.total - made.flops.optimizer for made in (two, four)]
    assert 2 * work[0] == work[1]


@pytest.mark.parametrize(
    "keys",
    [{"microbatches": 4}, {"pod": Slice("v5p", "2x2x4")}, {"lowering": "ideal"}],
    ids=lambda keys: next(iter(keys)),
)
def test_elsewhere_a_microbatch_ends_before_the_next(keys: dict[str, Any]) -> None:
    assert FORWARD not in loops(result(**keys))

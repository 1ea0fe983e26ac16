"""A step that does not fit computes the logits again, rather than hold them through the layers."""

from typing import Any

import pytest
from plans import plan_of, small

from tpusim.hardware import Slice
from tpusim.results import PlanResult
from tpusim.simulation import simulate

TWO = Slice("v4", "2x2x4", num_slices=2)
AGAIN = "logits (again)"


def result(sequences: int, pod: Slice = TWO, **keys: Any) -> PlanResult:
    mesh = {"dcn_data": 2, "fsdp": 16} if pod is TWO else {"fsdp": 16}
    size = {"embed": 4096, "mlp": 14336, "heads": 32, "vocab": 128256, "head_dim": 128}
    batch = sequences * 16 * pod.num_slices
    plan = plan_of(mesh, global_batch=batch, seq_len=2048, remat="full", **keys)
    return simulate(small(layers=8, **size), plan, pod)


def names(made: PlanResult) -> list[str]:
    return [op.name for op in made.program.body]


@pytest.mark.parametrize(
    ("sequences", "again", "fits"), [(16, False, True), (36, True, True), (120, False, False)]
)
def test_only_where_the_step_does_not_fit_and_would(
    sequences: int, again: bool, fits: bool
) -> None:
    """The program of 36 sequences needs 27.9 GiB so, and would need 38; of 26, 29.1 without."""
    made = result(sequences)
    assert (AGAIN in names(made)) is again
    assert made.fits is fits


def test_the_logits_are_no_longer_held_through_the_layers() -> None:
    """They are multiplied for once more, for their weights are gathered once more."""
    made = result(36)
    order = names(made)
    assert order.index("layers/d") < order.index(AGAIN) < order.index("logits/dw")
    assert order.index("all-gather/head@fsdp (again)") < order.index(AGAIN)
    head = made.model.embed * made.model.vocab * made.tokens
    assert made.flops.recompute - result(16).flops.recompute * 36 / 16 == 2 * head


@pytest.mark.parametrize(
    ("pod", "keys"),
    [(Slice("v4", "2x2x4"), {}), (TWO, {"lowering": "ideal"})],
    ids=["one", "ideal"],
)
def test_a_head_that_does_not_wait_is_left(pod: Slice, keys: dict[str, Any]) -> None:
    assert AGAIN not in names(result(64, pod, **keys))

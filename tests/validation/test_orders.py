"""Whether plans are ordered as their measurements are: published runs that differ in a decision."""

from functools import cache

import once
import pytest
from bounds import MEASURED

from tpusim.validation import RunOutcome, Validation

DECISIONS = ("slices", "dtype", "topology", "chip", "mesh", "exchange", "tiles", "batch")
"""Those that some published runs differ in, and in nothing else."""

LEAST_TAU_B, LEAST_SHARE = 0.77, 0.9
"""Of all pairs, and of those whose measured costs differ by more than 3 %. The aims are 0.9 and
0.95."""


def validated() -> Validation:
    return once.validated(MEASURED / "runs")


@cache
def outcomes() -> dict[str, RunOutcome]:
    return {one.run.id: one for one in validated().outcomes}


def seconds(name: str) -> float:
    """The predicted step of a run."""
    predicted = outcomes()[name].predicted_s
    assert predicted is not None
    return predicted


def test_published_runs_are_ordered_as_measured() -> None:
    found = validated().statistics["pairs"]
    assert tuple(found["by_decision"]) == DECISIONS
    assert found["pairs"] >= 81
    assert found["differing"] >= 54
    assert found["failed"] == 0
    assert found["tau_b"] >= LEAST_TAU_B
    assert found["share_ordered_right"] >= LEAST_SHARE


@pytest.mark.parametrize("decision", ["slices", "dtype", "tiles"])
def test_what_differs_in_these_decisions_is_ordered_right(decision: str) -> None:
    found = validated().statistics["pairs"]["by_decision"][decision]
    assert (found["tau_b"], found["share_ordered_right"]) == (1, 1)


def test_batches_that_differ_in_cost_are_ordered_right() -> None:
    assert validated().statistics["pairs"]["by_decision"]["batch"]["share_ordered_right"] == 1


def test_fsdp_over_all_devices_is_slower_than_beside_data() -> None:
    """Gemma 4 12B on 64 chips of 7x: 5.211 and 4.703 s. Shards of 30 rows fill no whole tiles."""
    name = "gh-01-gemma4-12b-7x-64-fsdp"
    assert seconds(f"{name}128") / seconds(f"{name}32") == pytest.approx(5.211 / 4.703, abs=0.05)


@pytest.mark.xfail(
    strict=True, reason="FSDP over 512 devices of 7x: reductions are hidden that programs wait for"
)
def test_fsdp_over_512_devices_is_slower_than_beside_data() -> None:
    """Hunyuan 3 on 256 chips of 7x: 22.547 and 20.091 s."""
    assert seconds("hy3-7x-256-dp1-pdb8") > seconds("hy3-7x-256-dp4-pdb8")


@pytest.mark.xfail(
    strict=True, reason="keys and values are gathered while the core waits: 13.1 s of 8.83"
)
def test_gathered_keys_and_values_are_as_fast_as_an_all_to_all() -> None:
    """Llama 2 7B, 32k tokens, context 16 on v5p-128: 8.83 and 8.90 s."""
    name = "gh-29-llama2-7b-32k-v5p-128-"
    assert seconds(f"{name}all-gather") == pytest.approx(seconds(f"{name}ulysses"), rel=0.05)


def test_the_ring_is_the_slowest_exchange() -> None:
    """16.38 s."""
    name = "gh-29-llama2-7b-32k-v5p-128-"
    assert seconds(f"{name}ring") > max(
        seconds(f"{name}{way}") for way in ("all-gather", "ulysses")
    )


def test_tuned_tiles_of_experts_are_faster() -> None:
    """Hunyuan 3 on 64 chips of 7x: 19.919 and 16.755 s; on 256: 20.091 and 17.119 s."""
    for name in ("hy3-7x-64-pdb8", "hy3-7x-256-dp4-pdb8"):
        assert seconds(name) > seconds(f"{name}-tile")


def test_many_small_experts_use_less_of_the_peak() -> None:
    """Mixtral of 56 experts top 14 and of 8 top 2 on v5p: 28 and 50.4 % MFU."""
    many = outcomes()["gh-30-mixtral-56x2048-v5p-64"].mfu
    few = outcomes()["gh-30-mixtral-8x14336-v5p-64"].mfu
    assert many is not None
    assert few is not None
    assert many < 0.7 * few

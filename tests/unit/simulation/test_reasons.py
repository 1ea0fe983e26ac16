"""Reasons: each fault of a run is named with its numbers, and what is said to save time does."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from extent import sample
from replays import small_replay

import tpusim as ts
from tpusim.hardware import placement_from
from tpusim.report import document
from tpusim.results import Reason
from tpusim.results.reason import ReasonKind, best_change
from tpusim.results.reasons import LEAST_SHARE, MOST_REASONS
from tpusim.runfile.read_run import changed_plan
from tpusim.simulation.advice import reasons as reasons_module
from tpusim.simulation.advice.reasons import MOST_SIMULATIONS

pytestmark = pytest.mark.usefixtures("advised")

V5P, V4, V5E = "v5p:4x4x4", "v4:4x4x4", "v5e:4x4"
CUT = {"fsdp": ["x[:2]", "y[:2]", "z"], "tensor": ["x[::2]", "y[::2]"]}
TENSOR = {"fsdp": 16, "tensor": 4}
TINY = {"layers": 2, "embed": 256, "mlp": 1024, "heads": 4, "vocab": 1000}

RUNS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "healthy": (V5P, {}, {"remat": "none", "global_batch": 512}),
    "small blocks": (V5P, {}, {"attention_block": [128, 128], "seq_len": 8192}),
    "large blocks": (
        V5P,
        {},
        {"attention_block": [2048, 2048], "attention_backward": "one-kernel", "seq_len": 8192},
    ),
    "narrow": (V5P, {}, {"mesh": {"stage": 2, "fsdp": 32}, "schedule": "1f1b",
                         "microbatches": 64, "global_batch": 2048}),
    "cut": (V4, {}, {"mesh": TENSOR, "placement": CUT}),
    "uncut": (V4, {}, {"mesh": TENSOR}),
    "open": (V5E, {}, {"mesh": {"fsdp": 16}, "global_batch": 64, "seq_len": 512}),
    "slices": ("v5e:4x4 x 2", {}, {"mesh": {"dcn_data": 2, "fsdp": 16}, "seq_len": 512,
                                   "global_batch": 64}),
    "bubble": (V5P, {"layers": 8}, {"mesh": {"stage": 4, "fsdp": 16}, "microbatches": 4,
                                    "schedule": "1f1b"}),
    "recomputed": (V5P, {}, {}),
    "replicated update": (V5P, {}, {"mesh": {"data": 64}, "seq_len": 512, "global_batch": 64}),
    "repeated": (V5P, {}, {"mesh": TENSOR, "rules": {"mlp": None, "act_mlp": None}}),
    "padded": (V5P, {"heads": 12, "kv_heads": 12}, {"mesh": {"fsdp": 8, "tensor": 8}}),
    "tiny": (V5E, TINY, {"mesh": {"fsdp": 16}, "seq_len": 64, "global_batch": 64}),
    "offloaded": (V5P, {}, {"offload_optimizer": True, "seq_len": 512}),
}  # fmt: skip
"""A slice, dimensions of the model and keys of the plan, by what the run is."""

FAULTS = [
    ("small blocks", ReasonKind.ATTENTION, "blocks of 128 x 128: ", "starts steps of the grid"),
    ("narrow", ReasonKind.NARROW_MATMULS, "too narrow to fill it", "with a side of "),
    (
        "cut",
        ReasonKind.TORUS,
        "over tensor",
        "tensor on x[::2],y[::2] has parts of torus dimensions",
    ),
    ("open", ReasonKind.TORUS, "over fsdp", "x,y do not close to a ring on this slice"),
    ("slices", ReasonKind.DCN, "over dcn_data across slices (DCN)", "the core waits"),
    ("bubble", ReasonKind.BUBBLE, "4 microbatches go through 4 stages (1f1b)", "the pipeline"),
    ("recomputed", ReasonKind.RECOMPUTATION, "computing activations again", "(remat full)"),
    ("replicated update", ReasonKind.OPTIMIZER, "its update moves", "GiB through the HBM"),
    ("repeated", ReasonKind.REPEATED_WORK, "of all FLOPs are repeated", "over tensor"),
    ("padded", ReasonKind.PADDING, "heads is 12, and is computed as 16", "of all FLOPs"),
    ("tiny", ReasonKind.LAUNCHES, "launches and latency take", "µs on average"),
    ("offloaded", ReasonKind.HOST, "offloaded to the host", "the core waits"),
]
"""A run, the reason that it has, and words of its sentence."""

WITHOUT = [
    *((kind, "healthy") for kind in ReasonKind
      if kind not in (ReasonKind.ATTENTION, ReasonKind.COLLECTIVES)),
    (ReasonKind.TORUS, "uncut"),
    (ReasonKind.OPTIMIZER, "offloaded"),
    (ReasonKind.OPTIMIZER, "bubble"),
]  # fmt: skip
"""A reason that a run does not have."""


@cache
def simulated(name: str) -> ts.PlanResult:
    pod, dims, keys = RUNS[name]
    given = {"layers": 4, "embed": 2048, "mlp": 8192, "heads": 16, "head_dim": 128, "vocab": 32000}
    plan = ts.Plan(**({"mesh": {"fsdp": 64}, "seq_len": 4096, "global_batch": 128} | keys))
    return ts.simulate(ts.models.Transformer(**(given | dims)), plan, pod)


def reason_of(name: str, kind: ReasonKind) -> Reason:
    return next(reason for reason in simulated(name).reasons() if reason.kind is kind)


@pytest.mark.parametrize(("name", "kind", "what", "why"), FAULTS, ids=[each[0] for each in FAULTS])
def test_a_fault_is_named_with_its_numbers(
    name: str, kind: ReasonKind, what: str, why: str
) -> None:
    reason = reason_of(name, kind)
    assert what in reason.because
    assert why in reason.because
    assert reason.evidence


@pytest.mark.parametrize(("kind", "name"), WITHOUT)
def test_a_run_without_the_fault_does_not_have_the_reason(kind: ReasonKind, name: str) -> None:
    assert kind not in {reason.kind for reason in simulated(name).reasons()}


@pytest.mark.parametrize("name", sample(RUNS, 5))
def test_what_a_change_saves_is_what_its_simulation_says(name: str) -> None:
    """On the placement of the run, unless the change has one."""
    result = simulated(name)
    for reason in result.reasons():
        if not reason.change:
            assert (reason.settings, reason.step_time_s, reason.saves) == ((), None, 0)
            continue
        plan = changed_plan(result.plan, reason.settings)
        moved = any(setting.startswith("plan.placement=") for setting in reason.settings)
        placement = placement_from(result.pod, plan.mesh, plan.placement) if moved else None
        again = ts.simulate(result.model, plan, result.pod, placement=placement or result.placement)
        assert again.step_time_s == reason.step_time_s
        assert reason.saves == pytest.approx(1 - again.step_time_s / result.step_time_s)
        assert reason.saves > 0
        assert again.fits >= result.fits
        assert f"{reason.change} saves {reason.saves:.1%} (simulated)" in str(reason)


@pytest.mark.parametrize("name", sample(RUNS, 5))
def test_reasons_are_few_large_and_the_largest_comes_first(name: str) -> None:
    shares = [reason.share for reason in simulated(name).reasons()]
    assert len(shares) <= MOST_REASONS
    assert all(share >= LEAST_SHARE for share in shares)
    assert shares == sorted(shares, reverse=True)


def test_few_changes_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    true = reasons_module.run_changed
    monkeypatch.setattr(
        reasons_module, "run_changed", lambda *given: runs.append(given) or true(*given)
    )
    pod, dims, keys = RUNS["tiny"]
    plan = ts.Plan(**(keys | {"global_batch": 128}))
    result = ts.simulate(ts.models.Transformer(**dims), plan, pod)
    assert runs == []
    assert result.reasons()
    assert 0 < len(runs) <= MOST_SIMULATIONS
    count = len(runs)
    result.reasons()
    assert (str(result), len(runs)) == (str(result), count)


def test_larger_blocks_are_offered_to_small_ones_alone() -> None:
    small = reason_of("small blocks", ReasonKind.ATTENTION)
    assert small.settings[0].startswith("plan.attention_block=")
    assert small.saves > 0.5
    large = reason_of("large blocks", ReasonKind.ATTENTION)
    assert not any("attention_block" in setting for setting in large.settings)
    assert large.evidence["rate"] > 3 * small.evidence["rate"]


def test_a_cut_ring_is_offered_a_placement_without_the_cut() -> None:
    reason = reason_of("cut", ReasonKind.TORUS)
    assert reason.change == "tensor on z"
    assert reason.step_time_s < simulated("cut").step_time_s


def test_slow_parts_are_named_and_saved_by_a_healthy_slice() -> None:
    chip = {"at": [0, 0], "compute": 0.7}
    model = ts.models.Transformer(**(TINY | {"embed": 1024, "mlp": 4096, "layers": 4}))
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=2048, global_batch=32)
    pod = ts.Slice("v5e", "4x4", slow={"chips": [chip]})
    result = ts.simulate(model, plan, pod)
    reason = next(each for each in result.reasons() if each.kind is ReasonKind.SLOW_PARTS)
    assert "for devices with slow parts" in reason.because
    healthy = ts.simulate(model, plan, pod.healthy, placement=result.placement)
    assert (reason.step_time_s, reason.settings) == (healthy.step_time_s, ())


def test_a_starved_input_is_named_with_its_stage() -> None:
    model = ts.models.Transformer(**TINY)
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=4096)
    feed = ts.Input(kind="jpeg", prefetch=1)
    result = ts.simulate(model, plan, V5E, input=feed)
    reason = next(each for each in result.reasons() if each.kind is ReasonKind.INPUT)
    assert result.input.starved_by in reason.because
    assert reason.change
    keys = tomllib.loads("\n".join(reason.settings))["input"]
    again = ts.simulate(model, plan, V5E, placement=result.placement, input=feed.replace(**keys))
    assert again.step_time_s == reason.step_time_s < result.step_time_s


def test_the_best_change_is_in_the_summary_with_its_key() -> None:
    result = simulated("small blocks")
    best = best_change(result.reasons())
    text = " ".join(str(result).split())
    assert best.kind is ReasonKind.ATTENTION
    assert f"best change {best.gain}: --set '{best.settings[0]}'" in text
    assert document(result)["reasons"] == [reason.facts() for reason in result.reasons()]


def test_a_result_put_together_by_hand_has_none() -> None:
    bare = replace(simulated("tiny"), reasoner=None)
    assert bare.reasons() == ()
    assert "best change tpusim advise simulates more changes" in " ".join(str(bare).split())


def test_a_compiled_program_has_reasons_without_changes() -> None:
    found = small_replay().reasons()
    assert all(reason.change == "" for reason in found)

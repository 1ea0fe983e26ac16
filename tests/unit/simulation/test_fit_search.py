"""What makes a plan fit: what is tried, in which order, what it costs, and its words."""

import json
import time
from pathlib import Path

import pytest
from commands import said
from extent import thorough
from plans import plan_of, small

import tpusim as ts
from tpusim.graph import Remat
from tpusim.results import Fit, PlanResult, WayKind, WaysToFit
from tpusim.runfile import changed_plan
from tpusim.simulation import simulate

MOE = {"mesh": {"fsdp": 32, "expert": 8}, "seq_len": 4096, "global_batch": 2048}
LONG = {"seq_len": 8192, "global_batch": 64}


def tight(result: PlanResult, fraction: float) -> PlanResult:
    """The same run on a chip with a fraction of the HBM that it needs."""
    chip = result.pod.chip.replace(hbm_usable_bytes=fraction * result.hbm_peak_bytes)
    return simulate(result.model, result.plan, result.pod.changed(chip=chip))


def ways_of(result: PlanResult) -> WaysToFit:
    found = result.ways_to_fit()
    assert found is not None
    return found


@pytest.mark.thorough
def test_deepseek_on_half_the_chips_fits_with_smaller_buffers_and_one_change_more() -> None:
    result = simulate("deepseek-v3", ts.Plan(**MOE), "7x:4x4x8")
    assert result.fit is Fit.TOO_LARGE
    first, *others = ways_of(result).ways
    assert first.kind is WayKind.TRAINING
    assert first.settings[0].startswith("plan.expert_buffer=")
    assert first.step_time_s < 1.1 * result.step_time_s
    assert WayKind.CHIPS in [way.kind for way in others]


def test_a_plan_that_fits_has_no_way() -> None:
    result = simulate(small(), plan_of({"fsdp": 16}), "v5e-16")
    assert result.ways_to_fit() is None


@pytest.mark.thorough
def test_the_last_answer_is_kept() -> None:
    model, plan = ts.models.load("llama3-8b"), ts.Plan(mesh={"fsdp": 16}, **LONG)
    result = simulate(model, plan, "v5e-16")
    assert ways_of(result) is ways_of(result)
    assert f"fits with   {ways_of(result).ways[0].command}\n" in str(result)


def test_a_sweep_searches_for_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(result: PlanResult) -> None:
        raise AssertionError(f"{result.title} is asked for its ways")

    monkeypatch.setattr(PlanResult, "ways_to_fit", refuse)
    model, plan = ts.models.load("llama3-8b"), ts.Plan(mesh={"fsdp": 16}, **LONG)
    space = ts.Space(base=plan, meshes=[{"fsdp": 16}])
    assert not ts.sweep(model, space, "v5e-16", workers=1)["fits"].any()


def test_what_is_not_needed_is_taken_back() -> None:
    """A single change is not followed by another that frees nothing that is needed."""
    model = ts.models.load("llama3-8b")
    plan = ts.Plan(mesh={"fsdp": 16}, **LONG)
    first = ways_of(simulate(model, plan, "v5e-16")).ways[0]
    for dropped in range(len(first.settings)):
        kept = [text for at, text in enumerate(first.settings) if at != dropped]
        without = simulate(model, changed_plan(plan, kept), "v5e-16")
        assert without.fit is not Fit.FITS or without.step_time_s > first.step_time_s


def test_what_there_is_room_for_is_saved_again() -> None:
    model = ts.models.load("llama3-8b")
    plan = ts.Plan(mesh={"fsdp": 32}, seq_len=4096, global_batch=64, remat="none")
    first = ways_of(simulate(model, plan, "v5e:4x8")).ways[0]
    remat = first.plan.remat
    assert remat.policy != "none"
    bare = simulate(model, first.plan.replace(remat=Remat(remat.policy)), "v5e:4x8")
    assert bare.step_time_s >= first.step_time_s
    assert bare.hbm_peak_bytes <= first.hbm_peak_bytes


@pytest.mark.thorough
def test_offloading_needs_room_on_the_hosts() -> None:
    result = tight(simulate(small(), plan_of({"fsdp": 16}, global_batch=16), "v5e-16"), 0.9)
    full = result.pod.chip.replace(host_bytes=1.0)
    again = simulate(result.model, result.plan, result.pod.changed(chip=full))
    for way in ways_of(again).ways:
        assert not any("offload" in text for text in way.settings)


@pytest.mark.thorough
def test_where_nothing_fits_the_reason_is_given() -> None:
    result = tight(simulate(small(), plan_of({"fsdp": 16}, global_batch=16), "v5e-16"), 0.01)
    ways = ways_of(result)
    if not ways.ways:
        assert ways.why.startswith(f"none of {ways.tried} plans that were tried fits")
        assert f"to fit      none of {ways.tried} plans" in str(result)


@pytest.mark.thorough
def test_a_given_placement_stays_or_is_given_again() -> None:
    plan = plan_of({"fsdp": 4, "tensor": 4}, placement={"fsdp": ["x"], "tensor": ["y"]})
    result = tight(simulate(small(), plan, "v5e:4x4"), 0.6)
    for way in ways_of(result).ways:
        again = simulate(result.model, way.plan, way.pod)
        assert again.placement_given
        assert again.step_time_s == way.step_time_s


@pytest.mark.thorough
@pytest.mark.parametrize("remat", [thorough("full"), "none"])
def test_the_search_ends_after_a_few_seconds(remat: str) -> None:
    """The layers of gemma2-27b have many operations; the bound is that of a busy machine."""
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=8192, global_batch=256, remat=remat)
    result = simulate("gemma2-27b", plan, "v5e-16")
    began = time.process_time()
    assert ways_of(result).tried > 5
    assert time.process_time() - began < 8


@pytest.mark.thorough
def test_the_reason_names_what_needs_least_and_the_largest_slice() -> None:
    plan = ts.Plan(mesh={"fsdp": 256}, seq_len=8192, global_batch=256)
    ways = ways_of(simulate("deepseek-v3", plan, "v5e-256"))
    assert not ways.ways
    assert "and v5e has no larger slice; the least need is" in ways.why
    assert str(ways).startswith(f"to fit      none of {ways.tried} plans")


@pytest.mark.thorough
@pytest.mark.usefixtures("unadvised")
def test_json_of_a_run_has_its_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the settings of the first, on the command line, give its numbers."""
    file = tmp_path / "run.toml"
    ts.write_run(file, "deepseek-v3", ts.Plan(**MOE), "7x:4x4x8")
    advised = json.loads(said(["advise", str(file), "--quick", "--json"], capsys)[1])
    first = advised["to_fit"]["ways"][0]
    settings = [word for setting in first["settings"] for word in ("--set", setting)]
    again = json.loads(said(["simulate", str(file), *settings, "--json"], capsys)[1])
    for key in ("step_time_s", "hbm_peak_bytes", "fit", "fit_odds"):
        assert again[key] == first[key]
    assert again["to_fit"] is None

"""Advice: the changes that are tried, their words, and results that have no plan."""

from dataclasses import replace

import pytest
from plans import plan_of, small
from replays import POD, placed, small_replay

import tpusim as ts
from tpusim.base import PlanError
from tpusim.costs import capacities
from tpusim.hardware import load_chip
from tpusim.results import Change, ChangeKind, Fit, fit_of
from tpusim.simulation import simulate
from tpusim.simulation.advice.plan_changes import plan_changes

pytestmark = pytest.mark.usefixtures("advised")

V5E = ts.Slice("v5e", "4x4")


def tried(**changes: object) -> dict[str, object]:
    """Each change of a plan of a small model on 4x4 chips, and its keys."""
    plan = plan_of({"fsdp": 4, "tensor": 4}, **changes)
    result = simulate(small(), plan, V5E)
    return {change.what: dict(change.keys) for change in plan_changes(result)}


def test_neighbours_of_a_mesh_move_a_factor_of_two() -> None:
    found = [keys["mesh"] for keys in tried().values() if "mesh" in keys]
    assert found == [{"fsdp": 2, "tensor": 8}, {"fsdp": 8, "tensor": 2}]


def test_the_microbatch_is_halved_and_doubled_where_it_can_be() -> None:
    found = tried(microbatches=2)
    assert found["4 microbatches"] == {"microbatches": 4}
    assert found["1 microbatch"] == {"microbatches": 1}
    assert "1 microbatch" not in tried()


def test_what_is_saved_can_go_to_the_host_and_back() -> None:
    assert tried(save=["q"])["q on the host"] == {"save": [], "offload": ["q"]}
    found = tried(offload=["q"], offload_optimizer=True)
    assert found["q saved"] == {"save": ["q"], "offload": []}
    assert found["the optimizer state in HBM"] == {"offload_optimizer": False}
    assert tried()["the layers' inputs on the host"] == {"offload": ["layer_in"]}


def test_other_policies_and_batches_are_tried() -> None:
    found = tried(remat="minimal")
    assert {"remat full", "remat dots", "remat none"} <= set(found)
    assert found["half the global batch (16)"] == {"global_batch": 16}


@pytest.mark.thorough
def test_a_mesh_with_a_given_placement_gets_the_one_that_was_found() -> None:
    plan = plan_of({"fsdp": 4, "tensor": 4}, placement={"fsdp": ["x"], "tensor": ["y"]})
    advice = simulate(small(), plan, V5E).advice(quick=True)
    moved = [change for change in advice.changes if change.what.startswith("mesh ")]
    assert moved
    for change in moved:
        assert [text.partition("=")[0] for text in change.settings] == [
            "plan.mesh", "plan.placement",
        ]  # fmt: skip
        assert change.plan is not None
        again = simulate(small(), change.plan, V5E)
        assert again.step_time_s == change.step_time_s


def test_what_cannot_be_simulated_is_refused_with_its_reason() -> None:
    advice = simulate(small(), plan_of({"fsdp": 16}, global_batch=16), V5E).advice(quick=True)
    refused = dict(advice.refused)
    assert "global_batch" in refused["half the global batch (8)"]
    assert f"{len(refused)} more cannot be simulated" in str(advice)


def test_a_dimension_of_its_own_bandwidth_has_it_on_its_links_alone() -> None:
    chip = load_chip("v4")
    before, after = capacities(chip), capacities(chip.with_ici(1, 1.5))
    assert {link for link in before if before[link] != after[link]} == {"ici:y+", "ici:y-"}
    assert after["ici:y+"] == 1.5 * before["ici:y+"]


def test_a_slice_of_other_chips_is_the_same_otherwise() -> None:
    pod = ts.Slice("7x", "4x4x8", 2, dcn_oversubscription=2, clock="1.5 GHz",
                   slow={"chips": [{"at": [0, 0, 0], "hbm": 0.5}]})  # fmt: skip
    twisted = ts.Slice("v4", "4x4x8_twisted")
    assert pod.changed(chip=pod.chip) == pod
    assert twisted.changed(chip=twisted.chip) == twisted


def sentence(saves: float, need: float = 1.0, kind: ChangeKind = ChangeKind.PLAN) -> str:
    return str(
        Change(
            kind=kind,
            what="remat full",
            settings=(),
            plan=None,
            pod=POD,
            placement=placed(),
            step_time_s=1.0,
            saves=saves,
            hbm_peak_bytes=need * 2**30,
            hbm_bytes=2**31,
            fit=fit_of(need * 2**30, 2**31),
        )
    )


def test_a_change_is_a_sentence() -> None:
    assert sentence(0.123) == "remat full: saves 12.3% (simulated)"
    assert sentence(-0.5) == "remat full: takes 50.0% more (simulated)"
    assert sentence(4e-4) == sentence(-4e-4) == "remat full: changes nothing (simulated)"
    assert (
        sentence(0.1, 3) == "remat full: saves 10.0% (simulated), but does not fit: 3 GiB of 2 GiB"
    )
    assert "may not fit" in sentence(0.1, 1.99)
    assert fit_of(1.99 * 2**30, 2**31) is Fit.BORDERLINE


@pytest.mark.parametrize("saves", [0.4, 0.0921, -0.03])
def test_a_rate_that_gains_more_than_itself_or_loses_changes_decisions(saves: float) -> None:
    assert "as the compiler would then lower the step differently" in sentence(
        saves, kind=ChangeKind.MACHINE
    )
    assert sentence(saves).endswith("(simulated)")


@pytest.mark.parametrize("saves", [0.0, 0.05, 1 - 1 / 1.1])
def test_a_rate_gains_as_much_as_itself_at_most(saves: float) -> None:
    assert sentence(saves, kind=ChangeKind.MACHINE).endswith("(simulated)")


@pytest.mark.thorough
def test_no_change_of_a_plan_that_does_not_fit_needs_more_memory() -> None:
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=4096, global_batch=512, remat="full")
    result = ts.simulate("llama3.1-8b", plan, "v5e-16")
    assert result.fit is Fit.TOO_LARGE
    assert result.adviser is not None
    reasons = result.advice(quick=True).reasons
    assert any("remat full" in reason.because for reason in reasons)
    assert not [each for reason in reasons for each in reason.settings if "remat" in each]


def test_a_replayed_program_has_no_plan_to_change() -> None:
    advice = small_replay().advice()
    assert {change.kind for change in advice.changes} == {ChangeKind.MACHINE}
    assert "a compiled program has no plan" in advice.notes[0]
    whats = {change.what for change in advice.changes}
    assert {"10% more MXU rate", "10% more HBM bandwidth", "10% faster launches"} <= whats
    cycles = small_replay(costs="compiler").advice()
    assert "10% more MXU rate" not in {change.what for change in cycles.changes}
    assert "compiler's cycles" in cycles.notes[1]


def test_a_result_put_together_by_hand_has_no_advice() -> None:
    made = replace(simulate(small(), plan_of({"fsdp": 16}), V5E), adviser=None)
    with pytest.raises(PlanError, match=r"does not know how it was simulated.*ts.simulate"):
        made.advice()

"""`simulate` takes a compiled program in place of a model, a plan and a slice."""

from dataclasses import replace
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.base import PlanError

HLO = Path(__file__).parents[2] / "data" / "hlo" / "plain" / "scan_mlp_v5e_2x2.hlo.gz"
MODEL = ts.models.Transformer(layers=1, embed=128, mlp=128, heads=1, vocab=128)
PLAN = ts.Plan(mesh={"fsdp": 4}, seq_len=16, global_batch=4)
POD = ts.Slice("v5e", "2x2")


def test_both_doors_lead_to_the_same_result() -> None:
    pytest.importorskip("jaxlib.xla_client")
    from tpusim.simulation import replay

    compiled = ts.xla.load(HLO)
    result = ts.simulate(compiled, pod=POD, costs="model")
    assert isinstance(result, ts.ReplayResult)
    assert result == replay(compiled, POD, costs="model")
    assert result.timeline.total_ps == ts.simulate(compiled, pod=POD, fold=False).timeline.total_ps


def test_a_mesh_names_the_groups() -> None:
    pytest.importorskip("jaxlib.xla_client")
    result = ts.simulate(ts.xla.load(HLO), pod=POD, mesh={"fsdp": 4})
    assert dict(result.program.axes) == {"fsdp": 4}
    assert "exposed fsdp" in result.breakdown_s
    assert "placement   fsdp=4 on x,y" in str(result)


def test_flops_that_the_chips_cannot_compute_make_no_mfu() -> None:
    pytest.importorskip("jaxlib.xla_client")
    compiled = ts.xla.load(HLO)
    told = ts.simulate(compiled, pod=POD, model_flops=1e9)
    assert told.mfu == pytest.approx(1e9 / 4 / 197e12 / told.step_time_s)
    peak = told.peak_flops * told.step_time_s
    assert ts.simulate(compiled, pod=POD, model_flops=0.99 * peak).mfu == pytest.approx(0.99)
    most = ts.simulate(compiled, pod=POD, model_flops=3 * peak)
    assert (most.mfu, most.step_time_s) == (None, told.step_time_s)
    assert "which is 3 times what v5e:2x2 computes in this step" in " ".join(str(most).split())


def test_what_a_compiled_program_brings_is_not_given() -> None:
    compiled = ts.xla.load(HLO)
    with pytest.raises(PlanError, match="plan is given, but a compiled program brings its own"):
        ts.simulate(compiled, PLAN, POD)  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="network is given, but"):
        ts.simulate(compiled, pod=POD, network="hops")  # type: ignore[call-overload]


def test_what_stands_in_the_wrong_place_is_said() -> None:
    compiled = ts.xla.load(HLO)
    for given, sentence in (
        ({"pod": 4}, r"the slice is an int \(4\); write simulate\(compiled, pod="),
        ({"pod": POD, "mesh": "fsdp=4"}, "mesh is 'fsdp=4'; write the sizes of axes by name"),
        ({"pod": POD, "model_flops": "1e12"}, "model_flops is '1e12'"),
        ({"plan": POD}, "v5e:2x2 stands where a plan does; write simulate"),
    ):
        with pytest.raises(PlanError, match=sentence):
            ts.simulate(compiled, **given)  # type: ignore[call-overload]
    with pytest.raises(PlanError, match=r"the model is 'step.hlo', a path; write ts.read_run"):
        ts.simulate("step.hlo")  # type: ignore[call-overload]
    with pytest.raises(PlanError, match=r"the model is a function; compile it first"):
        ts.simulate(lambda weights: weights)  # type: ignore[call-overload]


def test_another_slice_or_mesh_than_the_programs_own_is_a_note() -> None:
    pytest.importorskip("jaxlib.xla_client")
    compiled = replace(ts.xla.load(HLO), slice=POD, mesh=(("fsdp", 4),))
    notes = " ".join(ts.simulate(compiled, pod=ts.Slice("v4", "2x2x1"), mesh={"data": 4}).remarks)
    assert "compiled for v5e:2x2: for v4:2x2x1 the compiler would make another program" in notes
    assert "compiled for the mesh fsdp=4, and data=4 names its groups" in notes
    assert not any("compiled for" in note for note in ts.simulate(compiled).remarks)


def test_what_is_for_compiled_programs_is_not_for_plans() -> None:
    given = {"costs": "model", "mesh": {"fsdp": 4}, "model_flops": 1e12, "padding_taps": False}
    for name, value in given.items():
        with pytest.raises(PlanError, match=f"{name} is given, but it is for compiled programs"):
            ts.simulate(MODEL, PLAN, POD, **{name: value})
    with pytest.raises(PlanError, match=r"a model needs a plan and a slice"):
        ts.simulate(MODEL)  # type: ignore[call-overload]

"""Plans of a known form: recorded steps give what lowering each plan gives."""

from dataclasses import replace

import pytest

import tpusim as ts
from tpusim.base.errors import PlanError
from tpusim.costs import cost_program
from tpusim.engine import CodeRun, Race, compile_lane
from tpusim.hardware import candidates
from tpusim.pipeline.planned_step import planned_step
from tpusim.simulation import plan_run, recorded_runs
from tpusim.simulation.loads import code_totals
from tpusim.simulation.recorded_runs import RecordedRuns

MODEL = ts.models.Transformer(
    name="m", layers=4, embed=2048, heads=16, head_dim=128, mlp=8192, vocab=32000
)
POD = ts.Slice("v5e", "4x4")


class Nothing:
    """Recorded runs that know no form."""

    def fastest(self, *_: object, **__: object) -> None:
        return None


def plan(**keys: object) -> ts.Plan:
    given = {"mesh": {"fsdp": 4, "tensor": 4}, "seq_len": 1024, "global_batch": 32, "remat": "full"}
    return ts.Plan(**(given | keys))  # type: ignore[arg-type]


def ordinary(made: ts.Plan, monkeypatch: pytest.MonkeyPatch) -> ts.PlanResult:
    with monkeypatch.context() as patch:
        patch.setattr(plan_run, "RECORDED", Nothing())
        return ts.simulate(MODEL, made, POD)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> RecordedRuns:
    fresh = RecordedRuns()
    monkeypatch.setattr(plan_run, "RECORDED", fresh)
    return fresh


def recordings(runs: RecordedRuns) -> int:
    return sum(len(form.steps) for form in runs._forms.values())


VARIANTS = [
    plan(),
    plan(global_batch=64),
    plan(mesh={"fsdp": 2, "tensor": 8}),
    plan(mesh={"fsdp": 8, "tensor": 2}, global_batch=128),
    plan(global_batch=64, microbatches=2),
    plan(mesh={"fsdp": 16, "tensor": 1}),
    plan(placement={"fsdp": ["y"], "tensor": ["x"]}, global_batch=96),
]


def test_results_are_those_of_lowering_each_plan(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made in (*VARIANTS, *VARIANTS):
        found, expected = ts.simulate(MODEL, made, POD), ordinary(made, monkeypatch)
        assert found == expected, made
        assert str(found) == str(expected)
    assert 0 < recordings(runs) <= len(VARIANTS)


def test_the_second_plan_of_a_form_is_recorded_and_others_of_its_kind_are_not(
    runs: RecordedRuns,
) -> None:
    counts = []
    for batch in (1024, 2048, 3072, 4096):
        ts.simulate(MODEL, plan(global_batch=batch, placement={"fsdp": "y", "tensor": "x"}), POD)
        counts.append(recordings(runs))
    assert counts == [0, 1, 1, 1]


def test_a_plan_of_another_form_is_not_taken_for_one_that_is_known(runs: RecordedRuns) -> None:
    for keys in ({}, {}, {"remat": "none"}, {"rules": {"mlp": None}}, {"seq_len": 2048}):
        ts.simulate(MODEL, plan(**keys), POD)
    assert len(runs._forms) == 4


def test_mistakes_get_the_same_sentence(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    ts.simulate(MODEL, plan(), POD)
    ts.simulate(MODEL, plan(), POD)
    wrong = plan(global_batch=30)
    with pytest.raises(PlanError) as expected:
        ordinary(wrong, monkeypatch)
    with pytest.raises(PlanError) as found:
        ts.simulate(MODEL, wrong, POD)
    assert str(found.value) == str(expected.value)
    assert "Traced" not in str(found.value)


def test_no_more_steps_and_forms_are_kept_than_allowed(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_runs, "MOST_STEPS", 0)
    assert ts.simulate(MODEL, plan(), POD) == ts.simulate(MODEL, plan(), POD)
    assert recordings(runs) == 0
    monkeypatch.setattr(recorded_runs, "MOST_FORMS", 2)
    for length in (128, 256, 512):
        ts.simulate(MODEL, plan(seq_len=length), POD)
    assert len(runs._forms) == 2


def test_forms_go_when_their_steps_are_too_many_in_all(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_runs, "MOST_STEPS", 1)
    place = {"fsdp": "y", "tensor": "x"}
    for length in (128, 128, 256, 256):
        ts.simulate(MODEL, plan(seq_len=length, placement=place), POD)
    assert recordings(runs) == 1


def test_programs_are_made_when_they_are_asked_for(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    ts.simulate(MODEL, plan(), POD)
    found = ts.simulate(MODEL, plan(), POD)
    assert found.program == ordinary(plan(), monkeypatch).program
    assert replace(found, lane=0) == found


def test_a_run_that_cannot_win_ends_early_with_a_bound_above_the_best() -> None:
    made = plan(mesh={"fsdp": 16}, global_batch=16, seq_len=128)
    placement = candidates(POD, made.mesh)[0]
    (program,) = planned_step(MODEL, made, POD).programs_on(placement)
    code = compile_lane(cost_program(program, POD, placement))
    core_ps, whole = code_totals(code).core_ps, CodeRun(code)
    assert core_ps < whole.device_ps
    broken_off = []
    for best_ps in range(core_ps, whole.device_ps + 2, (whole.device_ps - core_ps) // 20):
        run = CodeRun(code, race=Race(best_ps, core_ps))
        if run.device_ps != whole.device_ps:
            assert best_ps < run.device_ps < whole.device_ps
            broken_off.append(best_ps)
    assert broken_off
    assert CodeRun(code, race=Race(whole.device_ps, core_ps)).timeline() == whole.timeline()

"""`tpusim calibrate` and `[slice] calibration`: from measurements to results that say so."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from commands import run, said
from noisy_steps import trial_of
from synthetic_profiles import Fault, synthetic_profile

import tpusim as ts
from tpusim.calibration.calibrate import learnt_from
from tpusim.calibration.estimate import Rows
from tpusim.calibration.measured_steps import TrialFactors
from tpusim.calibration.profiled_steps import KINDS
from tpusim.compiler.compiled import load
from tpusim.hardware import FACTORS, least_factor, read_calibration
from tpusim.program import AttentionWork, ConvolutionWork, MatmulWork, VectorWork

PROGRAM = Path(__file__).parents[2] / "data" / "hlo" / "decoder_v5p_2x2x1.hlo.gz"
RUN = """
[slice]
chip = "{chip}"
topology = "{topology}"
{more}
[model]
embed = 1024
mlp = 4096
heads = 8
layers = 4
vocab = 32000
[plan]
mesh = {{ fsdp = 16 }}
seq_len = 2048
global_batch = {batch}
"""


def run_file(
    path: Path, step_s: float = 0.0, chip: str = "v5e", more: str = "", batch: int = 64
) -> Path:
    topology = "4x4" if chip in ("v5e", "v6e") else "2x2x4"
    text = RUN.format(chip=chip, topology=topology, more=more, batch=batch)
    path.write_text(text + (f"[measured]\nstep_s = {step_s}\n" if step_s else ""))
    return path


def predicted(path: Path) -> float:
    given = ts.read_run(path)
    return ts.simulate(given.model, given.plan, given.pod).step_time_s


@pytest.fixture(name="slow")
def _slow(tmp_path: Path) -> list[Path]:
    """Run files of three steps that are measured 15 % longer than predicted."""
    paths = []
    for number, batch in enumerate((32, 64, 128)):
        path = run_file(tmp_path / f"run{number}.toml", batch=batch)
        paths.append(run_file(path, 1.15 * predicted(path), batch=batch))
    return paths


def test_runs_become_factors_and_every_result_says_so(
    slow: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, asked = tmp_path / "mine.toml", tmp_path / "asked.toml"
    assert run(["calibrate", *map(str, slow), "--out", str(mine)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("calibration of v5e from 3 runs: measured over predicted\n")
    assert f'wrote {mine}; under [slice], calibration = "{mine}" uses it' in out
    found = read_calibration(mine)
    assert found.learnt_from == ("run0.toml", "run1.toml", "run2.toml")
    assert str(tmp_path) not in mine.read_text()
    assert run(["calibrate", *map(str, slow), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["steps"][0]["chip"] == written["chip"] == "v5e"
    before = predicted(run_file(asked, batch=96))
    run_file(asked, more='calibration = "mine.toml"', batch=96)
    assert 1.07 * before < predicted(asked) < 1.2 * before
    assert run(["simulate", str(asked)]) == 0
    assert "on v5e:4x4, calibrated by mine.toml (16 chips)" in capsys.readouterr().out
    assert run(["simulate", str(asked), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["slice"]["calibration"]
    assert document["file"] == "mine.toml"
    assert document["factors"]["matmul"]["value"] > 1


@pytest.mark.thorough
def test_the_range_narrows_near_what_was_measured(slow: list[Path]) -> None:
    given = ts.read_run(slow[1])
    found = ts.calibrate(slow)
    usual = ts.simulate(given.model, given.plan, given.pod).error_range
    chip = given.pod.chip.calibrated(found)
    own = ts.simulate(given.model, given.plan, given.pod.changed(chip=chip)).error_range
    assert usual is not None
    assert own is not None
    assert own.half_width < usual.half_width
    assert own.support > usual.support
    assert own.low < 1 < own.high


@pytest.mark.thorough
def test_a_profile_becomes_factors(tmp_path: Path) -> None:
    """The profile of a step that was simulated with factors, of which the file knows nothing."""
    truth = {"matmul": 1.12, "vector": 1.1, "hbm": 0.93, "attention": 0.9, "all-gather": 1.2}
    pod, compiled = ts.Slice("v5p", "2x2x1"), load(PROGRAM)
    result = ts.simulate(compiled, pod=trial_of(truth).pod(pod))
    path = tmp_path / "step.xplane.pb"
    path.write_bytes(synthetic_profile(result, compiled, steps=2, devices=1))
    found = ts.calibrate(path, date="2026-01-31")
    for name, value in truth.items():
        assert found.factor(name).value == pytest.approx(value, rel=0.01)
        assert found.factor(name).low <= value <= found.factor(name).high
    assert (found.chip, found.learnt_from) == ("v5p", ("step.xplane.pb",))
    assert (found.runs, found.steps, found.date) == (0, (), "2026-01-31")
    assert found.operations > 100
    assert ts.calibrate([ts.read_profile(path)], pod="v5p:2x2x1").factors == found.factors


@pytest.mark.thorough
def test_a_slow_step_changes_no_factor(tmp_path: Path) -> None:
    compiled = load(PROGRAM)
    result = ts.simulate(compiled, pod=ts.Slice("v5p", "2x2x1"))
    found = []
    for name, faults in (("usual", []), ("slow", [Fault("straggling_step", 2, 4)])):
        path = tmp_path / f"{name}.xplane.pb"
        path.write_bytes(synthetic_profile(result, compiled, steps=5, devices=1, faults=faults))
        found.append({factor: each.value for factor, each in ts.calibrate(path).factors})
    assert found[1] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.thorough
def test_what_is_impossible_is_clipped_and_said(tmp_path: Path) -> None:
    path = run_file(tmp_path / "run.toml", batch=512)
    fast = [ts.read_run(run_file(path, 0.5 * predicted(path), batch=512))] * 12
    found = ts.calibrate(fast)
    costs = ts.load_chip("v5e").costs
    clipped = [note.partition(" is clipped at its physical bound")[0] for note in found.notes[:-1]]
    assert clipped
    for name in clipped:
        factor = found.factor(name)
        assert factor.value == factor.low == pytest.approx(least_factor(name, costs))
        assert factor.high > factor.value
    assert all(each.value >= least_factor(name, costs) for name, each in found.factors)


@dataclass
class Stub:
    """Twenty rows of matmuls that are a tenth faster, with a little of a gather in each."""

    chip = ts.load_chip("v5p")

    def rows(self, trial: TrialFactors, factors: Sequence[str]) -> Rows:
        shares = np.zeros((20, len(FACTORS)))
        shares[:, FACTORS.index("matmul")], shares[:, FACTORS.index("gather")] = 0.9, 0.005
        ratios = -0.03 - shares @ np.array(trial.logs)
        return Rows(ratios, shares, ("matmul",) * 20, np.ones(20))


def test_no_note_is_of_a_factor_that_hardly_counts() -> None:
    found = learnt_from([Stub()])  # type: ignore[list-item]
    assert [name for name, _ in found.factors] == ["matmul"]
    assert not any("gather" in note for note in found.notes)


@pytest.mark.thorough
def test_a_factor_is_no_more_than_a_file_may_have(tmp_path: Path) -> None:
    path = run_file(tmp_path / "run.toml")
    found = ts.calibrate([ts.read_run(run_file(path, 90 * predicted(path)))] * 12)
    found.save(tmp_path / "mine.toml")
    read = read_calibration(tmp_path / "mine.toml")
    assert max(each.high for _, each in read.factors) == 100


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_step_of_another_unit_is_refused(factor: float, tmp_path: Path) -> None:
    path = run_file(tmp_path / "run.toml")
    run_file(path, factor * predicted(path))
    with pytest.raises(ts.TpusimError, match=r"run.toml: step_s is .* write step_s in seconds"):
        ts.calibrate(path)


@pytest.mark.thorough
def test_a_calibration_lies_beside_its_runs(slow: list[Path]) -> None:
    folder = slow[0].parent
    before = ts.calibrate(folder)
    before.save(folder / "mine.toml")
    assert ts.calibrate(folder).factors == before.factors


def test_each_kind_of_work_has_an_error_of_its_own() -> None:
    works = (MatmulWork, ConvolutionWork, AttentionWork, VectorWork)
    assert [f"{kind}work" for kind in KINDS] == [work.__name__.lower() for work in works]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["run.toml"], "run.toml: no measured step; write a section [measured] with step_s"),
        (["v5e.toml", "v5p.toml"], "is of v5e, and v5p.toml of v5p; calibrate each chip by itself"),
        (["used.toml"], "slice.calibration is given, and factors are learnt of the chip as it is"),
        (["none.toml"], "none.toml: cannot be read: No such file"),
        (["none.xplane.pb"], "none.xplane.pb: cannot be read: No such file"),
        (["empty"], "a folder without a profile"),
        (["step.trace.json.gz"], "no HLO in the profile, so nothing predicts its operations"),
    ],
)
def test_bad_input_gets_one_sentence(
    names: Sequence[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file(tmp_path / "run.toml")
    run_file(tmp_path / "v5e.toml", 0.1)
    run_file(tmp_path / "v5p.toml", 0.1, "v5p")
    ts.Calibration(chip="v5e", factors=()).save(tmp_path / "mine.toml")
    run_file(tmp_path / "used.toml", 0.1, more='calibration = "mine.toml"')
    (tmp_path / "empty").mkdir()
    if "step.trace.json.gz" in names:
        compiled = load(PROGRAM)
        result = ts.simulate(compiled, pod=ts.Slice("v5p", "2x2x1"))
        data = synthetic_profile(result, compiled, steps=1, devices=1, form="trace")
        (tmp_path / "step.trace.json.gz").write_bytes(data)
    code, out, error = said(["calibrate", *(str(tmp_path / name) for name in names)], capsys)
    assert (code, out) == (2, "")
    assert sentence in error
    assert error.count("\n") == 1


def test_what_is_no_measurement_is_refused() -> None:
    with pytest.raises(ts.TpusimError, match="calibrate is given 3; write the path of a profile"):
        ts.calibrate(3)  # type: ignore[arg-type]
    with pytest.raises(ts.TpusimError, match="nothing to calibrate on; give profiles"):
        ts.calibrate([])


def test_a_file_of_another_chip_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ts.Calibration(chip="v6e", factors=()).save(tmp_path / "mine.toml")
    path = run_file(tmp_path / "run.toml", more='calibration = "mine.toml"')
    code, _, error = said(["simulate", str(path)], capsys)
    assert code == 2
    assert "mine.toml is of v6e, and the slice has v5e; calibrate on measurements of v5e" in error


def test_a_run_file_of_a_calibrated_slice_names_the_file(tmp_path: Path) -> None:
    given = ts.read_run(run_file(tmp_path / "run.toml"))
    pod = ts.Slice("v5e", "4x4", calibration=ts.Calibration(chip="v5e", factors=()))
    with pytest.raises(ts.TpusimError, match='add calibration = "mine'):
        ts.write_run(tmp_path / "again.toml", given.model, given.plan, pod)

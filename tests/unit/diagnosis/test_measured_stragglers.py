"""What a profile shows as the stragglers of a training run: known faults come back as numbers."""

import tomllib
from functools import cache
from pathlib import Path

import pytest
from synthetic_profiles import Fault, synthetic_profile

import tpusim as ts
from tpusim.compiler import load
from tpusim.diagnosis import stragglers_of
from tpusim.training import TrainingRun, train_step

pytest.importorskip("jaxlib", reason="replaying HLO needs the extra `xla`")

HLO = Path(__file__).parents[2] / "data" / "hlo" / "decoder_v5p_2x2x1.hlo.gz"
STEPS, DEVICES = 8, 4
MODEL = ts.models.Transformer(
    layers=3, embed=1024, mlp=4096, heads=8, kv_heads=4, head_dim=128, vocab=4096
)


@cache
def healthy() -> ts.ReplayResult:
    return ts.simulate(load(HLO))


def profile(folder: Path, *faults: Fault) -> Path:
    path = folder / "step.xplane.pb"
    path.write_bytes(
        synthetic_profile(healthy(), load(HLO), steps=STEPS, devices=DEVICES, faults=faults)
    )
    return path


def stragglers(folder: Path, *faults: Fault) -> ts.Stragglers:
    found = stragglers_of(profile(folder, *faults))
    assert found is not None
    return found


@pytest.mark.thorough
def test_without_a_fault_there_is_none(tmp_path: Path) -> None:
    path = profile(tmp_path)
    found = ts.diagnose(path)
    assert stragglers_of(found) is None
    assert "[stragglers]" not in str(found)


def test_a_slow_device_is_a_slow_chip_all_the_time(tmp_path: Path) -> None:
    chips = stragglers(tmp_path, Fault("slow_chip", 1.25, 2)).chips
    assert chips is not None
    assert (chips.time_share, chips.compute, chips.hbm) == (1.0, 0.8, 0.8)


@pytest.mark.thorough
def test_a_slow_step_is_a_share_of_the_time(tmp_path: Path) -> None:
    chips = stragglers(tmp_path, Fault("straggling_step", 2.0, 3)).chips
    assert chips is not None
    assert chips.slowdown is not None
    assert chips.time_share is not None
    slow, typical = chips.slowdown, STEPS - 1
    assert 1.5 < slow <= 2.0
    assert chips.time_share == pytest.approx(slow / (slow + typical), rel=0.01)


@pytest.mark.thorough
def test_late_hosts_lengthen_a_run_as_they_lengthen_the_profile(tmp_path: Path) -> None:
    late_s = 4e-3
    found = stragglers(tmp_path, Fault("host_gap", late_s, 3))
    assert found.pauses is not None
    assert found.pauses.seconds == pytest.approx(late_s, rel=0.01)
    plan = ts.Plan(mesh={"fsdp": 4}, seq_len=512, global_batch=16)
    step_s = healthy().step_time_s
    run = TrainingRun(steps=100, step_time_s=step_s, stragglers=found)
    longer = train_step(ts.simulate(MODEL, plan, healthy().pod), run)
    assert longer.step_time_s - step_s == pytest.approx(late_s / (STEPS - 1), rel=0.02)


@pytest.mark.thorough
def test_the_snippet_is_a_section_of_a_run_file(tmp_path: Path) -> None:
    path = profile(tmp_path, Fault("slow_chip", 1.25, 2), Fault("host_gap", 4e-3, 3))
    found = ts.diagnose(path)
    section = str(found).partition("[stragglers]\n")[2]
    assert ts.Stragglers(**tomllib.loads(section)) == found.stragglers
    assert found.facts()["stragglers"].keys() == {"chips", "pauses"}

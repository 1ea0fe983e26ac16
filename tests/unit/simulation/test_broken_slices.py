"""Plans on slices with broken parts: what is read, written, swept, searched and refused."""

import json
from pathlib import Path

import pytest
from commands import SMALL
from plans import plan_of, small

import tpusim as ts
from tpusim.base import HardwareError, PlanError
from tpusim.hardware import Slice, degraded
from tpusim.report import write_report
from tpusim.runfile import read_run
from tpusim.simulation import simulate
from tpusim.sweeps import scaling

BROKEN = "[slice.broken]\nswitches = [{ dim = 0, at = [1, 2] }]\n"
SWITCH = {"switches": [{"dim": 0, "at": [1, 2]}]}
POD = Slice("v4", "4x4x4", broken=SWITCH)


def broken_file(folder: Path, broken: str = BROKEN) -> Path:
    text = SMALL.replace("[model]", f"{broken}[model]") + "mesh = { fsdp = 16, tensor = 4 }\n"
    path = folder / "run.toml"
    path.write_text(text.replace('"v5e"', '"v4"').replace('"4x4"', '"4x4x4"'), "utf-8")
    return path


def test_a_run_file_has_broken_parts(tmp_path: Path) -> None:
    run = read_run(broken_file(tmp_path))
    assert run.pod == POD
    written = tmp_path / "again.toml"
    ts.write_run(written, run.model, run.plan, run.pod)
    assert read_run(written).pod == POD


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("broken = 5\n", "slice.broken is 5; write a table of lists, such as switches ="),
        ("[slice.broken]\nswitch = []\n", "run.toml: broken has no 'switch'; did you mean"),
    ],
)
def test_a_mistake_in_a_run_file_is_one_sentence(tmp_path: Path, broken: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        read_run(broken_file(tmp_path, broken))


@pytest.mark.usefixtures("undrawn")
def test_a_result_says_what_is_broken(tmp_path: Path) -> None:
    found = simulate(small(), plan_of({"fsdp": 16, "tensor": 4}, global_batch=64), POD)
    assert "v4:4x4x4, broken: switch x at 1,2" in str(found)
    assert found.error_range is None
    write_report(found, tmp_path)
    facts = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert facts["slice"]["broken"] == POD.broken.written


@pytest.mark.parametrize("schedule", ["1f1b", "circular"])
def test_a_pipeline_sends_around_broken_links(schedule: str) -> None:
    """All activations of a stage's chips go over one link; beside a broken one go twice as many."""
    plan = plan_of({"stage": 4, "fsdp": 16}, microbatches=8, global_batch=512, schedule=schedule)
    model = small(layers=4, embed=512)
    healthy = simulate(model, plan, POD.healthy)
    steps = [
        simulate(model, plan, degraded(POD, "switch", dim), placement=healthy.placement)
        for dim in range(3)
    ]
    assert max(each.timeline.total_ps for each in steps) > healthy.timeline.total_ps


def test_a_scaling_curve_has_no_broken_parts() -> None:
    plan = plan_of({"fsdp": 16, "tensor": 4}, global_batch=64)
    with pytest.raises(PlanError, match=r"broken parts \(switch x at 1,2\), which other slices"):
        scaling(small(), plan, POD, slices=[1, 2])

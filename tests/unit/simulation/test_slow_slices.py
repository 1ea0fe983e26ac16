"""Plans on slices with slow parts: what is simulated, printed, written and refused."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commands import SMALL, said
from plans import plan_of, small

from tpusim.base import HardwareError, PlanError
from tpusim.hardware import Slice, candidates
from tpusim.report import write_report
from tpusim.results import PlanResult
from tpusim.runfile import read_run
from tpusim.simulation import replay, simulate
from tpusim.sweeps import Space
from tpusim.sweeps import candidates as candidates_of

SLOW = "[slice.slow]\nchips = [{ at = [0, 0], compute = 0.5 }]\n"
MESH = "mesh = { fsdp = 4, tensor = 4 }\n"
CHIP = {"chips": [{"at": [0, 0, 0], "compute": 0.5}]}


def slow_file(folder: Path, slow: str = SLOW, more: str = MESH) -> Path:
    path = folder / "run.toml"
    path.write_text(SMALL.replace("[model]", f"{slow}[model]") + more, "utf-8")
    return path


def result(**plan: Any) -> PlanResult:
    pod = Slice("v4", "2x2x4", slow=CHIP)
    return simulate(small(), plan_of({"fsdp": 8, "tensor": 2}, **plan), pod)


def test_a_run_file_has_slow_parts(tmp_path: Path) -> None:
    pod = read_run(slow_file(tmp_path)).pod
    assert pod == Slice("v5e", "4x4", slow={"chips": [{"at": [0, 0], "compute": 0.5}]})
    settings = ["slice.slow.links=[{ between = [[0, 0], [0, 1]], bandwidth = 0.5 }]"]
    assert len(read_run(slow_file(tmp_path), settings).pod.slow.every) == 2


@pytest.mark.parametrize(
    ("slow", "message"),
    [
        ("slow = 5\n", "slice.slow is 5; write a table of lists, such as chips ="),
        ("[slice.slow]\nchips = 5\n", "slice.slow.chips is 5; write a table of lists"),
        ("[slice.slow]\nchip = []\n", "run.toml: slow has no 'chip'; did you mean 'chips'"),
        ("[slice.slow]\nchips = [{ at = [9, 0], hbm = 0.5 }]\n", "which is no chip of 4x4"),
    ],
)
def test_a_mistake_in_a_run_file_is_one_sentence(tmp_path: Path, slow: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        read_run(slow_file(tmp_path, slow))


def test_the_command_prints_who_waits_for_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = slow_file(tmp_path)
    code, out, _ = said(["simulate", str(path)], capsys)
    assert code == 0
    assert "on v5e:4x4, slow: chip 0,0 compute x0.5 (16 chips)" in out
    assert "  exposed stragglers " in out
    assert "classes     16 in 4 that differ, with the time they wait for others" in out
    assert "in 8 of 10 runs" not in out
    unfolded = said(["simulate", str(path), "--no-fold"], capsys)[1]
    assert "classes     16 in 16 that differ" in unfolded
    cut = out.index("classes")
    assert unfolded[:cut] == out[:cut]


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_a_report_has_slow_parts_and_classes(tmp_path: Path) -> None:
    found = result()
    write_report(found, tmp_path)
    written = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert written["slice"]["slow"] == found.pod.slow.written
    assert sum(row["devices"] for row in written["classes"]) == 16
    assert written["classes"][0] == {"like": "0,0,0 compute x0.5", "devices": 1, "waits_s": {}}
    assert sum(written["breakdown_s"].values()) == pytest.approx(written["step_time_s"])
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert "/device:TPU:0 0,0,0 compute x0.5" in names
    healthy = simulate(small(), plan_of({"fsdp": 8, "tensor": 2}), found.pod.healthy)
    write_report(healthy, tmp_path)
    written = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert "classes" not in written
    assert "slow" not in written["slice"]


def test_the_work_of_a_step_is_what_it_is_on_a_healthy_slice() -> None:
    slow = result()
    healthy = simulate(slow.model, slow.plan, slow.pod.healthy)
    assert slow.flops == healthy.flops
    assert slow.placement == healthy.placement
    assert slow.mfu * slow.step_time_s == pytest.approx(healthy.mfu * healthy.step_time_s)
    assert slow.step_time_s > healthy.step_time_s
    assert slow.error_range is None


def test_a_circular_pipeline_runs_on_a_slow_slice() -> None:
    plan = plan_of({"stage": 4, "fsdp": 4}, schedule="circular", microbatches=4)
    pod = Slice("v4", "2x2x4", slow=CHIP)
    found = simulate(small(layers=4), plan, pod)
    assert len(found.timeline.lanes) > 1
    assert found.step_time_s > simulate(small(layers=4), plan, pod.healthy).step_time_s
    assert "classes" in str(found)


def test_stages_with_programs_of_their_own_are_refused() -> None:
    plan = plan_of({"stage": 4, "fsdp": 4}, schedule="1f1b", microbatches=4)
    with pytest.raises(PlanError, match=r"slow parts \(chip 0,0,0 .*take schedule = 'circular'"):
        simulate(small(layers=4), plan, Slice("v4", "2x2x4", slow=CHIP))


def test_messages_hop_by_hop_are_refused() -> None:
    plan = plan_of({"fsdp": 16})
    with pytest.raises(PlanError, match=r'"hops" follows .* healthy slice.*take network = "flows"'):
        simulate(small(), plan, Slice("v4", "2x2x4", slow=CHIP), network="hops")


def test_compiled_programs_are_refused() -> None:
    compiled = cast(Any, SimpleNamespace(name="step", until="code"))
    with pytest.raises(PlanError, match="for plans and not for compiled programs; leave them out"):
        replay(compiled, Slice("v4", "2x2x1", slow=CHIP))


def test_too_many_tasks_without_folding_are_refused() -> None:
    plan = plan_of({"data": 16, "fsdp": 128}, global_batch=4096)
    model = small(layers=1000)
    pod = Slice("v4", "8x16x16", slow=CHIP)
    placement = candidates(pod, plan.mesh)[0]
    with pytest.raises(PlanError, match=r"2,048 devices that differ run .* leave out --no-fold"):
        simulate(model, plan, pod, fold=False, placement=placement)


def test_a_sweep_keeps_slow_parts_and_refuses_shapes_without_them() -> None:
    pod = Slice("v5e", "2x4", slow={"chips": [{"at": [1, 3], "compute": 0.5}]})
    space = Space(base=plan_of({"fsdp": 8}), axes=["fsdp"], shapes=["2x4"])
    assert [each.pod for each in candidates_of(space, pod)] == [pod]
    corner = Slice("v5e", "4x4", slow={"chips": [{"at": [3, 3], "hbm": 0.5}]})
    with pytest.raises(HardwareError, match=r"is \[3, 3\], which is no chip of 2x4"):
        list(candidates_of(space, corner))

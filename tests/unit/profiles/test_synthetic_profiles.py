"""The profile of a simulated step is that step: its times, programs and loops; and its faults."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from extent import sample
from hlo import DATA
from synthetic_profiles import DISPATCH_PS, FIRST_PS, Fault, synthetic_profile

import tpusim as ts
from tpusim.compiler import Compiled, load
from tpusim.results import ReplayResult

pytest.importorskip("jaxlib.xla_client")

PROGRAMS = ("decoder_v5p_2x2x1", "moe_v6e_4x4", "plain/scan_mlp_v5e_2x2")
PODS = {"plain/scan_mlp_v5e_2x2": ts.Slice("v5e", "2x2")}


@cache
def replayed(name: str) -> tuple[ReplayResult, Compiled]:
    compiled = load(DATA / f"{name}.hlo.gz")
    result = ts.simulate(compiled, pod=PODS.get(name))
    assert isinstance(result, ReplayResult)
    return result, compiled


def made(folder: Path, name: str = PROGRAMS[0], **settings: object) -> ts.Profile:
    """The profile of a program, read."""
    path = folder / ("it.trace.json.gz" if settings.get("form") == "trace" else "it.xplane.pb")
    path.write_bytes(synthetic_profile(*replayed(name), **settings))  # type: ignore[arg-type]
    return ts.read_profile(path)


@pytest.mark.parametrize("form", ["xspace", "trace"])
@pytest.mark.parametrize("name", sample(PROGRAMS, 2))
def test_steps_take_what_the_result_says_to_the_picosecond(
    name: str, form: str, tmp_path: Path
) -> None:
    profile = made(tmp_path, name, form=form, steps=3, devices=2)
    result, _ = replayed(name)
    assert set(profile.steps["duration_ps"]) == {result.timeline.total_ps}
    assert list(profile.steps["busy_ps"]) == list(profile.steps["duration_ps"])
    core = profile.operations[~profile.operations["asynchronous"]]
    assert core["self_ps"].min() >= 0
    assert core["self_ps"].sum() == 6 * result.timeline.total_ps
    matmuls = core[core["category"] == "convolution fusion"]["self_ps"].sum() / 6e12
    assert matmuls == pytest.approx(result.breakdown_s["matmul"], rel=1e-9)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_hlo_of_a_profile_replays_as_the_program(name: str, tmp_path: Path) -> None:
    profile = made(tmp_path, name, steps=1)
    result, compiled = replayed(name)
    program = profile.program()
    assert program is not None
    again = ts.simulate(program, pod=result.pod, mesh=dict(compiled.mesh or {}) or None)
    assert again.timeline.total_ps == result.timeline.total_ps
    assert profile.chip == result.pod.chip.generation


def test_loops_of_layers_have_their_iterations(tmp_path: Path) -> None:
    """Four layers, forward and then backward from the last one."""
    profile = made(tmp_path, "plain/scan_mlp_v5e_2x2", steps=1, devices=1)
    operations = profile.operations
    for name, layers in (("fusion.106", [0, 1, 2, 3]), ("fusion.113", [3, 2, 1, 0])):
        mine = operations[operations["instruction"] == name]
        assert list(mine["layer"]) == layers
        assert set(mine["loops"]) == {1}
    assert set(operations[operations["category"] == "while"]["self_ps"]) == {0}


def test_a_plan_has_a_profile_without_hlo(tmp_path: Path) -> None:
    model = ts.models.Transformer(layers=4, embed=512, mlp=2048, heads=4, vocab=1000)
    plan = ts.Plan(mesh={"fsdp": 4}, seq_len=512, global_batch=8)
    result = ts.simulate(model, plan, ts.Slice("v6e", "2x2"))
    path = tmp_path / "plan.xplane.pb"
    path.write_bytes(synthetic_profile(result, steps=2))
    profile = ts.read_profile(path)
    assert profile.program() is None
    assert set(profile.steps["busy_ps"]) == {result.timeline.total_ps}


def steps(folder: Path, *faults: Fault, **settings: object) -> tuple[list[float], list[float]]:
    """Lengths of the steps of the first device over that of the result, and gaps before them."""
    profile = made(folder, steps=5, faults=faults, **settings)
    total = replayed(PROGRAMS[0])[0].timeline.total_ps
    mine = profile.steps[profile.steps["device"] == "TPU:0"]
    ends = [FIRST_PS - DISPATCH_PS, *(mine["start_ps"] + mine["duration_ps"])]
    gaps = [start - end - DISPATCH_PS for start, end in zip(mine["start_ps"], ends, strict=False)]
    return [each / total for each in mine["duration_ps"]], [gap / 1e12 for gap in gaps]


@pytest.mark.thorough
def test_faults_are_where_they_should_be(tmp_path: Path) -> None:
    def shape(lengths: Sequence[float], gaps: Sequence[float]) -> tuple[list[bool], list[float]]:
        return [length > 1.01 for length in lengths], [round(gap, 4) for gap in gaps]

    slow, none = [True] * 5, [0.0] * 5
    for fault, lengths, gaps in (
        (Fault("slow_link", 1.5), slow, none),
        (Fault("slow_link", 1.5, what="fsdp"), slow, none),
        (Fault("slow_link", 1.5, what="other"), [False] * 5, none),
        (Fault("slow_operation", 2, what="fusion.408"), slow, none),
        (Fault("straggling_step", 1.5, where=2), [False, False, True, False, False], none),
        (Fault("slow_chip", 1.2, where=1), slow, none),
        (Fault("starved_input", 2e-3), [False] * 5, [2e-3] * 5),
        (Fault("host_gap", 5e-3, where=3), [False] * 5, [0, 0, 0, 5e-3, 0]),
    ):
        assert shape(*steps(tmp_path, fault)) == (lengths, gaps), fault


def test_noise_and_factors_change_what_they_say(tmp_path: Path) -> None:
    lengths, _ = steps(tmp_path, noise=0.05, seed=1)
    assert len(set(lengths)) == 5
    assert lengths == pytest.approx([1.0] * 5, abs=0.02)
    result, _ = replayed(PROGRAMS[0])
    share = result.breakdown_s["matmul"] / result.step_time_s
    lengths, _ = steps(tmp_path, factor=lambda record: 1.1 if record.label == "matmul" else 1)
    assert lengths == pytest.approx([1 + 0.1 * share] * 5, rel=1e-6)


@pytest.mark.thorough
def test_no_folder_of_the_hlo_reaches_a_report(tmp_path: Path) -> None:
    result, compiled = replayed("plain/scan_mlp_v5e_2x2")
    moved = compiled.hlo.replace("tests/data/hlo/", "/home/ann smith/data/")
    assert "/home/ann" in moved
    data = synthetic_profile(result, Compiled(name="moved", data=moved.encode()), steps=1)
    assert b"/home/ann" in data
    (tmp_path / "a.xplane.pb").write_bytes(data)
    program = ts.read_profile(tmp_path / "a.xplane.pb").program()
    replay = ts.simulate(program, pod=result.pod)
    ts.write_report(replay, tmp_path / "report")
    for file in (tmp_path / "report").iterdir():
        assert b"ann smith" not in file.read_bytes(), file.name
    assert "ann smith" not in str(replay)

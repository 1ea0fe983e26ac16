"""Diagnoses: parts that sum exactly, what they are aligned by, what is said and what is unknown."""

import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from extent import sample
from synthetic_profiles import Fault, synthetic_profile
from xspaces import OPERATIONS, PROGRAMS, SpaceWriter

import tpusim as ts
from tpusim.base.errors import FileError, PlanError
from tpusim.compiler import Compiled, load
from tpusim.diagnosis.diagnosis import Diagnosis
from tpusim.diagnosis.kinds import kind_of
from tpusim.diagnosis.measured import apportioned, measured_steps

pytest.importorskip("jaxlib", reason="replaying HLO needs the extra `xla`")

DATA = Path(__file__).parents[2] / "data"
PROGRAM_NAMES = sorted(file.name for file in (DATA / "hlo").glob("*.hlo.gz"))
TIMES = ["measured_ps", "predicted_ps", "difference_ps"]
DISPATCH_PS = 3_000_000


@cache
def replayed(name: str) -> tuple[Compiled, ts.ReplayResult]:
    compiled = load(DATA / "hlo" / name)
    return compiled, ts.simulate(compiled)


def written(folder: Path, data: bytes, name: str = "step.xplane.pb") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def by_hand(
    folder: Path, steps: list[tuple[int, int]], operations: dict[str, tuple[int, int]]
) -> Path:
    """A profile of one device whose steps are (begin, length), with operations in each."""
    space = SpaceWriter()
    plane = space.plane("/device:TPU:0")
    for begin, length in steps:
        plane.add(PROGRAMS, "jit_step(1)", begin, length)
        for name, (after, took) in operations.items():
            plane.add(OPERATIONS, name, begin + after, took)
    return written(folder, space.xspace())


@pytest.mark.parametrize("name", sample(PROGRAM_NAMES, 14))
def test_a_profile_of_a_replay_differs_from_it_in_nothing(name: str, tmp_path: Path) -> None:
    """By instruction and layer, to the picosecond; only the pause between steps is no part."""
    compiled, result = replayed(name)
    found = ts.diagnose(written(tmp_path, synthetic_profile(result, compiled, steps=3)), result)
    assert (found.measured_ps, found.predicted_ps) == (
        result.timeline.total_ps + DISPATCH_PS, result.timeline.total_ps)  # fmt: skip
    assert found.by_operation.query("difference_ps != 0").index.tolist() == ["between steps"]
    others = found.parts.query("difference_ps != 0 and operation != 'between steps'")
    assert set(others["kind"]) <= {"dma"}, "waits of other iterations of a loop alone"
    assert found.difference_ps == DISPATCH_PS


@pytest.mark.parametrize(("noise", "devices", "steps"), [(0.1, 1, 3), (0.03, 3, 5), (0.5, 2, 2)])
def test_the_parts_sum_to_the_steps(noise: float, devices: int, steps: int, tmp_path: Path) -> None:
    compiled, result = replayed("moe_v6e_4x4.hlo.gz")
    faults = [Fault("straggling_step", 1.7, 1), Fault("slow_chip", 1.1, 0)]
    data = synthetic_profile(
        result, compiled, steps=steps, devices=devices, noise=noise, faults=faults
    )
    found = ts.diagnose(written(tmp_path, data), result)
    for table in (found.by_kind, found.by_layer, found.by_line, found.by_axis, found.by_operation):
        sums = [int(table[name].sum()) for name in TIMES]
        assert sums == [found.measured_ps, found.predicted_ps, found.difference_ps]
        assert (table["difference_ps"] == table["measured_ps"] - table["predicted_ps"]).all()
    runs = ts.read_profile(tmp_path / "step.xplane.pb").steps
    ends = runs["start_ps"] + runs["duration_ps"]
    pauses = (runs.groupby("device")["start_ps"].shift(-1) - ends).dropna()
    assert abs(found.measured_ps - runs["duration_ps"].mean() - pauses.mean()) < 1


def test_a_mean_is_apportioned_without_a_remainder() -> None:
    random = np.random.default_rng(1)
    exact = [Fraction(int(n), 7) for n in random.integers(-50, 5000, 500)]
    found = apportioned(exact)
    assert sum(found) == round(sum(exact))
    assert all(abs(one - other) <= 1 for one, other in zip(found, exact, strict=True))


def test_time_within_a_step_without_an_operation_is_idle(tmp_path: Path) -> None:
    steps = [(1000, 500), (2000, 500), (3000, 500)]
    path = by_hand(tmp_path, steps, {"fusion.1": (0, 300), "fusion.2": (350, 100)})
    found = ts.diagnose(path).by_operation["measured_ps"].to_dict()
    assert found == {"fusion.1": 300, "fusion.2": 100, "idle": 100, "between steps": 500}


def test_other_programs_between_steps_are_no_pause(tmp_path: Path) -> None:
    space = SpaceWriter()
    plane = space.plane("/device:TPU:0")
    for begin in (0, 1000):
        plane.add(PROGRAMS, "jit_step(1)", begin, 600)
        plane.add(OPERATIONS, "fusion.1", begin, 600)
    plane.add(PROGRAMS, "jit_metrics(2)", 700, 100)
    plane.add(OPERATIONS, "fusion.9", 700, 100)
    found = ts.diagnose(written(tmp_path, space.xspace())).by_operation["measured_ps"].to_dict()
    assert found == {"fusion.1": 600, "between steps": 300, "other programs": 100}


def test_a_wait_belongs_to_what_it_waits_for(tmp_path: Path) -> None:
    space = SpaceWriter()
    plane = space.plane("/device:TPU:0")
    lines = (
        "%all-gather-start.3 = (f32[8], f32[32]) all-gather-start(f32[8] %p)",
        "%all-gather-done.7 = f32[32] all-gather-done((f32[8], f32[32]) %all-gather-start.3)",
        "%async-collective-done.2 = f32[8] fusion(f32[8] %get-tuple-element.5)",
    )
    plane.about = {line.split(" ")[0][1:]: {"long_name": line} for line in lines}
    plane.add(PROGRAMS, "jit_step(1)", 0, 100)
    for at, name in enumerate(plane.about):
        plane.add(OPERATIONS, name, 10 * at, 10)
    found = ts.diagnose(written(tmp_path, space.xspace()))
    times = found.by_operation["measured_ps"].to_dict()
    assert times == {"all-gather-start.3": 20, "async-collective-start.2": 10, "idle": 70}
    assert set(found.by_kind.index) == {"all-gather", "collective", "idle"}


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("convolution fusion", "fusion.1", "matmul"), ("loop fusion", "fusion.1", "vector"),
        ("custom-call", "splash_mha_fwd.1", "attention"), ("custom-call", "x.1", "kernel"),
        ("custom-call", "quantized_matmul_kernel.1 jit(f)/attention/q_proj", "matmul"),
        ("all-reduce", "x", "all-reduce"),
        ("custom fusion", "all-reduce-scatter.1 jit(f)/psum", "reduce-scatter"),
        ("copy-done", "copy-done.1", "dma"), ("async-start", "slice-start", "dma"),
        ("infeed", "infeed.1", "input"), ("while", "while.1", "control flow"),
        ("data formatting", "copy.1", "vector"), ("", "", "vector"), ("", "dot.3 jit(f)", "matmul"),
    ],
)  # fmt: skip
def test_the_kinds_of_categories(category: str, name: str, kind: str) -> None:
    assert kind_of(category, name) == kind


def test_layers_of_a_backward_pass_run_from_the_last_to_the_first(tmp_path: Path) -> None:
    """In profiles of JAX, by the scopes; the slow layer is that of the third iteration."""
    compiled, result = replayed("decoder_v5p_2x2x1.hlo.gz")
    data = synthetic_profile(result, compiled, steps=2, devices=1)
    profile = ts.read_profile(written(tmp_path, data))
    loops = profile.operations.groupby("instruction", observed=True)["layer"].nunique()
    backward = set(loops.index[loops == 3][::2])
    mine = profile.operations["instruction"].isin(backward)
    scope = profile.operations["scope"].astype("object").where(~mine, "jit(f)/transpose(jvp(g))/h")
    layer = profile.operations["layer"].where(~mine, 2 - profile.operations["layer"])
    frame = profile.operations.assign(scope=scope.astype("category"), layer=layer)
    found = ts.diagnose(replace(profile, operations=frame), result)
    assert (found.by_operation.drop("between steps")["difference_ps"] == 0).all()


def test_a_plan_and_a_program_share_kinds_passes_axes_and_layers(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v5p_2x2x1.hlo.gz")
    model = ts.models.Transformer(
        layers=3, embed=1024, mlp=4096, heads=8, kv_heads=4, head_dim=128, vocab=4096
    )
    plan = ts.simulate(model, ts.Plan(mesh={"fsdp": 4}, seq_len=512, global_batch=16), result.pod)
    found = ts.diagnose(written(tmp_path, synthetic_profile(result, compiled, steps=3)), plan)
    both = (found.by("kind", "phase", "axis")[["measured_ps", "predicted_ps"]] > 0).all(axis=1)
    shared = found.by("kind", "phase", "axis")[both]
    assert shared["measured_ps"].sum() > 0.97 * found.measured_ps
    assert ("all-gather", "forward", "fsdp") in shared.index
    layers = found.by_layer.loc[[0, 1, 2]]
    assert (layers[["measured_ps", "predicted_ps"]] > 0.2 * layers.sum()[TIMES[:2]]).all(axis=None)
    assert found.predicted_ps == plan.timeline.total_ps
    assert "the plan of transformer on v5p:2x2x1" in str(found)


def test_a_trace_alone_is_measured_and_says_what_is_unknown(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v4_2x2x1.hlo.gz")
    data = synthetic_profile(result, compiled, steps=3, form="trace")
    found = ts.diagnose(written(tmp_path, data, "step.trace.json.gz"))
    assert (found.prediction, found.predicted_ps) == ("", 0)
    assert found.findings[0].text.startswith("the step is matmul")
    assert any("it is unknown which of them are slow" in note for note in found.notes)
    assert "predicted" not in found._repr_html_().split("note")[0]


def test_what_the_two_sides_do_not_share_is_noted(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v4_2x2x1.hlo.gz")
    path = written(tmp_path, synthetic_profile(result, compiled, steps=1))
    (_, other) = replayed("moe_v6e_4x4.hlo.gz")
    notes = "\n".join(ts.diagnose(path, other).notes)
    assert "of the measured work has a prediction: are both of the same program?" in notes
    assert "one execution a device: how steps vary, and the time between them, are unknown" in notes
    assert "and the prediction of v6e" in notes


def test_a_program_that_cannot_be_replayed_is_measured(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v4_2x2x1.hlo.gz")
    path = written(tmp_path, synthetic_profile(result, compiled, steps=2))
    profile = ts.read_profile(path)
    broken = replace(profile, programs=dict.fromkeys(profile.programs, b"none"))
    found = ts.diagnose(replace(broken, chip="v4"))
    assert found.prediction == ""
    assert any("cannot be replayed" in note for note in found.notes)


@pytest.mark.thorough
def test_a_program_without_a_slice_runs_on_the_chips_of_the_profile(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v4_2x2x1.hlo.gz")
    path = written(tmp_path, synthetic_profile(result, compiled, steps=2))
    plain = Compiled(name=compiled.name, data=compiled.data)
    assert ts.diagnose(path, plain).prediction.endswith("on v4:2x2x1")


def test_steps_of_a_profile_without_programs_are_named(tmp_path: Path) -> None:
    space = SpaceWriter()
    space.plane("/device:TPU:0").add(OPERATIONS, "fusion.1", 0, 10)
    found = ts.diagnose(written(tmp_path, space.xspace()))
    assert found.title == "(all operations) in step.xplane.pb"


def test_other_programs_that_overlap_a_step_count_between_steps_alone(tmp_path: Path) -> None:
    space = SpaceWriter()
    plane = space.plane("/device:TPU:0")
    for begin in (0, 1000, 2000):
        plane.add(PROGRAMS, "jit_step(1)", begin, 600)
        plane.add(OPERATIONS, "fusion.1", begin, 600)
    for begin, lasts in ((500, 200), (650, 40), (900, 300), (1700, 100), (2700, 900)):
        plane.add(PROGRAMS, "jit_metrics(2)", begin, lasts)
    found = ts.diagnose(written(tmp_path, space.xspace())).by_operation["measured_ps"].to_dict()
    others = ((100 + 40 + 100) + 100) // 2
    assert found == {"fusion.1": 600, "between steps": 400 - others, "other programs": others}


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v4_2x2x1.hlo.gz")
    path = written(tmp_path, synthetic_profile(result, compiled, steps=2))
    with pytest.raises(PlanError, match="prediction is 7; give the result of"):
        ts.diagnose(path, 7)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="has its own; give one"):
        ts.diagnose(path, result, pod="v4-8")
    with pytest.raises(PlanError, match=r"^step.xplane.pb: the program is for 4 devices"):
        ts.diagnose(path, pod="v5e:4x4")
    trace = synthetic_profile(result, compiled, steps=2, form="trace")
    with pytest.raises(PlanError, match="no HLO of its steps to replay on v4:2x2x1; give the plan"):
        ts.diagnose(written(tmp_path, trace, "step.trace.json.gz"), pod="v4-8")
    with pytest.raises(FileError, match=r"^step.xplane.pb: no operation of jit_step in it"):
        ts.diagnose(by_hand(tmp_path, [(0, 50)], {"fusion.1": (60, 10)}))
    with pytest.raises(FileError, match="cannot be read"):
        ts.diagnose(tmp_path / "none.xplane.pb")


def test_slow_steps_are_a_part_of_their_own(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v4_2x2x1.hlo.gz")
    faults = [Fault("straggling_step", 1.5, 2)]
    path = written(tmp_path, synthetic_profile(result, compiled, steps=5, faults=faults))
    found = ts.diagnose(path, result)
    runs = measured_steps(ts.read_profile(path)).executions
    longer = runs["duration_ps"].mean() - runs[~runs["slow"]]["duration_ps"].mean()
    assert runs["slow"].sum() == 2, "on each device"
    assert found.by_kind["difference_ps"]["slow steps"] == pytest.approx(longer, abs=1)
    assert (found.by_kind["difference_ps"].drop(["slow steps", "host"]) == 0).all()


def test_a_slow_device_is_named_with_its_factor(tmp_path: Path) -> None:
    compiled, result = replayed("decoder_v4_2x2x1.hlo.gz")
    faults = [Fault("slow_chip", 1.15, 1)]
    path = written(tmp_path, synthetic_profile(result, compiled, devices=4, faults=faults))
    (first, *_) = ts.diagnose(path, result).findings
    assert first.kind == "slow device"
    assert "TPU:1 works for" in first.text
    assert "1.15 times as long" in first.text


def test_a_device_whose_collectives_take_longer_is_named(tmp_path: Path) -> None:
    """Without any prediction: it has no fault in its own work."""
    space = SpaceWriter()
    for number in range(4):
        plane = space.plane(f"/device:TPU:{number}")
        took = 900 if number == 2 else 300
        for begin in (0, 5000, 10000):
            plane.add(PROGRAMS, "jit_step(1)", begin, 1000 + took)
            plane.add(OPERATIONS, "fusion.1", begin, 1000)
            plane.add(OPERATIONS, "all-gather.1", begin + 1000, took)
    (first, *_) = [
        each
        for each in ts.diagnose(written(tmp_path, space.xspace())).findings
        if each.kind == "slow device"
    ]
    assert first.text.startswith("TPU:2 is in collectives for 900 ps per step")


def diagnosed(folder: Path) -> Diagnosis:
    compiled, result = replayed("decoder_v5p_2x2x1.hlo.gz")
    data = synthetic_profile(result, compiled, steps=3, faults=[Fault("slow_link", 2.0)])
    return ts.diagnose(written(folder, data), result)


def test_the_files_of_a_diagnosis(tmp_path: Path) -> None:
    from tpusim.diagnosis import write_diagnosis

    found = diagnosed(tmp_path)
    write_diagnosis(found, tmp_path / "out")
    write_diagnosis(found, tmp_path / "again")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"diagnose.txt", "diagnose.json", "parts.csv", "timelines.png",
                     "timelines.svg", "report.html"}  # fmt: skip
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    parts = pd.read_csv(tmp_path / "out" / "parts.csv")
    assert parts[TIMES].sum().tolist() == found.parts[TIMES].sum().tolist()
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "collectives over fsdp are exposed for" in page
    assert "<script" not in page
    rows = re.findall(r"<td><bdi>(.*?)</bdi>", page.partition('id="layer"')[2])
    assert rows[:4] == ["outside of layers", "0", "1", "2"]


def test_no_sentence_of_a_page_is_cut(tmp_path: Path) -> None:
    from tpusim.diagnosis import write_diagnosis

    found = ts.diagnose(by_hand(tmp_path, [(0, 10), (20, 10)], {"fusion.1": (0, 10)}))
    write_diagnosis(found, tmp_path)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert max(map(len, found.notes)) > 160
    assert all(f"{note}." in page for note in found.notes)


def test_no_folder_and_no_name_of_a_user_is_in_a_report(tmp_path: Path) -> None:
    """The synthetic profile's sources are in a user's folder."""
    from tpusim.diagnosis import write_diagnosis

    write_diagnosis(diagnosed(tmp_path), tmp_path / "out")
    for file in (tmp_path / "out").iterdir():
        if file.suffix != ".png":
            text = file.read_text("utf-8")
            assert not re.search(r"/home|someone", text), file.name
            assert str(tmp_path) not in text


def test_the_timelines_are_of_one_layer(tmp_path: Path) -> None:
    found = diagnosed(tmp_path)
    measured, predicted = found.timelines().values()
    assert found.layer == 1
    assert [bar.operation for bar in measured] == [bar.operation for bar in predicted]
    waits = {"all-gather", "reduce-scatter", "all-reduce", "all-to-all"}
    for slow, bar in zip(measured, predicted, strict=True):
        times = 2 if bar.kind in waits else 1
        assert abs(slow.duration_ps - times * bar.duration_ps) < 10

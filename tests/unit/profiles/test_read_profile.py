"""Profiles that are written by hand: what is in their tables, worked out."""

import gzip
import json
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from xspaces import ASYNCHRONOUS, OPERATIONS, PROGRAMS, STEPS, SpaceWriter

import tpusim as ts
from tpusim.base.errors import FileError
from tpusim.profiles.operations import COLUMNS

FORMS = {"xspace": "host.xplane.pb", "trace": "host.trace.json.gz"}
STEP = "jit_step(17342868964687645945)"
DOT = "%dot.7 = bf16[64,128]{1,0:T(8,128)(2,1)S(1)} dot(bf16[64,32]{1,0} %p, bf16[32,128]{1,0} %q)"
BOTH = (
    "%split.2 = (f32[8]{0:T(256)}, /*index=1*/s32[]{:T(128)S(6)}, u8[4]{0:T(128)S(5)}) "
    "fusion(f32[16]{0} %a), kind=kLoop, calls=%c"
)
SCOPE = "jit(step)/layers_3/mlp/dot_general"


def written(space: SpaceWriter, form: str, folder: Path) -> Path:
    """A file of a profile in one of its forms."""
    path = folder / FORMS[form]
    path.write_bytes(space.xspace() if form == "xspace" else space.trace())
    return path


def small_space() -> SpaceWriter:
    """Two steps on two devices: a loop of two layers, a wait, and a transfer beside the core."""
    space = SpaceWriter()
    for device in ("/device:TPU:0", "/device:TPU:1"):
        plane = space.plane(
            device, device_type_string="TPU v6 Lite", peak_teraflops_per_second=946.7
        )
        plane.about = {
            "dot.7": {
                "long_name": DOT, "hlo_category": "convolution fusion", "tf_op": f"{SCOPE}:",
                "source": "/home/ann/my work/model.py:42", "model_flops": 524288, "flops": 1,
                "raw_bytes_accessed": 4096,
            },
            "split.2": {"long_name": BOTH, "hlo_category": "loop fusion"},
            "while.1": {"hlo_category": "while"},
            "copy-done.4": {"hlo_category": "copy-done"},
        }  # fmt: skip
        for start in (1000, 2000):
            plane.add(PROGRAMS, STEP, start, 900)
            plane.add(STEPS, "7", start, 900)
            plane.add(OPERATIONS, "while.1", start, 500)
            for at in (0, 250):
                plane.add(OPERATIONS, "split.2", start + at + 10, 40)
                plane.add(OPERATIONS, "add.3", start + at + 50, 150)
            plane.add(OPERATIONS, "dot.7", start + 500, 200)
            plane.add(OPERATIONS, "copy-done.4", start + 700, 60)
            plane.add(ASYNCHRONOUS, "copy-start.4", start + 510, 250)
    return space


@pytest.fixture(name="profile", params=FORMS)
def _profile(request: pytest.FixtureRequest, tmp_path: Path) -> ts.Profile:
    return ts.read_profile(written(small_space(), request.param, tmp_path))


def rows(profile: ts.Profile, instruction: str) -> pd.DataFrame:
    return profile.operations[profile.operations["instruction"] == instruction]


def test_the_operations_are_a_table(profile: ts.Profile) -> None:
    assert tuple(profile.operations) == COLUMNS
    assert len(profile.operations) == 2 * 2 * 8
    assert profile.devices == ("TPU:0", "TPU:1")
    dot = rows(profile, "dot.7")
    assert list(dot["start_ps"]) == [1500, 2500, 1500, 2500]
    first = dot.iloc[0]
    assert (first["program"], first["step"], first["device"]) == (STEP, 0, "TPU:0")
    assert (first["category"], first["flops"], first["bytes"]) == (
        "convolution fusion", 524288, 4096,
    )  # fmt: skip
    assert (first["shape"], first["spaces"]) == ("bf16[64,128]", "chip")
    assert (first["source"], first["scope"], first["layer"]) == ("model.py:42", SCOPE, 3)
    assert first["text"] == DOT
    assert pd.isna(rows(profile, "add.3")["flops"]).all()


def test_several_results_have_their_memories(profile: ts.Profile) -> None:
    split = rows(profile, "split.2").iloc[0]
    assert (split["shape"], split["spaces"]) == ("f32[8], s32[], u8[4]", "HBM, chip, host")


def test_self_times_have_the_step_between_them_to_the_picosecond(profile: ts.Profile) -> None:
    """A loop of 500 ps contains two times 40 and 150; then come 200 and 60."""
    assert list(rows(profile, "while.1")["self_ps"]) == [500 - 2 * 190] * 4
    core = profile.operations[~profile.operations["asynchronous"]]
    assert set(core.groupby(["device", "step"], observed=True)["self_ps"].sum()) == {760}
    assert list(profile.steps["busy_ps"]) == [760] * 4
    assert list(profile.steps["duration_ps"]) == [900] * 4
    assert dict(profile.by_category()) == {
        "": 300, "convolution fusion": 200, "idle": 140, "while": 120, "loop fusion": 80,
        "copy-done": 60,
    }  # fmt: skip


def test_only_a_done_waits_and_transfers_are_beside_the_core(profile: ts.Profile) -> None:
    operations = profile.operations
    assert set(operations[operations["wait"]]["instruction"]) == {"copy-done.4"}
    beside = operations[operations["asynchronous"]]
    assert set(beside["instruction"]) == {"copy-start.4"}
    assert set(beside["self_ps"]) == {250}


def test_iterations_of_a_loop_are_layers(profile: ts.Profile) -> None:
    split = rows(profile, "split.2")
    assert list(split["loops"]) == [1] * 8
    assert list(split["layer"]) == [0, 1] * 4
    assert set(rows(profile, "copy-done.4")["layer"]) == {-1}


def test_chip_and_clock_are_those_that_the_plane_states(tmp_path: Path) -> None:
    """946.7 TFLOP/s of a v6e, which has 918 at 1.75 GHz, are 1.805 GHz."""
    profile = ts.read_profile(written(small_space(), "xspace", tmp_path))
    assert (profile.kind, profile.chip) == ("TPU v6 Lite", "v6e")
    assert profile.clock_hz == pytest.approx(1.75e9 * 946.7 / 918)
    trace = ts.read_profile(written(small_space(), "trace", tmp_path))
    assert (trace.kind, trace.chip, trace.clock_hz) == ("", "", 0)
    assert [note.partition(",")[0] for note in profile.notes] == ["the profile has no HLO"]
    assert [note.partition(",")[0] for note in trace.notes] == [
        "a trace has no HLO", "the profile does not state the chip",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "chip"),
    [
        ("TPU v2", "v2"), ("TPU v3", "v3"), ("TPU v4", "v4"), ("TPU v5 lite", "v5e"),
        ("TPU v5e", "v5e"), ("TPU v5", "v5p"), ("TPU v5p", "v5p"), ("TPU v6 Lite", "v6e"),
        ("TPU v6e", "v6e"), ("TPU7x", "7x"), ("TPU v7x", "7x"), ("TPU v99", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_chip_has_the_profilers_names(kind: str, chip: str, tmp_path: Path) -> None:
    space = small_space()
    for plane in space.planes:
        plane.facts["device_type_string"] = kind
    assert ts.read_profile(written(space, "xspace", tmp_path)).chip == chip


def test_a_program_that_did_not_run_is_told(profile: ts.Profile) -> None:
    assert profile.program("jit_stop(1)") is None
    with pytest.raises(ts.TpusimError, match=r"has no program 'jit_stop\(1\)'; .*jit_step\("):
        profile.by_category("jit_stop(1)")


def test_what_is_printed_is_short(profile: ts.Profile) -> None:
    lines = str(profile).splitlines()
    assert lines[0].startswith(f"{profile.name}: 2 x TPU")
    assert lines[1] == "  jit_step: 2 times on each of 2 devices, 900 ps"
    assert [line.split()[:2] for line in lines[4:6]] == [["convolution", "fusion"], ["idle", "140"]]
    assert max(map(len, lines)) <= 100


def test_the_whole_hlo_line_is_kept_where_there_is_one(tmp_path: Path) -> None:
    space = small_space()
    whole = DOT.replace("%q", ", ".join(f"%q.{at}" for at in range(1000)))
    for plane in space.planes:
        plane.about["dot.7"]["long_name"] = whole
    for form, length in (("xspace", len(whole)), ("trace", 300)):
        profile = ts.read_profile(written(space, form, tmp_path))
        assert rows(profile, "dot.7").iloc[0]["text"] == whole[:length]
        assert rows(profile, "dot.7").iloc[0]["shape"] == "bf16[64,128]"


def test_a_line_that_is_cut_in_its_shape_has_the_one_that_is_recorded(tmp_path: Path) -> None:
    space = small_space()
    shapes = [f"f32[{at},8]{{1,0:T(8,128)S(1)}}" for at in range(1, 40)]
    for plane in space.planes:
        plane.about["dot.7"] |= {
            "long_name": f"%dot.7 = ({', '.join(shapes)}) fusion(%p)",
            "shape_with_layout": f"({', '.join(shapes[:3])})",
        }
    dot = rows(ts.read_profile(written(space, "trace", tmp_path)), "dot.7").iloc[0]
    assert (dot["shape"], dot["spaces"]) == ("f32[1,8], f32[2,8], f32[3,8]", "chip")


def body(space: SpaceWriter, loops: list[tuple[str, int, int]], scopes: dict[str, str]) -> None:
    plane = space.plane()
    plane.add(PROGRAMS, STEP, 0, 10_000)
    for name, start, lasts in loops:
        plane.add(OPERATIONS, name, start, lasts)
    plane.about = {name: {"tf_op": scope} for name, scope in scopes.items()}
    for name in ("while.1", "while.2", "while.3"):
        plane.about[name] = {"hlo_category": "while"}


def test_the_backward_pass_of_a_loop_begins_with_the_last_layer(tmp_path: Path) -> None:
    space = SpaceWriter()
    events = [("while.1", 0, 1000)]
    events += [(name, 100 * at + 20 * n, 10) for at in range(3) for n, name in enumerate("abc")]
    body(space, events, {"b": "jit(step)/transpose(jvp(while))/body/dot_general"})
    profile = ts.read_profile(written(space, "xspace", tmp_path))
    for name in "abc":
        assert list(rows(profile, name)["layer"]) == [2, 1, 0]


def test_of_loops_inside_each_other_the_richest_has_the_layers(tmp_path: Path) -> None:
    """Two microbatches of three layers, in each of which a ring has two rounds."""
    space, events = SpaceWriter(), [("while.1", 0, 2000)]
    for micro in (0, 1000):
        events += [("accumulate", micro, 5), ("while.2", micro + 10, 900)]
        for layer in (0, 300, 600):
            begin = micro + 10 + layer
            events += [(name, begin + 20 * n, 10) for n, name in enumerate("abcd")]
            events.append(("while.3", begin + 100, 100))
            events += [("send", begin + 110 + at, 20) for at in (0, 40)]
    body(space, events, {})
    profile = ts.read_profile(written(space, "xspace", tmp_path))
    assert list(rows(profile, "a")["layer"]) == [0, 1, 2] * 2
    assert list(rows(profile, "send")["layer"]) == [0, 0, 1, 1, 2, 2] * 2
    assert list(rows(profile, "send")["loops"]) == [3] * 12
    assert list(rows(profile, "accumulate")["layer"]) == [0, 1]


def test_events_that_overlap_share_no_time(tmp_path: Path) -> None:
    """A clock that rounds: the later one has the time of both, and an end is no beginning."""
    space = SpaceWriter()
    body(space, [("a", 0, 60), ("b", 20, 35), ("c", 50, 40), ("d", 90, 10), ("e", 90, 0)], {})
    profile = ts.read_profile(written(space, "xspace", tmp_path))
    assert dict(zip(profile.operations["instruction"], profile.operations["self_ps"], strict=True)
                ) == {"a": 20, "b": 30, "c": 40, "d": 10, "e": 0}  # fmt: skip
    assert list(profile.steps["busy_ps"]) == [100]


def test_an_event_whose_times_are_impossible_is_left_out_and_said(tmp_path: Path) -> None:
    space = small_space()
    for count, words in ((1, "1 event is left out"), (2, "2 events are left out")):
        space.planes[0].add(OPERATIONS, "dot.7", 2**60, count)
        profile = ts.read_profile(written(space, "xspace", tmp_path))
        assert f"{words}, as times are impossible" in profile.notes
        assert len(profile.operations) == 2 * 2 * 8


def test_operations_outside_of_programs_have_none(tmp_path: Path) -> None:
    space = small_space()
    space.planes[0].add(OPERATIONS, "late", 5000, 10)
    late = rows(ts.read_profile(written(space, "xspace", tmp_path)), "late").iloc[0]
    assert late["step"] == -1
    assert pd.isna(late["program"])


@pytest.mark.parametrize("form", FORMS)
def test_without_programs_steps_stand_for_them_and_then_all_operations(
    form: str, tmp_path: Path
) -> None:
    space = small_space()
    for plane in space.planes:
        del plane.lines[PROGRAMS]
    assert ts.read_profile(written(space, form, tmp_path)).main == "7"
    for plane in space.planes:
        del plane.lines[STEPS]
    profile = ts.read_profile(written(space, form, tmp_path))
    assert profile.main == "(all operations)"
    assert list(profile.steps["duration_ps"]) == [1760, 1760]


def test_what_sparse_cores_do_is_beside_the_core(tmp_path: Path) -> None:
    space = small_space()
    sparse = space.plane("/device:TPU:1 SparseCore 0")
    sparse.add("Sparse Core Ops", "gather_offload.1", 1100, 90)
    profile = ts.read_profile(written(space, "xspace", tmp_path))
    assert profile.devices == ("TPU:0", "TPU:1")
    (row,) = rows(profile, "gather_offload.1").to_dict("records")
    assert (row["device"], row["asynchronous"], row["step"]) == ("TPU:1", True, 0)


def test_times_that_count_from_1970_begin_at_zero(tmp_path: Path) -> None:
    from tpusim.profiles.xspace_schema import Event, Line, Plane, Space

    plane = Plane(name=b"/device:TPU:0")
    for number, name in ((1, b"dot.7"), (2, b"jit_f(1)")):
        plane.events.add(key=number).value.name = name
    for name, kind, since in ((b"XLA Ops", 1, 5), (b"XLA Modules", 2, 3)):
        line = Line(name=name, timestamp_ns=1_783_579_579_390_989_132 + since)
        line.events.append(Event(kind=kind, offset_ps=7, duration_ps=100).SerializeToString())
        plane.lines.append(line.SerializeToString())
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(Space(planes=[plane.SerializeToString()]).SerializeToString())
    profile = ts.read_profile(path)
    assert list(profile.steps["start_ps"]) == [0]
    assert list(profile.operations["start_ps"]) == [2000]


def test_a_folder_of_tensorboard_has_the_newest_profile(tmp_path: Path) -> None:
    for time in ("2026_01_11_21_26_41", "2026_01_12_00_26_20"):
        folder = tmp_path / "logs/run_b/plugins/profile" / time
        folder.mkdir(parents=True)
        for host in ("t1v-n-0-w-0", "t1v-n-0-w-1"):
            (folder / f"{host}.xplane.pb").write_bytes(small_space().xspace())
        (folder / "t1v-n-0-w-0.trace.json.gz").write_bytes(small_space().trace())
    (tmp_path / "logs/run_b/plugins/profile/2026_01_11_21_26_41/z.xplane.pb").write_bytes(b"")
    older = tmp_path / "logs/run_c/plugins/profile/2025_12_31_00_00_00"
    older.mkdir(parents=True)
    (older / "z.xplane.pb").write_bytes(b"")
    for given in (tmp_path / "logs", tmp_path / "logs/run_b", folder.parent, folder):
        profile = ts.read_profile(given)
        assert profile.name == "t1v-n-0-w-0.xplane.pb"
        assert profile.notes[0].startswith("the first of 2 hosts;")
    for file in folder.glob("*.xplane.pb"):
        file.unlink()
    assert ts.read_profile(folder).name == "t1v-n-0-w-0.trace.json.gz"


def test_the_names_of_a_trace_may_come_in_any_order(tmp_path: Path) -> None:
    """Lines before the device that they are of, as in a trace whose events were sorted."""
    trace = json.loads(gzip.decompress(small_space().trace()))
    trace["traceEvents"].sort(key=lambda each: each.get("name", ""), reverse=True)
    trace["traceEvents"].sort(key=lambda each: each.get("ph") != "M")
    path = tmp_path / "sorted.trace.json"
    path.write_text(json.dumps(trace), "utf-8")
    whole = ts.read_profile(written(small_space(), "trace", tmp_path))
    assert list(ts.read_profile(path).steps["busy_ps"]) == list(whole.steps["busy_ps"])


def test_of_a_folder_the_file_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "a.xplane.pb").write_bytes(b"hello")
    assert refused(tmp_path).startswith("a.xplane.pb: neither")


def refused(path: object) -> str:
    with pytest.raises(FileError) as caught:
        ts.read_profile(path)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_what_is_no_profile_gets_a_sentence(tmp_path: Path) -> None:
    assert "folder without a profile" in refused(tmp_path)
    assert "No such file" in refused(tmp_path / "none.xplane.pb")
    assert "write a path" in refused(7)
    for name, data, words in (
        ("empty.xplane.pb", b"", "broken"),
        ("text.xplane.pb", b"hello", "broken"),
        ("half.xplane.pb", small_space().xspace()[:-100], "broken"),
        ("half.trace.json.gz", small_space().trace()[:-100], "broken gzip"),
        ("none.trace.json", b"{}", "without `traceEvents`"),
        ("list.trace.json", b"[1, 2]", "no TPU"),
        ("run.toml", b'[slice]\nchip = "v6e"\n', "neither an XSpace nor a trace"),
        ("half.trace.json", gzip.decompress(small_space().trace())[:-100], "broken JSON"),
    ):
        (tmp_path / name).write_bytes(data)
        assert words in refused(tmp_path / name), name


@pytest.mark.parametrize("form", FORMS)
def test_a_profile_of_other_devices_gets_a_sentence(form: str, tmp_path: Path) -> None:
    for plane, words in (
        ("/device:GPU:0", "a profile of GPU:0; only profiles of TPUs are read"),
        ("/host:CPU", "no TPU in it"),
        ("/device:TPU:0", "no operation in it"),
    ):
        space = SpaceWriter()
        space.plane(plane).add("Stream #1", "dot", 0, 10)
        assert words in refused(written(space, form, tmp_path))


def test_a_profile_that_jax_makes_on_a_cpu_is_read_and_says_so(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    step = jax.jit(lambda x: jax.numpy.tanh(x @ x).sum())
    given = jax.numpy.ones((256, 256))
    step(given).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        for _ in range(4):
            step(given).block_until_ready()
    profile = ts.read_profile(tmp_path)
    assert (profile.kind, profile.chip) == ("CPU", "")
    assert "a profile of CPUs: its times say nothing of TPUs" in profile.notes
    steps = profile.steps[profile.steps["program"] == profile.main]
    assert len(steps) == 4
    assert (steps["busy_ps"] <= steps["duration_ps"]).all()
    found = ts.diagnose(profile)
    for table in (found.by_kind, found.by_layer, found.by_line, found.by_axis, found.by_operation):
        assert table["measured_ps"].sum() == found.measured_ps > 0


def test_no_folder_of_a_profile_is_in_a_table_a_message_or_a_name(tmp_path: Path) -> None:
    secret = ("/home/ann smith/work/model.py", "C:\\Users\\ann smith\\model.py", "~ann/model.py",
              "/home/ann/a b/c/model.py", "//share/ann/model.py")  # fmt: skip
    for path in secret:
        space = small_space()
        for plane in space.planes:
            plane.about["dot.7"] |= {
                "source": f"{path}:42",
                "tf_op": f"{path}/layers_3/dot:",
                "long_name": f'{DOT}, metadata={{op_name="jit(f)/mlp/dot" source_file="{path}"}}',
                "hlo_category": path,
            }
            plane.add(OPERATIONS, path, 1800, 10)
            plane.add(PROGRAMS, f"jit_f({path})", 4000, 10)
        for form in FORMS:
            profile = ts.read_profile(written(space, form, tmp_path))
            said = profile.operations.to_csv() + profile.steps.to_csv() + str(profile)
            assert "ann" not in said.replace("dot.7", ""), path
            assert "mlp/dot" in said
            assert str(tmp_path) not in said
    broken = tmp_path / "ann" / "x.xplane.pb"
    broken.parent.mkdir()
    broken.write_bytes(b"{")
    assert "ann" not in refused(broken)


def test_the_commands_that_take_other_files_say_who_reads_a_profile(tmp_path: Path) -> None:
    path = written(small_space(), "xspace", tmp_path)
    packed = tmp_path / "host.xplane.pb.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for call, given in product((ts.read_run, ts.validate), (path, packed)):
        with pytest.raises(FileError, match="a profile of a run, which `tpusim diagnose`"):
            call(given)

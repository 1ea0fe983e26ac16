"""The command line: answers, exit codes, and one sentence for each mistake."""

import gc
import json
from pathlib import Path

import pytest
from commands import SMALL, run, said

from tpusim.cli import main as entry

RUN = f"{SMALL}mesh = {{ fsdp = 16 }}\n"


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(RUN, "utf-8")
    return str(file)


def test_simulate_prints_the_report(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["simulate", path], capsys)
    assert (code, error) == (0, "")
    assert "transformer on v5e:4x4 (16 chips)" in out
    assert "a perfect compiler (lowering ideal): " in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_model_of_a_config_has_its_name_and_its_notes(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["FalconForCausalLM"], "hidden_size": 512, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 1000, "alibi": True}  # fmt: skip
    (tmp_path / "small.json").write_text(json.dumps(config), "utf-8")
    text = Path(path).read_text("utf-8")
    begin, end = text.index("layers"), text.index("[plan]")
    Path(path).write_text(f'{text[:begin]}hf = "small.json"\n{text[end:]}', "utf-8")
    code, out, _ = said(["simulate", path], capsys)
    assert code == 0
    assert "small on v5e:4x4 (16 chips)" in out
    assert "note        not modelled: ALiBi biases of the attention scores" in out
    assert max(map(len, out.splitlines())) <= 100


def test_an_ideal_lowering_is_not_compared_with_itself(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "perfect" not in said(["simulate", path, "--set", "plan.lowering=ideal"], capsys)[1]


@pytest.mark.usefixtures("undrawn")
def test_a_plan_that_does_not_fit_is_an_answer(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "plan.global_batch=3200000"]
    code, out, _ = said(["simulate", path, *settings, "--out", str(tmp_path / "out")], capsys)
    assert code == 0
    assert out.startswith("DOES NOT FIT: needs ")
    written = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    assert written["fits"] is False
    assert written["reason"].startswith("needs ")
    assert written["step_time_s"] > 0


def test_settings_change_the_run(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--set", "plan.remat=minimal", "--set", "model.layers=5"]
    _, out, _ = said(["simulate", path, *arguments, "--program"], capsys)
    assert "remat minimal" in out
    assert "loop layers x5" in out


@pytest.mark.usefixtures("undrawn")
def test_stats_are_asked_for_and_never_in_files(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    _, out, _ = said(["simulate", path, "--stats", "--out", str(folder)], capsys)
    assert "trips simulated of" in out
    assert "stats" not in said(["simulate", path], capsys)[1]
    assert not [file for file in folder.iterdir() if b"trips simulated" in file.read_bytes()]


def test_folding_changes_no_time(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    folded = said(["simulate", path], capsys)[1]
    assert said(["simulate", path, "--no-fold"], capsys)[1] == folded


@pytest.mark.usefixtures("undrawn")
def test_the_summary_on_disk_is_what_is_printed(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "b"
    _, out, _ = said(["simulate", path, "--out", str(folder)], capsys)
    summary = (folder / "summary.txt").read_text("utf-8")
    assert out == f"{summary}\nreport      {folder}\n"


def test_chips(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["chips"], capsys)[1].startswith("chip ")
    assert said(["chips", "v5p"], capsys)[1].startswith("TPU v5p: ")


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["--version"], capsys)
    assert (code, out) == (0, "tpusim 0.3.0\n")
    code, out, _ = said([], capsys)
    assert code == 0
    assert out == said(["--help"], capsys)[1]
    assert "simulate" in out


def test_the_placements_are_explained(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    mesh = ["--set", "plan.mesh={ data = 2, fsdp = 2, tensor = 4 }"]
    plain = said(["simulate", path, *mesh], capsys)[1]
    code, out, _ = said(["simulate", path, *mesh, "--explain", "placement"], capsys)
    assert code == 0
    assert out.startswith(plain)
    head, names, *rest = out.removeprefix(plain).strip().splitlines()
    rows = [line for line in rest if "data=2" in line]
    assert head.startswith(f"placements  {len(rows)} candidates; ")
    assert names.split() == ["step", "time", "slower", "collectives", "placement"]
    assert " ".join(rest).index("(chosen)") < " ".join(rest).index(rows[1].strip())
    assert max(map(len, out.splitlines())) <= 100


def test_a_given_placement_is_marked_in_the_explanation(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", "plan.mesh={ fsdp = 4, tensor = 4 }",
             "--set", 'plan.placement={ fsdp = ["y"], tensor = ["x"] }']  # fmt: skip
    _, out, _ = said(["simulate", path, *given, "--explain", "placement"], capsys)
    table = out.split("\n\n")[-1].splitlines()
    assert table[0] == "placements  5 candidates"
    (taken,) = [line for line in table if line.endswith("  fsdp=4 on y · tensor=4 on x (given)")]
    (alike,) = [line for line in table if line.endswith("  fsdp=4 on x · tensor=4 on y")]
    assert taken.split()[:3] == alike.split()[:3]


def test_the_collectives_are_explained(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(["simulate", path, "--explain", "collectives"], capsys)
    head, names, first, *_ = out.split("\n\n")[-1].splitlines()
    assert head.startswith("collectives ")
    assert names.split() == ["collective", "mode", "bytes", "times", "each", "how"]
    assert "fsdp" in first
    assert max(map(len, out.splitlines())) <= 100


MISTAKES = [
    (["simulate", "RUN", "--explain", "placment"],
     "--explain is 'placment': did you mean 'placement'?"),
    (["simulate", "RUN", "--explain", "all"],
     "--explain is 'all': valid are advice, collectives, convolutions, lines, passes, pipeline, "
     "placement"),
    (["simulte", "RUN"], "No such command 'simulte'; did you mean 'simulate'?"),
    (["chips", "v5"], "no chip 'v5' in the catalogue; did you mean 'v5e' or 'v5p'?"),
    (["chips", "v7x-8"], "that is a slice of the chip 7x; write '7x'"),
    (["chips", "ironwood-256"], "that is a slice of the chip 7x; write '7x'"),
    (["chips", "v6e:16x16"], "that is a slice of the chip v6e; write 'v6e'"),
    (["chips", "h100-8"], "no chip 'h100-8' in the catalogue; valid are 7x, v2"),
    (["simulate"], "Missing argument 'RUN.toml'"),
    (["simulate", "RUN", "--ot", "x"], "No such option: --ot"),
    (["simulate", "RUN", "more"], "2 run files are given; give one, or --maxtext"),
    (["simulate", "RUN", "--out", ""], "--out is empty; give a folder"),
    (["simulate", "RUN", "--out", "RUN"], "run.toml is a file; give a folder"),
    (["simulate", "RUN", "--out", "o" * 300], "cannot be written: File name too long; give a fold"),
    (["simulate", "RUN", "--out", "RUN/deep/er"], "er cannot be written: Not a directory"),
    (["simulate", "RUN", "--out", "/proc/none/x"], "/proc/none/x cannot be written"),
    (["simulate", "none.toml"], "none.toml: cannot be read: No such file"),
    (["simulate", "RUN", "--set", "plan.remta=full"], "did you mean 'remat'?"),
    (["simulate", "RUN", "--set", "plan.mesh.fsdp=8"], "8, but there are 16 devices of v5e:4x4"),
    (["simulate", "RUN", "--set", "plan.global_batch=24"], "does not divide by the 16 shards"),
    (["simulate", "RUN", "--set", "plan.global_batch=8"], "is smaller than the 16 shards"),
    (["simulate", "RUN", "--set", "slice.topology=4x5"], "v5e has no slice 4x5"),
    (["simulate", "RUN", "--set", "plan.rules.mpl=fsdp"], "did you mean 'mlp'"),
    (["simulate", "RUN", "--set", "plan.rules.mlp=fdsp"], "did you mean 'fsdp'?"),
    (["simulate", "RUN", "--set", 'plan.annotate={ "layer/k" = ["fsdp"] }'], "gives 1 entries"),
    (["simulate", "RUN", "--set", 'plan.annotate={ "loss" = [[], "fsdp"] }', "--set",
      "plan.seq_len=9"], "shards seq (size 9) over fsdp = 16, which does not divide it"),
    (["simulate", "RUN", "--set", 'plan.placement={ fsdp = ["x"] }'],
     "write dimensions whose sizes multiply to 16 (here x=4, y=4)"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.replace("RUN", path) for argument in arguments]
    code, out, error = said(given, capsys)
    assert (code, out) == (2, "")
    assert sentence in error


def test_the_message_names_file_and_setting(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, error = said(["simulate", path, "--set", "plan.mesh.fsdp=8"], capsys)
    assert error.startswith(f"{path} --set plan.mesh.fsdp=8: ")


def test_a_folder_is_tried_before_the_simulation(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tpusim.cli.simulate_command as simulation

    monkeypatch.setattr(simulation, "simulate", lambda *_, **__: pytest.fail("simulated"))
    assert said(["simulate", path, "--out", path], capsys)[0] == 2


def test_a_wrong_run_leaves_no_folder(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "b"
    settings = ["--set", "plan.global_batch=8"]
    assert said(["simulate", path, *settings, "--out", str(folder)], capsys)[0] == 2
    assert not folder.parent.exists()


def test_a_defect_of_ours_asks_for_a_report(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tpusim.cli.simulate_command as simulation

    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(simulation, "simulate", broken)
    code, _, error = said(["simulate", path], capsys)
    assert code == 1
    assert "a defect of tpusim, please report it: KeyError('lost')" in error
    monkeypatch.setenv("TPUSIM_DEBUG", "1")
    with pytest.raises(KeyError, match="lost"):
        run(["simulate", path])


def test_the_entry_point_exits_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tpusim", "nothing"])
    with pytest.raises(SystemExit) as caught:
        entry()
    gc.unfreeze()  # what the entry point leaves alone at its end; this process goes on
    assert caught.value.code == 2

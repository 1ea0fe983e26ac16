"""The command that replays HLO: what it prints and writes, and a sentence for each mistake."""

import json
from pathlib import Path

import pytest
from commands import said

from tpusim.base import PlanError
from tpusim.cli.program_commands import parse_mesh_option

pytest.importorskip("jaxlib.xla_client")

HLO = str(Path(__file__).parents[2] / "data" / "hlo" / "plain" / "scan_mlp_v5e_2x2.hlo.gz")
GIVEN = ["replay", HLO, "--slice", "v5e:2x2"]


def test_it_prints_the_report_and_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(GIVEN, capsys)
    assert (code, error) == (0, "")
    assert out.splitlines()[0].endswith(" on v5e:2x2 (4 chips)")
    for head in ("program", "placement", "costs", "step time", "HBM peak", "links", "unknown"):
        assert f"\n{head:<12}" in out
    assert "\nlines       all " in out
    assert max(map(len, out.splitlines())) <= 100


def test_folding_changes_nothing_but_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    folded, unfolded = said(GIVEN, capsys)[1], said([*GIVEN, "--no-fold"], capsys)[1]
    assert folded == unfolded


def test_taps_on_padding_are_left_out_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["replay", str(Path(HLO).parents[1] / "convolution_v5e_4x4.hlo.gz")]
    assert "FLOPs count taps of convolutions on padding" in said(given, capsys)[1]
    without = " ".join(said([*given, "--no-padding-taps"], capsys)[1].split())
    assert "FLOPs leave out taps of convolutions on padding, 1.0% of what the array" in without
    assert "the model's FLOPs are as its file has them" in without


@pytest.mark.thorough
def test_all_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said([*GIVEN, "--out", str(tmp_path / "report"), "--stats"], capsys)
    assert code == 0
    assert f"report      {tmp_path / 'report'}" in out
    assert "events" in out
    names = {file.name for file in (tmp_path / "report").iterdir()}
    assert {"lines.csv", "trace.json.gz", "timeline.png", "torus.png", "result.json"} <= names
    result = json.loads((tmp_path / "report" / "result.json").read_text("utf-8"))
    assert result["replay"]["costs"] in ("compiler", "model")
    assert result["mfu"] is None


@pytest.mark.usefixtures("undrawn")
def test_the_page_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = said([*GIVEN, "--no-html", "--out", str(tmp_path / "report")], capsys)
    assert (code, error) == (0, "")
    names = {file.name for file in (tmp_path / "report").iterdir()}
    assert "result.json" in names
    assert "report.html" not in names


def test_model_flops_give_the_mfu(capsys: pytest.CaptureFixture[str]) -> None:
    out = said([*GIVEN, "--model-flops", "1e12"], capsys)[1]
    assert any(line.startswith("MFU ") for line in out.splitlines())
    assert "MFU is not known" not in out


def test_program_and_collectives_are_shown_when_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = said([*GIVEN, "--program", "--explain", "collectives"], capsys)[1]
    assert "\ncollectives " in out
    assert "\nprogram " in out
    assert "loop while" in out


MISTAKES = (
    (["replay", "missing.hlo", "--slice", "v5e:2x2"], "missing.hlo: cannot be read"),
    (["replay", __file__, "--slice", "v5e:2x2"], "test_replay_command.py: "),
    (["replay", HLO], "is for 4 devices and does not say of which slice; give the one"),
    (["replay", HLO, "--slice", "v5e"], "'v5e' is not the name of a slice"),
    (["replay", HLO, "--slice", "v9:2x2"], "v9"),
    (["replay", HLO, "--slice", "v5e:4x4"], "is for 4 devices, but v5e:4x4 has 16"),
    ([*GIVEN, "--costs", "compilr"], "costs is 'compilr': did you mean"),
    ([*GIVEN, "--explain", "placement"], "--explain is 'placement': valid are"),
    ([*GIVEN, "--mesh", "fsdp"], "--mesh is 'fsdp'"),
    ([*GIVEN, "--mesh", "fsdp=8"], "the mesh has fsdp=8 = 8, but there are 4 devices"),
    ([*GIVEN, "--model-flops", "0"], "model_flops is 0"),
    ([*GIVEN, "--model-flops", "inf"], "model_flops is inf"),
    (["replay", __file__], "not HLO"),
    ([*GIVEN, "--out", ""], "--out is empty"),
)


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said(arguments, capsys)
    assert (code, out) == (2, "")
    assert sentence in error


def test_a_mesh_is_axes_with_sizes() -> None:
    assert parse_mesh_option("fsdp=256, tensor=8") == {"fsdp": 256, "tensor": 8}
    for wrong in ("", "fsdp", "fsdp=0", "fsdp=x", "=4", "a=2,a=2", "a=2,"):
        with pytest.raises(PlanError, match="--mesh is"):
            parse_mesh_option(wrong)

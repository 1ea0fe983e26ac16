"""`tpusim diagnose`: what it is given, what it prints and writes, and mistakes."""

import json
from pathlib import Path

import pytest
from commands import SMALL, said

pytest.importorskip("jaxlib", reason="replaying HLO needs the extra `xla`")

TESTS = Path(__file__).parents[2]
PROFILE = str(TESTS / "data/profiles/scan_mlp_v5e_2x2.xplane.pb.gz")
HLO = str(TESTS / "data/hlo/plain/scan_mlp_v5e_2x2.hlo.gz")
CONFIG = str(TESTS.parent / "experiments/diagnosis/v6e_272m.yml")


def test_the_faults_of_the_profile_are_said_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["diagnose", PROFILE], capsys)
    assert (code, error) == (0, "")
    said_at = [out.index(part) for part in (
        "step 4 of 5 takes", "collectives over x,y are exposed for", "matmuls take 1.",
        "devices wait 1.5 ms between steps", "by kind [ms]", "sum")]  # fmt: skip
    assert said_at == sorted(said_at)


def test_json_is_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["diagnose", PROFILE, "--json"], capsys)
    facts = json.loads(out)
    assert code == 0
    assert facts["difference_ps"] == facts["measured_ps"] - facts["predicted_ps"]
    for table in ("by_kind", "by_layer", "by_line", "by_axis", "by_operation"):
        assert sum(row["difference_ps"] for row in facts[table]) == facts["difference_ps"]
    assert facts["findings"][0]["kind"] == "slow steps"


@pytest.mark.thorough
def test_predictions_are_programs_run_files_and_maxtext_configs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.toml"
    run.write_text(f"{SMALL}mesh = {{ fsdp = 16 }}\n", "utf-8")
    for given, words in (
        ([HLO], "the replay of scan_mlp_v5e_2x2 on v5e:2x2"),
        ([HLO, "--slice", "v5e:2x2"], "the replay of scan_mlp_v5e_2x2 on v5e:2x2"),
        ([str(run)], "the plan of transformer on v5e:4x4"),
        ([str(run), "--set", "slice.chip=v6e"], "the plan of transformer on v6e:4x4"),
        (["--maxtext", CONFIG, "--slice", "v6e-8"], "the plan of maxtext on v6e:2x4"),
        (["--slice", "v5e:2x2"], "the replay of jit_scan_mlp_v5e_2x2 on v5e:2x2"),
    ):
        code, out, error = said(["diagnose", PROFILE, *given], capsys)
        assert (code, error) == (0, "")
        assert words in out


def test_a_folder_gets_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["diagnose", PROFILE, "--out", str(tmp_path), "--no-html"], capsys)
    assert code == 0
    assert out.splitlines()[-1].split() == ["report", str(tmp_path)]
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"diagnose.txt", "diagnose.json", "parts.csv", "timelines.png", "timelines.svg"}


def test_the_prediction_is_optional_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "diagnose [OPTIONS] PROFILE [RUN.toml]\n" in said(["diagnose", "--help"], capsys)[1]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["none.xplane.pb"], "none.xplane.pb: cannot be read"),
        ([PROFILE, "--slice", "v5e:4x4"], "is for 4 devices, but v5e:4x4 has 16"),
        ([PROFILE, "--set", "plan.remat=full"], "--set changes a plan, and none is given"),
        ([PROFILE, "run.toml", "--maxtext", "config.yml"], "are both predictions; give one"),
        ([PROFILE, "run.toml", "--slice", "v5e-4"], "write --set slice.name=v5e-4"),
        ([PROFILE, "--slice", "seven"], "'seven' is not the name of a slice"),
        ([PROFILE, PROFILE], "a profile of a run, which `tpusim diagnose` compares"),
        ([PROFILE, "config.yml"], "a MaxText config is given as --maxtext config.yml"),
        ([PROFILE, "none.hlo"], "none.hlo: cannot be read"),
        ([HLO], "scan_mlp_v5e_2x2.hlo.gz: "),
    ],
)
def test_a_mistake_is_a_sentence(
    given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said(["diagnose", *given], capsys)
    assert (code, out) == (2, "")
    assert sentence in error

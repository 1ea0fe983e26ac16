"""`tpusim search` and `tpusim advise` of a server, and `tpusim serve --knee`."""

import json
from pathlib import Path

import pytest
from commands import said

BASE = """
[model]
layers = 2
embed = 512
mlp = 2048
heads = 4
vocab = 1000
[traffic]
rate = 20.0
requests = 100
prompt = { uniform = [100, 300] }
output = 16
[targets]
ttft_p99_s = 0.5
"""
SEARCH = f"""{BASE}
[serving]
max_num_batched_tokens = 512
[search]
slices = ["v6e-1", "v6e-4"]
axes = ["attn_data", "tensor"]
vary = {{ max_num_seqs = [4, 16] }}
"""
SERVER = f"""{BASE}
[slice]
name = "v6e-4"
[serving]
mesh = {{ tensor = 4 }}
max_num_seqs = 16
max_num_batched_tokens = 512
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "search.toml"
    file.write_text(SEARCH, "utf-8")
    return str(file)


def test_a_search_prints_the_server_and_its_command(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    code, out, error = said(["search", path, "--out", str(folder)], capsys)
    assert (code, error) == (0, "")
    assert out.startswith("search      8 servers of transformer on 2 slices, in ")
    assert "proved: no server that meets the targets is better" in out
    assert "start       vllm serve transformer" in out
    assert {file.name for file in folder.iterdir()} == {
        "search.txt", "search.json", "server.yaml",
    }  # fmt: skip
    facts = json.loads(said(["search", path, "--json"], capsys)[1])
    assert facts == json.loads((folder / "search.json").read_text("utf-8"))
    assert facts["best"][0]["slice"] == "v6e:1x1"
    assert said(["search", path, "--count"], capsys)[1] == "search      8 servers\n"


def test_targets_that_nothing_meets_name_the_nearest_server(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(["search", path, "--set", "targets.ttft_p99_s=1e-6"], capsys)
    assert code == 0
    assert "no server of the space meets the targets (TTFT p99 at most 1" in out
    assert "the nearest, v6e:" in out


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["serving.mesh={tensor=4}"], "serving.mesh is given, but a search chooses the mesh"),
        (["search.vary.kv_dtype=['fp9']"], "search.vary.kv_dtype: "),
        (["search.vary.fsdp=[1]"], "search.vary.fsdp: [serving] has an unknown key 'fsdp'"),
        (["search.slices=3"], "search.slices is 3; write a list"),
        (["search.goal='cost'"], "[search] has an unknown key 'goal'"),
        (["targets.tpot=1"], "[targets] has an unknown key 'tpot'"),
        (["slice.name='v6e-4'"], "a search takes its slices from one of"),
        (["search.objective='price'"], "search.objective is 'price'"),
        (["search.top=0"], "search.top is 0"),
    ],
)
def test_each_mistake_is_one_sentence(
    path: str, settings: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for each in settings for word in ("--set", each)]
    code, out, error = said(["search", path, *words], capsys)
    assert (code, out) == (2, "")
    assert sentence in error


def test_options_of_a_search_of_plans_are_refused(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = said(["search", path, "--workers", "1"], capsys)
    assert code == 2
    assert "--workers is for a search of training plans" in error


@pytest.mark.thorough
def test_a_server_is_advised_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.toml"
    file.write_text(SERVER.replace("[serving]", "[serving]\nrequest_s = 0.0"), "utf-8")
    code, out, error = said(["advise", str(file)], capsys)
    assert (code, error) == (0, "")
    assert out.startswith("advice      transformer on v6e:2x2, end to end p50 ")
    assert "--set 'serving." in out or "--set serving." in out
    few = said(["advise", str(file), "--top", "1", "--json"], capsys)[1]
    assert json.loads(few)["goal"] == "e2e_p50_s"
    missed = said(["advise", str(file), "--set", "targets.ttft_p99_s=1e-5"], capsys)[1]
    assert "(misses TTFT p99 " in missed


def test_the_knee_of_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.toml"
    file.write_text(SERVER.replace("[targets]\nttft_p99_s = 0.5", ""), "utf-8")
    code, out, error = said(["serve", str(file), "--knee"], capsys)
    assert (code, error) == (0, "")
    assert out.startswith("knee        transformer on v6e:2x2 saturates at ")
    facts = json.loads(said(["serve", str(file), "--knee", "--json"], capsys)[1])
    assert facts["below"] < facts["load"] < facts["above"]
    code, _, error = said(["serve", str(file), "--knee", "--loads", "1,2"], capsys)
    assert code == 2
    assert "--knee" in error

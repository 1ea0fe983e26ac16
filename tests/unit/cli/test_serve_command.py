"""`tpusim serve`, and `tpusim simulate` of a server: reports, files, and a sentence a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, said

import tpusim as ts
from tpusim.runfile import read_serving
from tpusim.serving.serve import serve

SERVER = """
[slice]
chip = "v6e"
topology = "2x2"
[model]
layers = 2
embed = 512
mlp = 2048
heads = 4
vocab = 1000
[serving]
mesh = { tensor = 4 }
max_num_seqs = 16
max_num_batched_tokens = 512
[traffic]
rate = 20.0
requests = 100
prompt = { uniform = [100, 300] }
output = 16
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "server.toml"
    file.write_text(SERVER, "utf-8")
    return str(file)


def test_the_report_and_its_files(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    code, out, error = said(["serve", path, "--out", str(folder)], capsys)
    assert (code, error) == (0, "")
    assert out.startswith("serving     transformer on v6e:2x2 (4 chips)")
    assert out.endswith(f"\nreport      {folder}\n")
    names = {file.name for file in folder.iterdir()}
    assert names >= {"serving.txt", "serving.json", "report.html", "trace.json.gz"}
    code, out, _ = said(["serve", path, "--json"], capsys)
    assert json.loads(out) == json.loads((folder / "serving.json").read_text("utf-8"))


def test_the_command_is_the_call(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = read_serving(path)
    assert run.traffic is not None
    traffic = run.traffic.traffic(run.folder)
    found = serve(run.model, run.plan, run.pod, traffic, run.engine)
    _, out, _ = said(["serve", path], capsys)
    assert out == f"{found}\n"


def test_every_load_is_a_row(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    code, out, _ = said(["serve", path, "--loads", "10,40", "--out", str(folder)], capsys)
    assert code == 0
    rows = [line.split("  ") for line in out.splitlines()]
    assert [row[1] for row in rows if row[1:]][-3:-1] == ["10 requests/s", "40 requests/s"]
    assert {file.name for file in folder.iterdir()} == {
        "loads.txt", "loads.json", "loads.png", "loads.svg",
    }  # fmt: skip
    _, out, _ = said(["serve", path, "--loads", "10,40", "--json"], capsys)
    one = ["serve", path, "--json", "--set", "traffic.rate=40"]
    assert json.loads(out)[1] == json.loads(said(one, capsys)[1])


def test_a_closed_loop_is_loaded_by_its_users(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(path).read_text("utf-8").replace("rate = 20.0", 'kind = "closed_loop"\nusers = 2')
    Path(path).write_text(text, "utf-8")
    _, out, _ = said(["serve", path, "--loads", "1,4"], capsys)
    assert "  1 user " in out
    assert "  4 users" in out
    code, _, error = said(["serve", path, "--loads", "1.5"], capsys)
    assert (code, "--loads has 1.5 users; write whole numbers" in error) == (2, True)


def test_simulate_has_a_step_of_each_kind(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    code, out, error = said(["simulate", path, "--out", str(folder)], capsys)
    assert (code, error) == (0, "")
    titles = [line for line in out.splitlines() if line.startswith("transformer on ")]
    assert [title.split(": ")[-1] for title in titles] == [
        "prefill step (4 chips)", "decode step (4 chips)",
    ]  # fmt: skip
    assert "16 decoding tokens" in out
    assert (folder / "prefill/report.html").exists()
    assert (folder / "decode/roofline.png").exists()
    facts: dict[str, Any] = json.loads(said(["simulate", path, "--json"], capsys)[1])
    assert facts["decode"]["load"]["decodes"] == 16
    assert facts["prefill"]["load"]["decodes"] == 0
    assert facts["cache_tokens"] > 0


PROFILE = str(Path(__file__).parents[2] / "data/profiles/scan_mlp_v5e_2x2.xplane.pb.gz")
BAD = [
    (["serve", "RUN", "--set", "traffic.rate=0"], "traffic"),
    (["serve", "RUN", "--loads", "1,x"], "--loads is '1,x'; write numbers above 0, such as 1,2,4"),
    (["serve", "RUN", "--loads", "0"], "--loads is '0'"),
    (["serve", "RUN", "--set", "serving.mesh={tensor=8}"], "8"),
    (["serve", "RUN", "--set", "serving.memory_fraction=1e-5"], "give it more devices"),
    (["serve", "RUN", "--set", "plan.remat=full"], "[serving] and [plan]; leave one of them out"),
    (["serve", "RUN", "--out", ""], "--out is empty"),
    (["simulate", "RUN", "--stats"], "--stats is for a step of training"),
    (["simulate", "RUN", "--explain", "lines"], "--explain is for a step of training"),
    (["search", "RUN"], "the section [search] is missing"),
    (["diagnose", PROFILE, "RUN"], "a profile is compared with a [plan]"),
    (["sweep", "RUN"], "[serving] is of a server"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said([path if word == "RUN" else word for word in words], capsys)
    assert (code, out) == (2, "")
    assert sentence in error


@pytest.mark.parametrize("key", ["traffic", "serving"])
def test_a_missing_section_is_named(
    key: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = SERVER.split("\n[")
    Path(path).write_text("\n[".join(s for s in sections if not s.startswith(key)), "utf-8")
    code, _, error = said(["serve", path], capsys)
    assert code == 2
    assert f"the section [{key}] is missing; write" in error


def test_a_plan_has_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text(SMALL + "mesh = { fsdp = 16 }\n", "utf-8")
    code, _, error = said(["serve", str(file)], capsys)
    assert code == 2
    assert "the section [serving] is missing" in error
    with pytest.raises(ts.TpusimError, match=r"\[traffic\] is of a server"):
        ts.read_run(file, ["traffic.rate=3"])


def test_quiet_prints_nothing(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["serve", path, "-q"], capsys) == (0, "", "")


LOSS = """[failures]
cold_start_s = 1
ttft_s = 0.2
"""


def test_a_server_that_loses_a_replica(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = said(["serve", path], capsys)[1]
    file = tmp_path / "loss.toml"
    file.write_text(
        f"{SERVER}{LOSS}".replace("max_num_seqs", "replicas = 2\nmax_num_seqs"), "utf-8"
    )
    code, out, error = said(["serve", str(file), "--out", str(tmp_path / "out")], capsys)
    assert (code, error) == (0, "")
    heads = ("loss", "outage", "queue", "requests", "targets", "replicas")
    for head in heads:
        assert f"\n{head:<12}" in out
        assert f"\n{head:<12}" not in plain
    assert {"outage.png", "outage.svg"} <= {each.name for each in (tmp_path / "out").iterdir()}
    facts = json.loads(said(["serve", str(file), "--json"], capsys)[1])["failures"]
    assert facts["back_s"] - facts["lost_s"] == pytest.approx(1.0)
    assert facts["replicas_needed"] <= facts["replicas_needed_with_loss"]
    read = read_serving(file)
    assert read.failures == ts.ServerFailures(cold_start_s=1.0, ttft_s=0.2)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("failures.spares=2", "failures.spares is 2, and serving.replicas 1"),
        ("failures.cold_start_s=-1", "failures.cold_start_s is -1; write a number from 0 up"),
        ("failures.cold_start_s=60", "nobody would see the replica return"),
        ("failures.rate=1", "[failures] has an unknown key 'rate'"),
    ],
)
def test_a_mistake_in_failures(
    setting: str, words: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = said(["serve", path, "--set", setting], capsys)
    assert code == 2
    assert words in error

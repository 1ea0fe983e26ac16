"""`tpusim search`: its answer, its table, Ctrl-C, and one sentence for each mistake."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from commands import SMALL, run, said
from pandas import read_csv, read_parquet

from tpusim.cli import search_command
from tpusim.searches import SearchState
from tpusim.searches.objectives import OBJECTIVES

SEARCH = f"""{SMALL}[search]
axes = ["fsdp", "tensor"]
top = 2
[search.vary]
remat = ["full", "none"]
"""
ALONE = ("--workers", "1")


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "search.toml"
    file.write_text(SEARCH, "utf-8")
    return str(file)


def test_a_search_prints_what_is_proved(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["search", path, *ALONE], capsys)
    lines = out.splitlines()
    assert (code, error) == (0, "")
    assert lines[0].startswith("search      10 plans in 6 groups on 1 slice, of transformer, in ")
    assert lines[2] == "            proved: no plan of the space is better"
    assert lines[5].split()[:4] == ["slice", "fsdp", "tensor", "remat"]
    assert len(lines) == 8
    assert max(map(len, lines)) <= 100


def test_hosts_feed_the_plans(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each host decodes at least 32 / 16 records, at 0.1 s a record; a step alone takes 10 ms."""
    hosts = ["--set", "input.workers=1", "--set", "input.decode_s=0.1"]
    code, _, error = said(
        ["search", path, *ALONE, "--out", str(tmp_path / "found"), *hosts], capsys
    )
    table = read_csv(tmp_path / "found" / "search.csv")
    assert (code, error) == (0, "")
    assert (table["step_time"] >= 0.2).all()


def test_the_plans_are_counted_without_a_search(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(["search", path, "--count"], capsys)
    assert (code, out) == (0, "search      10 plans in 6 groups on 1 slice, of transformer\n")


def test_the_folder_has_the_plans_that_were_simulated(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deep" / "found"
    out = said(["search", path, "--out", str(folder), *ALONE], capsys)[1]
    table, facts = (
        read_parquet(folder / "search.parquet"),
        json.loads((folder / "search.json").read_text("utf-8")),
    )
    assert list(table["rank"][:3]) == [1, 2, 0]
    assert (table["bound"] <= table["step_time"]).all()
    assert len(table) == facts["simulated"]
    assert facts["proved"]
    assert facts["gap"] == 0
    assert list(read_csv(folder / "search.csv")["slice"]) == list(table["slice"])
    assert out.endswith(f"\n\ntable       {folder}\n")


def test_the_answer_as_json_and_in_silence(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "found"
    code, out, error = said(["search", path, *ALONE, "--json", "--out", str(folder)], capsys)
    facts = json.loads(out)
    assert (code, error) == (0, "")
    assert facts["proved"]
    assert [row["rank"] for row in facts["tried"][:3]] == [1, 2, 0]
    assert facts["tried"][0]["slice"] == "v5e:4x4"
    assert {**json.loads((folder / "search.json").read_text()), "tried": facts["tried"]} == facts
    assert said(["search", path, *ALONE, "-q"], capsys) == (0, "", "")
    counted = json.loads(said(["search", path, "--count", "--json"], capsys)[1])
    assert counted == {"plans": 10, "groups": 6, "not_plans": {}}


@pytest.mark.thorough
def test_the_files_of_a_search_have_the_same_bytes_again(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever simulates: its seconds are printed, and stand in no file.

    Several processes run ahead of the answers, by plans that one alone need not simulate.
    """
    folders = [tmp_path / name for name in ("one", "again", "two")]
    for folder, workers in zip(folders, ("1", "1", "2"), strict=True):
        out = said(["search", path, "--workers", workers, "--out", str(folder)], capsys)[1]
        assert re.search(r"of transformer, in [0-9.]+ s$", out.splitlines()[0])
    first, again, two = ({file.name: file.read_bytes() for file in f.iterdir()} for f in folders)
    assert sorted(first) == ["search.csv", "search.json", "search.parquet", "search.txt"]
    assert again == first
    assert set(first["search.csv"].splitlines()) <= set(two["search.csv"].splitlines())
    assert first["search.txt"].partition(b"proved")[2] == two["search.txt"].partition(b"proved")[2]


def test_slices_come_from_generations(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(path).read_text("utf-8").partition("[model]")[2]
    Path(path).write_text(f"[model]{text}", "utf-8")
    many = ["--set", "search.generations=['v5e','v6e']", "--set", "search.chips=[4, 8]"]
    out = said(["search", path, "--count", *many], capsys)[1]
    assert "on 4 slices" in out
    two = ["--set", "search.slices=['v5e:2x2 x 2 slices', 'v5e-4']"]
    axes = ["--set", "search.axes=['dcn_data', 'fsdp']"]
    assert "on 2 slices" in said(["search", path, "--count", *two, *axes], capsys)[1]


@pytest.mark.thorough
def test_a_front_and_a_local_search(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--set", "search.objective=['step_time', 'cost']"]
    out = said(["search", path, *ALONE, *both], capsys)[1]
    assert "the Pareto front of step_time and cost" in out
    out = said(["search", path, *ALONE, "--local"], capsys)[1]
    assert "nothing is proved: a local search" in out


def test_ctrl_c_gives_the_best_so_far(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(state: SearchState) -> None:
        if state.best < float("inf"):
            raise KeyboardInterrupt

    monkeypatch.setattr(search_command, "show_search", lambda *_, **__: nullcontext(stop))
    folder = tmp_path / "found"
    code = run(["search", path, "--out", str(folder), *ALONE])
    out = capsys.readouterr().out
    assert code == 130
    assert "interrupted; the best so far is at most" in out
    assert json.loads((folder / "search.json").read_text("utf-8"))["interrupted"]


def test_the_state_says_best_possible_and_gap() -> None:
    state, goal = SearchState(8, 12, 2.0, 1.6), OBJECTIVES["step_time"]
    assert search_command.state_text(state, goal) == "best 2 s, possible 1.6, gap 25.0%"
    assert search_command.state_text(state._replace(best=float("inf")), goal).startswith("no plan")
    cost = state._replace(
        best=1.234e-6,
        possible=1.1e-6,
    )
    text = search_command.state_text(cost, OBJECTIVES["cost"])
    assert text == "best $1.23 per million tokens, possible 1.10, gap 12.2%"


MISTAKES = [
    (["--workers", "2", "--cluster", "tcp://a:1"], "--workers is for this machine"),
    (["--out", "PATH"], "search.toml is a file; give a folder"),
    (["--set", "search.objective=speed"], "search.objective is 'speed'"),
    (["--set", "search.objective=3"], 'search.objective is 3; write "step_time", "chip_time"'),
    (["--set", "search.generations=['v4']"], "leave the others out"),
    (["--set", "search.vary.mesh=[]"], "does not take 'mesh'; write search.axes or"),
    (["--set", "search.vary.remat=full"], "a list of values to try, each one of full"),
    (["--set", "search.axis=[]"], "[search] has an unknown key 'axis'; did you mean 'axes'?"),
    (["--set", "search.chips=3"], "write the least and the most chips"),
    (["--set", "search.at_most={chip=3}"], "did you mean 'chips'"),
    (["--set", "plan.mesh.fsdp=16"], "plan.mesh is given, but a search chooses the mesh"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [part.replace("PATH", path) for part in arguments]
    code, out, error = said(["search", path, *given], capsys)
    assert (code, out) == (2, "")
    assert sentence in error


def test_another_command_says_what_the_section_is_for(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = said(["simulate", path], capsys)[2]
    assert "the section [search] is for the command search; leave it out" in error

"""`tpusim sweep`: its answer, its dataset, and one sentence for each mistake."""

import os
import pty
import subprocess
import sys
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from signal import SIG_IGN, SIGINT, getsignal

import pytest
from commands import SMALL, run, said
from inputs import VARIED, wanted
from many_plans import run_chunks
from pandas import read_csv, read_parquet

from tpusim.base import FileError, PlanError, TpusimError
from tpusim.runfile import read_run

ROOT = Path(__file__).parents[3]
SWEEP = f"""{SMALL}[sweep]
axes = ["fsdp", "tensor"]
[sweep.vary]
remat = ["full", "none"]
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP, "utf-8")
    return str(file)


def test_a_sweep_prints_the_best_plans(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["sweep", path, "--workers", "1"], capsys)
    lines = out.splitlines()
    assert (code, error) == (0, "")
    assert lines[0].startswith("sweep       10 plans of transformer on v5e:4x4 (16 chips) in ")
    assert lines[1] == "            10 fit, 0 do not fit, 0 refused"
    assert lines[4].split()[:4] == ["fsdp", "tensor", "remat", "step"]
    assert len(lines) == 15
    assert max(map(len, lines)) <= 100


def test_hosts_feed_the_plans_of_a_sweep(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "input.workers=1", "--set", "input.decode_s=0.001"]
    code, out, error = said(["sweep", path, "--workers", "1", *settings], capsys)
    assert (code, error) == (0, "")
    heads = next(line for line in out.splitlines() if "step time" in line)
    assert heads.split()[-4:] == ["exposed", "input", "HBM", "peak"]


def test_the_folder_is_a_dataset_in_the_order_of_the_plans(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deep" / "out"
    first = said(["sweep", path, "--out", str(folder), "--workers", "1"], capsys)[1]
    table = read_parquet(folder)
    assert len(table) == 10
    assert list(table["remat"]) == ["full"] * 5 + ["none"] * 5
    assert first.endswith(f"\n\ntable       {folder}\n")
    again = said(["sweep", path, "--out", str(folder), "--workers", "1"], capsys)[1]
    assert again.splitlines()[1:] == first.splitlines()[1:]


def test_settings_change_the_sweep(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "sweep.axes=['fsdp']", "--set", "plan.mesh.tensor=2"]
    out = said(["sweep", path, *settings, "--workers", "1"], capsys)[1]
    assert out.startswith("sweep       2 plans")
    alone = ["--set", "sweep={}", "--set", "plan.mesh.fsdp=16"]
    assert said(["sweep", path, *alone], capsys)[1].startswith("sweep       1 plans")


def test_shapes_are_a_column_of_the_answer(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--set", "slice.chip=v4", "--set", "slice.topology=4x4x4"]
    shapes = ["--set", "sweep.shapes=all", "--set", "sweep.axes=['fsdp']",
              "--set", "plan.global_batch=64"]  # fmt: skip
    code, out, _ = said(["sweep", path, *where, *shapes, "--workers", "1"], capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("sweep       2 plans of transformer on shapes of v4 (64 chips) in ")
    assert lines[4].split()[:3] == ["fsdp", "remat", "topology"]
    assert [line.split()[3] for line in lines[5:7]] == ["4x4x4", "4x4x4"]


def test_refused_plans_are_an_answer(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["sweep", path, "--set", "plan.mesh.bogus=2"], capsys)
    assert code == 3
    assert "0 fit, 0 do not fit, 8 refused" in out
    assert "refused     8: plan.mesh.bogus shards nothing" in out
    assert "every plan is refused: plan.mesh.bogus shards nothing" in out.split("\n\n")[-1]


ODD_BATCH = ["--set", "sweep.vary={global_batch=[32, 3], remat=['full', 'none']}",
             "--set", "sweep.axes=['fsdp']"]  # fmt: skip
"""Of the two batches, one divides by no mesh."""


def test_a_kind_of_which_every_plan_is_refused_comes_last(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_folder = ["--out", str(tmp_path / "table"), "--workers", "1"]
    code, out, error = said(["sweep", path, *ODD_BATCH, *out_folder], capsys)
    assert (code, error) == (3, "")
    last = " ".join(out.split("\n\n")[-1].split())
    assert last.startswith("every plan with global_batch = 3 is refused: plan.global_batch is 3, ")
    assert max(map(len, out.splitlines()[:-1])) <= 100
    some = ["--set", "sweep.axes=['data', 'tensor']", "--set", "sweep.vary.global_batch=[16, 2]"]
    assert said(["sweep", path, *some], capsys)[0] == 0


def test_the_table_is_printed_as_csv(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "table"
    given = ["sweep", path, *ODD_BATCH, "--workers", "1"]
    assert run([*given, "--csv", "--out", str(folder)]) == 3
    out, error = capsys.readouterr()
    assert error.startswith("every plan with global_batch = 3 is refused: ")
    table = read_csv(StringIO(out), keep_default_na=False, na_values={"step_time_s": [""]})
    assert len(out.splitlines()) == 5
    whole = read_parquet(folder)
    assert list(table.columns) == list(whole.columns)
    assert table["step_time_s"].to_list()[:2] == whole["step_time_s"].to_list()[:2]
    assert table["reason"].to_list() == whole["reason"].to_list()


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_says_how_the_sweep_goes_on(
    kept: bool, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    folder = tmp_path / "table"
    out = ["--out", str(folder)] if kept else []
    with monkeypatch.context() as stopped:
        stopped.setattr(
            "tpusim.cli.progress.show_progress", lambda *_, **__: nullcontext(interrupt)
        )
        code, answer, error = said(["sweep", path, *out, "--workers", "1"], capsys)
    assert (code, answer) == (130, "")
    if not kept:
        assert "interrupted, and no table is kept, as there is no --out DIR" in error
        return
    assert f"the plans that are done are in {folder}: the same command goes on" in error
    assert len(list(folder.glob("*.parquet"))) == 1
    assert said(["sweep", path, *out, "--workers", "1"], capsys)[0] == 0
    assert len(read_parquet(folder)) == 10


def test_workers_leave_ctrl_c_to_their_parent() -> None:
    """A terminal sends it to all of them, and each would print where it was."""
    work = ((number, number) for number in range(2))
    assert [rows for *_, rows in run_chunks(interrupt_handler, work, 2)] == [True, True]


def interrupt_handler(chunk: int) -> bool:
    """Whether the process that runs this ignores Ctrl-C."""
    return getsignal(SIGINT) is SIG_IGN


MISTAKES = [
    (["sweep"], "Missing argument 'SWEEP.toml'"),
    (["sweep", "PATH", "--workers", "0"], "workers is 0; write a whole number from 1 up"),
    (["sweep", "PATH", "--out", ""], "--out is empty; give a folder"),
    (["sweep", "PATH", "--out", "PATH"], "sweep.toml is a file; give a folder"),
    (["sweep", "PATH", "--out", "/proc/none/x"], "/proc/none/x cannot be written"),
    (["sweep", "none.toml"], "none.toml: cannot be read"),
    (["sweep", str(ROOT / "experiments/bert_480b/run.toml")], "the section [sweep] is missing"),
    (["simulate", "PATH"], "the section [sweep] is for the command sweep; leave it out"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said([part.replace("PATH", path) for part in arguments], capsys)
    assert (code, out) == (2, "")
    assert sentence in error


BAD_SETTINGS = [
    ("sweep.placements=some", PlanError, "sweep.placements is 'some': valid are all, best"),
    ("sweep.shapes=al", PlanError, "sweep.shapes is 'al'; write 'all', 'all\\+twisted' or a list"),
    ("sweep.shapes=[]", PlanError, r"sweep.shapes is \[\]; write 'all'"),
    ("sweep.shapes=['4x4', 44]", PlanError, r"sweep.shapes\[1\] is 44; write a shape in quotes"),
    ("sweep.shapes=3", PlanError, 'sweep.shapes is 3; write "all", "all\\+twisted" or a list'),
    ("sweep.axis=3", PlanError, r"\[sweep\] has an unknown key 'axis'; did you mean 'axes'\?"),
    ("sweep.axes=data", PlanError, "sweep.axes is the text 'data'; write a list of axes"),
    ("sweep.vary.remta=['full']", PlanError, r"\[sweep.vary\] .* did you mean 'remat'\?"),
    ("sweep.vary.mesh=[]", PlanError, "does not take 'mesh'; write sweep.axes, meshes or"),
    ("sweep.vary.remat=full", PlanError, "a list of values to try, each one of full"),
    ("sweep.vary.remat=[]", PlanError, r"sweep.vary.remat is \[\]; write a list of values"),
    ("sweep.vary.remat=['ful']", PlanError, r"vary.remat\[0\]: plan.remat is 'ful': did you"),
    ("sweep.vary.seq_len=[8, 'a']", PlanError, r"vary.seq_len\[1\] is the text 'a'; write a whole"),
    ("sweep.vary.rules=[{mlp=3}]", PlanError, r"vary.rules\[0\].mlp is 3; write an axis or"),
    ("sweep.meshes=[{fsdp='a'}]", PlanError, r"meshes\[0\].fsdp is the text 'a'; write a whole"),
    ("sweep.meshes=[{fsdp=16}]", PlanError, "sweep.axes and sweep.meshes are both given"),
    ("sweep.axes=[]", PlanError, r"plan.mesh is missing; write .*, or sweep.axes or sweep.meshes"),
    ("swep.axes=[]", FileError, r"unknown section \[swep\]; did you mean 'sweep'\?"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "kind", "sentence"), BAD_SETTINGS)
def test_what_a_sweep_file_says_wrong(
    setting: str, kind: type[TpusimError], sentence: str, path: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(kind, match=sentence):
        read_run(path, [setting])
    assert said(["sweep", path, "--set", setting], capsys)[0] == 2


@pytest.mark.parametrize("key", VARIED)
def test_every_varied_key_says_what_to_write(key: str) -> None:
    assert (
        wanted(["sweep", "vary", key]) == f"a list of values to try, each {wanted(['plan', key])}"
    )


def test_a_wrong_sweep_leaves_no_folder(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert said(["sweep", path, "--set", "plan.mesh.x=3", "--out", str(folder)], capsys)[0] == 2
    assert not folder.exists()


def on_a_terminal(command: list[str]) -> tuple[str, bytes]:
    """What a command prints, and what it shows on the terminal that stderr is."""
    ours, theirs = pty.openpty()
    answer = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, check=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:
        pass
    os.close(ours)
    return answer.stdout.decode(), shown


FEW = ("--set", "sweep.vary={}")
"""Five plans."""


@pytest.mark.thorough
def test_a_bar_on_a_terminal_and_nothing_in_a_pipe(path: str) -> None:
    command = [sys.executable, "-m", "tpusim", "sweep", path, "--workers", "1", *FEW]
    out, shown = on_a_terminal(command)
    assert b"5/5" in shown
    assert "\x1b" not in out
    piped = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert piped.stderr == ""
    assert piped.stdout.splitlines()[1:] == out.splitlines()[1:]


def test_a_long_sweep_says_how_far_it_is_where_there_is_no_terminal(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tpusim.cli.progress.PROGRESS_INTERVAL_S", 0.0)
    code = run(["sweep", path, "--workers", "1", "--set", "sweep.vary.global_batch=[32, 64, 96]"])
    error = capsys.readouterr().err
    assert code == 0
    assert error.splitlines()[1] == "sweep       8 of 30 plans"


SCRIPT = """
import sys
import tpusim as ts
assert not {"pandas", "matplotlib", "rich"} & set(sys.modules)
print("script")
base = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
model = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=4, vocab=1000)
space = ts.Space(base=base, axes=("data", "fsdp", "tensor"))
table = ts.sweep(model, space, "v5e-16", workers=2)
print(len(table), __name__)
"""


@pytest.mark.thorough
def test_a_script_needs_no_guard_for_processes(tmp_path: Path) -> None:
    """Workers do not run it again: it prints once, and ends."""
    file = tmp_path / "mine.py"
    file.write_text(SCRIPT, "utf-8")
    answer = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (answer.stdout, answer.stderr) == ("script\n15 __main__\n", "")


def test_a_cluster_and_processes_are_two_things(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = said(["sweep", path, "--workers", "2", "--cluster", "tcp://a:1"], capsys)
    assert (code, error) == (
        2,
        "--workers is for this machine and --cluster for others; give one\n",
    )


def test_a_cluster_needs_its_extra(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, error = said(["sweep", path, "--cluster", "tcp://a:1"], capsys)
    assert code == 2
    assert "write pip install 'tpusim[cluster]', here and on the workers" in error

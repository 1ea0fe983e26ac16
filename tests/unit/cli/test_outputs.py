"""Every command that writes files refuses to replace what is no regular file."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from commands import SMALL, said
from extent import sample
from outputs import OBSTACLES, kind_of

from tpusim.cli.main import app

RUN = f"{SMALL}\nmesh = {{ fsdp = 16 }}\n"
SPACE = 'axes = ["fsdp", "tensor"]'
TRAIN, SWEEP, SEARCH = (
    f"{RUN}[{name}]\n{keys}\n"
    for name, keys in (("train", "steps = 10"), ("sweep", SPACE), ("search", SPACE))
)
SEARCH = SEARCH.replace("mesh = { fsdp = 16 }", "")
SERVER = """
slice.name = "v6e-1"
model = { layers = 1, embed = 256, mlp = 512, heads = 2, vocab = 1000 }
serving.max_num_seqs = 4
traffic = { rate = 10.0, requests = 5, prompt = 64, output = 4 }
"""
MEASURED = f"{RUN}[measured]\nstep_s = 0.01\n"
HLO = Path(__file__).parents[2] / "data" / "hlo" / "plain" / "scan_mlp_v5e_2x2.hlo.gz"
PROFILE = HLO.parents[2] / "profiles" / "scan_mlp_v5e_2x2.xplane.pb.gz"
FOLDERS: Mapping[str, tuple[list[str], str]] = {
    "simulate": (["RUN"], "summary.txt"),
    "train": (["TRAIN"], "training.txt"),
    "compare": (["RUN", "--set", "plan.remat=none"], "compare.csv"),
    "sweep": (["SWEEP", "--workers", "1"], "_sweep.json"),
    "search": (["SEARCH"], "search.csv"),
    "serve": (["SERVER"], "serving.json"),
    "scaling": (["RUN", "--chips", "16"], "scaling.csv"),
    "validate": (["RUNS"], "validation.json"),
    "replay": (["PROGRAM", "--slice", "v5e:2x2"], "result.json"),
    "check": (["RUN"], "check.txt"),
    "diagnose": ([str(PROFILE)], "diagnose.json"),
    "availability": (["v5e", "4x4"], "availability.json"),
}
"""Arguments of each command with a folder for its files, and one of these."""
FILES: Mapping[str, tuple[list[str], str]] = {
    "calibrate": (["MEASURED"], "mine.toml"),
    "export": (["RUN"], "step.py"),
    "compile": (["PROGRAM", "--slice", "v5e:2x2"], "step.hlo"),
}
"""Arguments of each command that writes one file, and a name for it."""
COMPILES = ("check",)
"""Commands that compile before they write, so only their folder is tried here."""


@pytest.fixture(name="given", scope="module")
def _given(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The files that arguments stand for."""
    folder = tmp_path_factory.mktemp("given")
    contents = {
        "RUN": ("run.toml", RUN),
        "TRAIN": ("train.toml", TRAIN),
        "SWEEP": ("sweep.toml", SWEEP),
        "SEARCH": ("search.toml", SEARCH),
        "SERVER": ("server.toml", SERVER),
        "RUNS": ("runs/one.toml", MEASURED),
        "MEASURED": ("runs/one.toml", MEASURED),
        "PROGRAM": ("program.hlo", gzip.decompress(HLO.read_bytes()).decode()),
    }
    (folder / "runs").mkdir()
    for name, text in contents.values():
        (folder / name).write_text(text)
    paths = {word: str(folder / name) for word, (name, _) in contents.items()}
    return paths | {"RUNS": str(folder / "runs")}


def refusal(words: list[str], kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command says of an obstacle in the place of its output, which stays."""
    OBSTACLES[kind](place)
    before = kind_of(place)
    code, out, error = said([*words, "--out", str(place)], capsys)
    assert (code, out) == (2, "")
    assert kind_of(place) == before
    return error


def test_all_commands_that_write_are_tried() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    writing = {n for n, c in commands.items() if any("--out" in p.opts for p in c.params)}
    assert writing == FOLDERS.keys() | FILES.keys()


@pytest.mark.parametrize("kind", sample(OBSTACLES, 2))
@pytest.mark.parametrize("command", FILES)
def test_a_file_replaces_nothing_else(
    command: str,
    kind: str,
    given: Mapping[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, name = FILES[command]
    words = [command, *(given.get(word, word) for word in arguments)]
    error = refusal(words, kind, tmp_path / name, capsys)
    assert f"{name} is {kind}, which no output replaces; give the name of a new file" in error


@pytest.mark.parametrize("kind", [kind for kind in OBSTACLES if kind != "a folder"])
@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_replaces_nothing(
    command: str,
    kind: str,
    given: Mapping[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [command, *(given.get(word, word) for word in FOLDERS[command][0])]
    assert f"out is {kind}; give a folder" in refusal(words, kind, tmp_path / "out", capsys)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("kind", sample(sorted(OBSTACLES), 3))
@pytest.mark.parametrize("command", [command for command in FOLDERS if command not in COMPILES])
def test_a_file_of_a_folder_replaces_nothing_else(
    command: str,
    kind: str,
    given: Mapping[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command == "replay":
        pytest.importorskip("jaxlib.xla_client")
    arguments, name = FOLDERS[command]
    OBSTACLES[kind](tmp_path / name)
    before = kind_of(tmp_path / name)
    words = [given.get(word, word) for word in arguments]
    code, out, error = said([command, *words, "--out", str(tmp_path)], capsys)
    assert (code, out) == (2, "")
    assert f"{name} is {kind}, which no output replaces" in error
    assert kind_of(tmp_path / name) == before
    assert [path.name for path in tmp_path.iterdir()] == [name]

"""The documents hold: their blocks run, their commands are understood, their names exist."""

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import comb
from pathlib import Path

import pytest
from commands import said
from extent import sample
from inputs import ALL_FIELDS
from small_servers import small_result
from unit.test_layering import ROWS

import tpusim as ts
from tpusim.report.serving_files import serving_files
from tpusim.runfile import read_run
from tpusim.sweeps import candidates

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SHOWN = {page.name: page.read_text("utf-8") for page in PAGES}
MOST_WORDS = 35_400
"""32,000 for training, 2,500 for serving (a page, and the keys of a server and its traffic), and
900 for failures, stragglers, availability and broken parts, most of them keys."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SHOWN[page], re.S | re.M)


RUNS = [
    (page, number, block)
    for page in ("README.md", "user_guide.md")
    for number, block in enumerate(blocks(page, "toml"))
]


@pytest.mark.parametrize(("page", "number", "block"), RUNS, ids=[f"{p}-{n}" for p, n, _ in RUNS])
def test_a_run_file_of_the_documents_simulates(
    page: str, number: int, block: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(block, "utf-8")
    run = read_run(path)
    if run.sweep is not None:
        assert len(list(candidates(run.sweep, run.pod))) == 14
        return
    if run.search is not None:
        meshes = comb(4 + 2, 2) + comb(5 + 2, 2)  # factors of two of 16 and 32 chips on three axes
        assert len(run.search.space) == 2 * meshes * 4  # generations, and what `vary` has
        return
    result = ts.simulate(run.model, run.plan, run.pod)
    assert result.fits
    assert not [text for label, text in result.notes() if "not used" in text]


def test_the_blocks_of_the_guide_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that compile need the TPU compiler: see tests/xla."""
    plain = [block for block in blocks("user_guide.md", "python") if "import jax" not in block]
    assert plain
    for block in plain:
        exec(compile(block, "user_guide.md", "exec"), {})
    assert "step_time_s" in capsys.readouterr().out


def test_the_server_of_its_page_is_the_example(tmp_path: Path) -> None:
    (block,) = blocks("serving.md", "toml")
    assert block == (ROOT / "experiments/serving/llama3_8b.toml").read_text("utf-8")


def test_the_python_of_the_page_of_serving_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("serving.md", "python")
    exec(compile(block, "serving.md", "exec"), {})
    assert capsys.readouterr().out.startswith("serving     llama3.1-8b on v6e:2x2")


def test_the_page_of_serving_lists_the_files_of_a_report() -> None:
    section = SHOWN["serving.md"].split("## The report")[1]
    cells = re.findall(r"^\| (`.*?`) \| ", section, re.M)
    listed = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert listed == {re.sub(r"(png|svg)$", "*", name) for name in serving_files(small_result())}


def test_the_walk_through_the_design_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (walk,) = blocks("design.md", "python")
    shutil.copytree(ROOT / "experiments/bert_480b", tmp_path / "experiments/bert_480b")
    monkeypatch.chdir(tmp_path)
    exec(compile(walk, "design.md", "exec"), {})
    out = capsys.readouterr().out
    assert "events=250" in out
    assert "trips=1284" in out
    assert "209 events for 1284 loop iterations" in SHOWN["design.md"]
    assert (tmp_path / "breakdown.png").stat().st_size


OTHERS = (["--costs"], ["other.hlo"], ["RUN.toml"])
"""Commands that name no file, or HLO of 256 devices."""
NOT_HERE = ("check", "compile", "--install-completion")
"""Commands that need the TPU compiler (see tests/xla), or change the shell."""


def commands() -> Iterator[tuple[str, str]]:
    """Every command that a page shows, in a block or in a line; none that changes the shell."""
    for page, text in SHOWN.items():
        if page == "validation.md":
            continue
        lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
        for command in [*lines, *re.findall(r"`(tpusim [^`]+)`", text)]:
            words = command.split()
            if words[0] == "tpusim" and words[1] not in NOT_HERE and words[2:3] not in OTHERS:
                yield page, command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the documents' commands name."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    shutil.copytree(ROOT / "tests/data/profiles", tmp_path / "tests/data/profiles")
    shutil.copytree(ROOT / "tests/data/profiles", tmp_path / "logs")
    run, *_, sweep, search = blocks("user_guide.md", "toml")
    for given, fewer in (('"data", "fsdp"', '"fsdp"'), (', "v6e"', ""), ("[16, 32]", "[4, 8]")):
        search = search.replace(given, fewer)
    sweep = sweep.replace('"fsdp", "tensor"', '"fsdp"')
    for name in ("run.toml", "RUN.toml"):
        (tmp_path / name).write_text(run, "utf-8")
    (tmp_path / "sweep.toml").write_text(sweep, "utf-8")
    (tmp_path / "search.toml").write_text(search, "utf-8")
    (tmp_path / "experiments/mesh_shapes/sweep.toml").write_text(sweep, "utf-8")
    shutil.copy(ROOT / "tests/data/hlo/decode_v5e_2x4.hlo.gz", tmp_path / "step.hlo.gz")
    (tmp_path / "base.yml").write_text("per_device_batch_size: 4\n", "utf-8")
    for name in ("mt-v5e-32b-1x", "mt-v5e-32b-2x"):
        measured = (ROOT / f"tests/measured/runs/calibration/{name}.toml").read_text("utf-8")
        (tmp_path / "RUNS").mkdir(exist_ok=True)
        (tmp_path / "RUNS" / f"{name}.toml").write_text(measured, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("page", "command"), sample(sorted(set(commands())), 3))
@pytest.mark.usefixtures("undrawn")
def test_a_command_of_the_documents_runs(
    page: str, command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = said(shlex.split(command)[1:], capsys)
    assert (code, error) == (0, "")


def test_a_name_or_a_file_that_the_documents_give_exists() -> None:
    packages = ROOT / "tpusim"
    for page, text in SHOWN.items():
        for dotted in set(re.findall(r"\btpusim(?:\.\w+)+", text)):
            assert _found(dotted), f"{page} names {dotted}"
        for path in set(re.findall(r"`([\w/]+\.py)`", text)):
            known = [*packages.rglob(path), ROOT / path]
            assert any(one.exists() for one in known), f"{page} names {path}"


def test_a_class_that_the_nomenclature_gives_exists() -> None:
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "tpusim").rglob("*.py"))
    known = set(re.findall(r"^(?:class )?([A-Z]\w+)(?:[:(\[]| =)", code, re.M))
    shown = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)[`.]", SHOWN["nomenclature.md"]))
    assert len(shown) > 40
    assert shown <= known, shown - known


def _found(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one, at any depth."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            if not hasattr(owner, name):
                return False
            owner = getattr(owner, name)
        return True
    return False


def test_the_design_lists_every_room_in_its_row() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", SHOWN["design.md"], re.M)
    rooms = [room for room in ROWS for room in room if room not in ("__main__", "xla")]
    order = [{room for room in row if room not in ("__main__", "xla")} for row in ROWS]
    assert {name for _, name in rows} == set(rooms)
    for row, name in rows:
        assert name in order[int(row)], f"{name} is not in row {row}"


def test_the_api_page_has_every_public_name() -> None:
    shown = set(re.findall(r"^- `ts\.([\w.]+)", SHOWN["api.md"], re.M))
    public = set(ts.__all__) - {"__version__"}
    public |= {f"models.{name}" for name in ("Transformer", "load", "names", "from_hf")}
    public |= {f"xla.{name}" for name in ts.xla.__all__}
    assert public <= shown


def test_the_generated_tables_are_those_of_today() -> None:
    script = [sys.executable, str(DOCS / "tools/generate.py"), "--check"]
    ran = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), f"run generate.py for {ran.stdout}"


def test_the_documents_are_short() -> None:
    """Words of all pages in `docs`, as `wc -w` counts them."""
    words = {page.name: len(SHOWN[page.name].split()) for page in DOCS.glob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, words


def test_the_page_of_keys_has_every_key() -> None:
    sections = re.split(r"^## ", SHOWN["run_file.md"], flags=re.M)
    pages = {section.split("\n")[0].lower(): section for section in sections}
    for section, keys in ALL_FIELDS.items():
        for key in keys:
            shown = f"`{key}`" in pages[section] or f"### {key}\n" in pages[section]
            assert shown, f"{section}.{key}"


def test_the_site_shows_every_file_that_its_pages_link_to() -> None:
    """As `mkdocs build --strict` asks, which runs late."""
    tree = ast.parse((DOCS / "tools/pages.py").read_text("utf-8"))
    assigned = (each for each in tree.body if isinstance(each, ast.Assign))
    patterns = next(ast.literal_eval(each.value) for each in assigned)
    files = {path for pattern in patterns for path in ROOT.glob(pattern)}
    for page in (path for path in files if path.suffix == ".md"):
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            target = Path(os.path.normpath(page.parent / link))
            assert target in files, f"{page.relative_to(ROOT)} links to {link}"

"""Names in HLO from elsewhere: they break no terminal, table, drawing, page or trace."""

import csv
import gzip
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import said
from inputs import LONGEST_WORD

pytest.importorskip("jaxlib.xla_client")

HLO = Path(__file__).parents[2] / "data" / "hlo" / "plain" / "scan_mlp_v5e_2x2.hlo.gz"
SCOPE = "a\x1b[2Jb\r\x85c<script>alert(1)<!script>\u202e" + "x" * 10_000
FILE = "=cmd()|\x1b]0;x\x07<b>.py"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(name="report", scope="module")
def _report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report of a program with such scopes, files and functions."""
    text = gzip.decompress(HLO.read_bytes()).decode()
    others = {
        "/closed_call": f"/{SCOPE}",
        "tests/data/hlo/scan_mlp.py": FILE,
        '"loss"': f'"{SCOPE}"',
    }
    for name, other in others.items():
        assert name in text
        text = text.replace(name, other)
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "it.hlo").write_text(text)
    return folder


@pytest.mark.thorough
def test_what_is_printed_is_plain_text(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["replay", str(report / "it.hlo"), "--slice", "v5e:2x2", "--program"]
    code, out, error = said([*given, "--out", str(report / "made")], capsys)
    assert (code, error) == (0, "")
    assert not UNSAFE.search(out)
    assert max(map(len, out.splitlines())) <= LONGEST_WORD + 100
    files = sorted((report / "made").iterdir())
    assert {path.suffix for path in files} >= {".svg", ".csv", ".html", ".json", ".gz", ".txt"}
    for path in files:
        check(path)


def check(path: Path) -> None:
    """Read a file of the report as its readers do."""
    if path.suffix == ".svg":
        ElementTree.parse(path)
    elif path.suffix == ".csv":
        rows = list(csv.reader(path.read_text("utf-8").splitlines()))
        assert {len(row) for row in rows} == {len(rows[0])}, path.name
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "@", "+"))]
        assert not UNSAFE.search(path.read_text("utf-8"))
    elif path.suffix == ".html":
        page = path.read_text("utf-8")
        assert "<script>alert" not in page
        assert "<b>.py" not in page
        assert not UNSAFE.search(page)
    elif path.suffix == ".json":
        json.loads(path.read_text("utf-8"))
    elif path.suffix == ".gz":
        trace = json.loads(gzip.decompress(path.read_bytes()))
        assert not [event for event in trace["traceEvents"] if UNSAFE.search(event["name"])]


@pytest.mark.parametrize("given", [["--slice", "v5e:1x1"], ["--slice", "v6e:1x1", "--json"]])
def test_a_program_that_returns_its_parameters_is_one_sentence(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = "f32[8,128]{1,0:T(8,128)}"
    text = (
        f"HloModule same, is_scheduled=true\n\nENTRY %main (p: f32[8,128]) -> (f32[8,128]) {{\n"
        f"  %p = {kind} parameter(0)\n  ROOT %t = ({kind}) tuple(%p)\n}}\n"
    )
    (tmp_path / "it.hlo").write_text(text)
    code, out, error = said(["replay", str(tmp_path / "it.hlo"), *given], capsys)
    assert (code, out) == (2, "")
    assert "has no operation that takes time" in error
    assert error.count("\n") == 1

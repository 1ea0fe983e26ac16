"""The cookbook's blocks and the notebooks' cells print what the documents say they print."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest
from scripts import script

pytestmark = pytest.mark.usefixtures("advised")

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.py"))
LARGEST_NOTEBOOK = 200_000
COMPILES = "import jax", "ts.check("
"""What needs the TPU compiler."""


COOKBOOK = script(DOCS / "tools/cookbook.py")
JOBS = re.findall(r"^## (.*?)\n\n(```python.*?)(?=^## |\Z)", COOKBOOK.PAGE.read_text(), re.S | re.M)


def marks(text: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xla] if any(word in text for word in COMPILES) else []


def cases(texts: dict[str, str]) -> list[object]:
    return [pytest.param(text, id=name, marks=marks(text)) for name, text in texts.items()]


@pytest.mark.parametrize("job", cases(dict(JOBS)))
def test_a_job_of_the_cookbook_prints_what_it_says(job: str) -> None:
    ((block, said),) = COOKBOOK.BLOCK.findall(job)
    assert len(block.strip().splitlines()) <= 20
    assert COOKBOOK.shown(COOKBOOK.printed(block)) == said != ""


def cells(source: Path) -> list[str]:
    """The code cells of a source in the percent format."""
    parts = re.split(r"^# %%(.*)\n", source.read_text("utf-8"), flags=re.M)
    return [
        text.strip()
        for kind, text in zip(parts[1::2], parts[2::2], strict=True)
        if "[markdown]" not in kind
    ]


def of_a_notebook(source: Path) -> list[pytest.MarkDecorator]:
    long = [pytest.mark.thorough] if source.stem == "thirty_days_for_a_70b_model" else []
    return marks(source.read_text("utf-8")) + long


@pytest.mark.parametrize(
    "source", [pytest.param(one, id=one.stem, marks=of_a_notebook(one)) for one in NOTEBOOKS]
)
def test_a_notebook_holds_its_source_and_what_that_prints(source: Path) -> None:
    text = source.with_suffix(".ipynb").read_text("utf-8")
    assert len(text) < LARGEST_NOTEBOOK
    stored = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    code = cells(source)
    assert ["".join(cell["source"]) for cell in stored] == code
    names: dict[str, object] = {}
    for cell, block in zip(stored, code, strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, source.name, "exec"), names)
        streams = ["".join(each["text"]) for each in cell["outputs"] if "text" in each]
        assert "".join(streams) == printed.getvalue()
    kinds = {kind for cell in stored for each in cell["outputs"] for kind in each.get("data", ())}
    assert "image/png" in kinds

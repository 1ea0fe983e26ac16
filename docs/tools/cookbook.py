"""Run the blocks of docs/cookbook.md and write what each prints below it.

python docs/tools/cookbook.py
"""

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[1] / "cookbook.md"
PARAGRAPHS = 3
"""What a page shows of a long output."""
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)


def printed(block: str) -> str:
    """Return what a block prints, in an empty folder of its own."""
    before, said = Path.cwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        os.chdir(folder)
        try:
            exec(compile(block, "block", "exec"), {})
        finally:
            os.chdir(before)
    return said.getvalue()


def shown(said: str) -> str:
    """Return an output as a page shows it: its first paragraphs, and `...` for the others."""
    paragraphs = said.split("\n\n")
    if len(paragraphs) <= PARAGRAPHS:
        return said
    return "\n\n".join(paragraphs[:PARAGRAPHS]) + "\n...\n"


def with_outputs(page: str) -> str:
    """Return the page with what each block prints today below it."""

    def block(found: re.Match[str]) -> str:
        said = shown(printed(found[1]))
        below = f"\n```text\n{said}```\n" if said else ""
        return f"```python\n{found[1]}```\n{below}"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    PAGE.write_text(with_outputs(PAGE.read_text("utf-8")), "utf-8")

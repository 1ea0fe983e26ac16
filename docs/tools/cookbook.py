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
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)


def printed(block: str) -> str:
    """Return what a block prints, in an empty folder of its own."""
    before, said = Path.cwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        os.chdir(folder)
        try:
            exec(compile(block, PAGE.name, "exec"), {})
        finally:
            os.chdir(before)
    return said.getvalue()


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(
        BLOCK.sub(lambda m: f"```python\n{m[1]}```\n\n```text\n{printed(m[1])}```\n", text), "utf-8"
    )

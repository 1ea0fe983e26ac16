"""The README's ten lines run as they stand there, and print what it says they print."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.S | re.M)
    assert found, f"the README has no {language} block"
    return found[1]


def test_the_ten_lines_print_what_the_readme_says() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "README.md", "exec"), {})
    assert printed.getvalue() == block("text")

"""From a path to the tables of a TOML file."""

import tomllib
from pathlib import Path
from typing import Any

from tpusim.errors import FileError
from tpusim.textfile import read_text

WHAT = "a run file, which has a few dozen lines"
INSTEAD = "the path of a run file in TOML, such as run.toml"


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; `FileError` with one sentence if there are none to be had."""
    text = read_text(path, WHAT, INSTEAD)
    if not text.strip():
        raise FileError("the file is empty; write the sections [slice], [model] and [plan]")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"not valid TOML: {error}; write key = value under [section]") from error
    except (ValueError, RecursionError) as error:
        raise FileError(
            "a number or a nesting is too long to be read; write a shorter one"
        ) from error

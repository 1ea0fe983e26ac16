"""From a path to tables: the file is there, is text, and is TOML."""

import tomllib
from pathlib import Path
from typing import Any

from tpusim.errors import FileError
from tpusim.units import format_bytes

LARGEST = 2**20


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; `FileError` with one sentence if there are none to be had."""
    text = _text(path)
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


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"not a text file (byte {error.start} is not UTF-8); write a run file in TOML"
        ) from error
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot be read: {error.strerror}; give the path of a run file") from error


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise FileError("a folder; give the path of a run file in it, such as run.toml")
    if path.exists() and not path.is_file():
        raise FileError("not a regular file; give the path of a run file")
    size = path.stat().st_size
    if size > LARGEST:
        raise FileError(f"{format_bytes(size)} is too large; a run file has a few dozen lines")
    return path.read_bytes()

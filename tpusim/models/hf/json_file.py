"""JSON files of objects, and their values as messages show them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, blame
from tpusim.base.shown_value import cut
from tpusim.base.text_files import path_of, read_text


def find(path: str | Path) -> Path:
    """Return the file itself, or the `config.json` of a folder."""
    given = path_of(path, "from_hf")
    try:
        return given / "config.json" if given.is_dir() else given
    except OSError:
        return given


def read(path: Path) -> Mapping[str, Any]:
    """Return the object of a JSON file. Raise FileError with one sentence if it has none."""
    with blame(str(path)):
        found = _parsed(read_text(path, "a config.json", "a config.json or its folder"))
        if not isinstance(found, dict):
            raise FileError("no JSON object; give a config.json, which begins with {")
        return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"not valid JSON: {error}; give a config.json") from error
    except (ValueError, RecursionError) as error:
        raise FileError("a number or a nesting is too long to be read") from error


def shown(value: object) -> str:
    """Return a value as JSON writes it, cut short where it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = str(type(value).__name__)
    return cut(text)

"""From a path to the object that a JSON file holds, and a value of it as a message shows it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpusim.errors import FileError, blame
from tpusim.textfile import read_text

_LONGEST = 60


def find(path: str | Path) -> Path:
    """The file itself, or the `config.json` of a folder; what cannot be looked at is a file."""
    given = Path(path)
    try:
        return given / "config.json" if given.is_dir() else given
    except OSError:
        return given


def read(path: Path) -> Mapping[str, Any]:
    """What a JSON file holds; `FileError` with one sentence if that is no object."""
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
    """A value as JSON writes it, cut short where it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = str(type(value).__name__)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

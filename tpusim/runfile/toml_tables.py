"""The tables of a run file as written, and settings of the command line put over them."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError
from tpusim.base.grouped_keys import GroupedKeys
from tpusim.base.shown_value import shown
from tpusim.base.text_files import read_text
from tpusim.runfile.schema import KEYS

REPLACED: Mapping[str, Sequence[str]] = {
    "slice.name": ("chip", "topology", "twisted"),
    "slice.chip": ("name",),
}
"""The keys of a section that say the same as a key, whose place a setting of it takes."""

STDIN = "-"
"""The path that stands for the standard input."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; `-` is read from the standard input.

    Raise FileError with one sentence if it is none.
    """
    instead = "the path of a run file in TOML, such as run.toml"
    if str(path) == STDIN:
        text = sys.stdin.read()
    else:
        text = read_text(path, "a run file, which has a few dozen lines", instead)
    if not text.strip():
        raise FileError("the file is empty; write the sections [slice], [model] and [plan]")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"not valid TOML: {error}; {_instead(path, text, error)}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(
            "a number or a nesting is too long to be read; write a shorter one"
        ) from error


def _instead(path: Path, text: str, error: Exception) -> str:
    """Return what to do with a text that is no TOML."""
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return f'a run file reads the config of a model as hf = "{path.name}" under [model]'
    if path.suffix in (".yml", ".yaml"):
        return f"a MaxText config is given as --maxtext {path}"
    if text.startswith("HloModule"):
        return f"a compiled program is for tpusim replay {path}"
    if str(error).startswith("Invalid value"):
        return 'write numbers as they are and text in quotes, such as name = "v5e-256"'
    return "write key = value under [section]"


def override(data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return `data` with each `key.key=value` put in, such as `plan.remat=minimal`.

    A value is TOML, or else text as it stands. It takes the place of the same key in its other
    spelling; a slice's name that of chip and topology, and a chip that of the name.
    """
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise FileError(
                f"{setting!r} is not a setting; write KEY=VALUE, such as plan.remat=minimal"
            )
        value = toml_value(text.strip())
        if path[0] in KEYS and isinstance(data.get(path[0]), dict) and len(path) > 1:
            section, path[1:] = _respelt(data[path[0]], path[1:], value, KEYS[path[0]])
            data = {**data, path[0]: section}
        elif isinstance(given := data.get(path[0]), dict):
            replaced = REPLACED.get(key.strip(), ())
            data = {**data, path[0]: {k: v for k, v in given.items() if k not in replaced}}
        data = put(data, path, value, key.strip())
    return data


def _respelt(
    section: Mapping[str, Any], path: list[str], value: Any, keys: GroupedKeys
) -> tuple[dict[str, Any], list[str]]:
    """Return a section without the other spellings of what a setting sets, and the setting's path.

    Where a flat key has the name of its group (`remat`), the text of one and the table of the other
    are brought together in a table.
    """
    found, head = dict(section), path[0]
    if head in keys.groups and head in keys.table:
        name = keys.table[head][1]
        if len(path) > 1 and head in found and not isinstance(found[head], dict):
            found[head] = {name: found[head]}
        elif path == [head] and not isinstance(value, dict) and isinstance(found.get(head), dict):
            return found, [head, name]
    for key in dict(keys.spelt_out({".".join(path[:2]): value})):
        if keys.is_known(key):
            group, name = keys.field_of(key)
            flat = keys.flat_keys[group, name]
            if key == flat and isinstance(found.get(group), dict):
                found[group] = {k: v for k, v in found[group].items() if k != name}
            elif key != flat and flat != group:
                found.pop(flat, None)
    return found, path


def put(table: Any, path: Sequence[str], value: Any, key: str) -> dict[str, Any]:
    """Return a copy of `table` with `value` at `path`. Raise FileError if there is no table there.

    key: the path as text, for the message.
    """
    if not isinstance(table, dict):
        above = key.removesuffix("." + ".".join(path))
        raise FileError(f"{key} cannot be set: {above} is {shown(table, 'the text ')}, not a table")
    head, *rest = path
    return {**table, head: put(table.get(head, {}), rest, value, key) if rest else value}


def toml_value(text: str) -> Any:
    """Return `8`, `true`, `["x"]` and `"8"` as TOML reads them; `minimal` as text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text

"""`--set plan.remat=minimal`: one key of a run file, written on the command line."""

import tomllib
from collections.abc import Sequence
from typing import Any

from tpusim.errors import FileError
from tpusim.runfile.shown import shown


def override(data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`data` with each `key.key=value` put in; the value is TOML, or else text as it stands."""
    for setting in settings:
        key, equals, value = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise FileError(
                f"{setting!r} is not a setting; write KEY=VALUE, such as plan.remat=minimal"
            )
        data = _put(data, path, _value(value.strip()), key.strip())
    return data


def _put(table: Any, path: Sequence[str], value: Any, key: str) -> dict[str, Any]:
    """A copy of `table` with `value` at `path`."""
    if not isinstance(table, dict):
        above = key.removesuffix("." + ".".join(path))
        raise FileError(f"{key} cannot be set: {above} is {shown(table)}, not a table")
    head, *rest = path
    return {**table, head: _put(table.get(head, {}), rest, value, key) if rest else value}


def _value(text: str) -> Any:
    """`8`, `true`, `["x"]` and `"8"` as TOML reads them; `minimal` as text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text

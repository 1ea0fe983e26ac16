"""The values of a config, of the types of their defaults."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from tpusim.errors import FileError
from tpusim.maxtext.file import shown
from tpusim.maxtext.tables import defaults

MOST = 10**9


def typed(table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are read, each of the type of its default, as MaxText reads it.

    Raises `FileError` for a value that has no such type.
    """
    return {
        key: _as_default(key, value, defaults()[key]) if key in defaults() else value
        for key, value in table.items()
    }


def _as_default(key: str, value: Any, default: Any) -> Any:
    """`value` as the type of `default`, as MaxText reads it."""
    if isinstance(default, bool):
        words = {"true": True, "false": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise FileError(f"{key} is {shown(value)}; write true or false")
    if isinstance(default, int | float):
        return _number(key, value, whole=isinstance(default, int))
    if isinstance(default, list):
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return list(value)
        raise FileError(f"{key} is {shown(value)}; write a list, as {shown(default)}")
    return _as_text(key, value)


def _number(key: str, value: Any, *, whole: bool) -> int | float:
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    usable = isinstance(number, int | float) and not isinstance(number, bool)
    if (
        not usable
        or abs(number) > MOST
        or not isfinite(number)
        or (whole and number != int(number))
    ):
        kind = "a whole number" if whole else "a number"
        raise FileError(f"{key} is {shown(value)}; write {kind}")
    return int(number) if whole else float(number)


def _as_text(key: str, value: Any) -> str:
    if value is None or value == "None":
        return ""
    if isinstance(value, bool | int | float | str):
        return str(value)
    raise FileError(f"{key} is {shown(value)}; write a word")

"""Published models: the tables of `published/`, a file for each architecture that has some."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from tpusim.base.errors import ModelError
from tpusim.base.model_names import nearest_model
from tpusim.base.shipped_table import shipped_text


@cache
def published_models(file: str) -> Mapping[str, Mapping[str, Any]]:
    """Return what a file says of each model, its `source` and its keys, by name.

    A table of the file is a model, or has `models`, a table of tables that share its other keys.

    file: in `published/`; empty for none.
    """
    return dict(_each_model({}, tomllib.loads(_text(file))))


def is_published(file: str, name: str) -> bool:
    """Return True if a file has a model of this name; it is parsed only if it mentions it."""
    return bool(name) and name in _text(file) and name in published_models(file)


@cache
def _text(file: str) -> str:
    return shipped_text("models", f"published/{file}") if file else ""


def _each_model(
    shared: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, own in tables.items():
        table = {**shared, **own}
        several = table.pop("models", None)
        yield from [(name, table)] if several is None else _each_model(table, several)


def published_keys(kind: Any, name: str) -> dict[str, Any]:
    """Return the keys of a published model of a class, as its constructor takes them.

    Raise ModelError with the nearest names if there is none of this name.
    """
    known = published_models(kind.PUBLISHED)
    if name not in known:
        own = f"`tpusim models` lists them all; or write {kind.__name__}(...) with its dimensions"
        near = nearest_model(str(name), known, own)
        raise ModelError(f"no {kind.__name__} {name!r} is known; {near}")
    types = {field.name: field.type for field in fields(kind)}
    given = known[name].items()
    return {key: _value(types.get(key), each) for key, each in given if key != "source"}


def _value(kind: Any, value: Any) -> Any:
    """Return a value of a field of type `kind`: a list as a tuple, a table as the field's class.

    A table with a name is the published model of that name, with some fields changed.
    """
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    keys = {key: each for key, each in value.items() if key != "name"}
    return kind.published(value["name"], **keys) if "name" in value else kind(**keys)

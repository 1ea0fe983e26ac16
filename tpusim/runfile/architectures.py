"""Models of a run file that are no transformers: `architecture = "resnet"`, or a published name."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from tpusim import models
from tpusim.base.errors import ModelError, nearest
from tpusim.models import ARCHITECTURES, Architecture, Transformer
from tpusim.runfile.schema import required

PLACEHOLDER = "model"
"""The name that stands in the tables of a file for a model that is built apart."""


def taken_apart(data: Mapping[str, Any]) -> tuple[dict[str, Any], Architecture | None]:
    """Return the tables of a file, and its model if that is no transformer.

    The model is then built here, and its section in the tables is a placeholder, as its keys are
    the fields of its class. Raise ModelError for an unknown architecture, a key that is none of its
    fields, and what the class refuses.
    """
    given = data.get("model")
    if not isinstance(given, dict) or not _is_other(given):
        return dict(data), None
    return {**data, "model": {"name": PLACEHOLDER}}, _built(given)


def _is_other(given: Mapping[str, Any]) -> bool:
    """Return True if a section [model] is of another architecture than a transformer."""
    if "architecture" in given:
        return bool(given["architecture"] != _name_of(Transformer))
    name = given.get("name")
    known = models.architecture_of(name) if isinstance(name, str) else None
    return known not in (None, Transformer)


def _built(given: Mapping[str, Any]) -> Architecture:
    keys = {key: value for key, value in given.items() if key != "architecture"}
    name, written = keys.get("name", ""), given.get("architecture")
    kind = models.architecture_of(name) if written is None else ARCHITECTURES.get(written)
    if kind is None:
        raise ModelError(
            f"model.architecture is {written!r}; {nearest(str(written), ARCHITECTURES)}"
        )
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in keys:
        if key not in known:
            raise ModelError(
                f"[model] has an unknown key {key!r}, as its architecture is {_name_of(kind)}; "
                f"{nearest(key, known)}"
            )
    if models.architecture_of(name) is kind:
        changes = {key: _read(kind, key, value) for key, value in keys.items() if key != "name"}
        published: Architecture = models.load(name, **changes)
        return published
    missing = [key for key in required(kind) if key not in keys]
    if missing:
        raise ModelError(
            f"model.{missing[0]} is missing; write it, or the name of a published model "
            f"({', '.join(models.names(kind))})"
        )
    return kind(**{key: _read(kind, key, value) for key, value in keys.items()})


def _read(kind: type[Architecture], key: str, value: Any) -> Any:
    """Return a value of a field as its class takes it: lists as tuples, tables as their groups.

    Raise ModelError for a key of a table that its group does not have.
    """
    if isinstance(value, list):
        return tuple(value)
    group: Any = get_type_hints(kind).get(key)
    is_group: bool = is_dataclass(group)
    if not (isinstance(value, dict) and is_group):
        return value
    known = [field.name for field in fields(group)]
    for name in value:
        if name not in known:
            raise ModelError(f"model.{key} has an unknown key {name!r}; {nearest(name, known)}")
    missing = [name for name in required(group) if name not in value]
    if missing:
        raise ModelError(f"model.{key}.{missing[0]} is missing; write it")
    return group(**value)


def _name_of(kind: type[Architecture]) -> str:
    return next(name for name, one in ARCHITECTURES.items() if one is kind)

"""Run-file models other than `Transformer`: `architecture = "resnet"`, or a published name."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, get_type_hints

from tpusim import models
from tpusim.base.close_names import listed
from tpusim.base.errors import ModelError, nearest
from tpusim.models import ARCHITECTURE_NAMES, ARCHITECTURES, Architecture, Transformer
from tpusim.runfile.schema import required

PLACEHOLDER = "model"
"""The name in the tables of a file whose model is built here."""


def split_model(data: Mapping[str, Any]) -> tuple[dict[str, Any], Architecture | None]:
    """Return the tables of a file, and its model if that is no transformer.

    The keys of such a model are the fields of its class, so it is built here, and its section in
    the tables becomes a placeholder. Raise ModelError for an unknown architecture, a key that is
    none of its fields, and what the class refuses.
    """
    given = data.get("model")
    if not isinstance(given, dict):
        return dict(data), None
    for key in ("architecture", "name"):
        if not isinstance(given.get(key, ""), str) and "architecture" in given:
            raise ModelError(f"model.{key} is {given[key]!r}; write text in quotes")
    if not _is_other(given):
        kept = {key: value for key, value in given.items() if key != "architecture"}
        return {**data, "model": kept}, None
    return {**data, "model": {"name": PLACEHOLDER}}, _built(given)


def _is_other(given: Mapping[str, Any]) -> bool:
    """Return True if a section [model] is of another architecture than a transformer."""
    if "architecture" in given:
        return bool(given["architecture"] != ARCHITECTURE_NAMES[Transformer])
    name = given.get("name")
    known = models.architecture_of(name) if isinstance(name, str) else None
    return known not in (None, Transformer)


def _built(given: Mapping[str, Any]) -> Architecture:
    keys = {key: value for key, value in given.items() if key != "architecture"}
    name, written = keys.get("name", ""), given.get("architecture")
    own = models.architecture_of(name)
    kind = own if written is None else ARCHITECTURES.get(written)
    if kind is None:
        raise ModelError(
            f"model.architecture is {written!r}; {nearest(str(written), ARCHITECTURES)}"
        )
    if own is not None and own is not kind:
        raise ModelError(
            f"model.name is {name!r}, which is a {ARCHITECTURE_NAMES[own]}, but "
            f"model.architecture is {written!r}; leave architecture out, or write another name"
        )
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in keys:
        if key not in known:
            raise ModelError(
                f"[model] has an unknown key {key!r}, as its architecture is "
                f"{ARCHITECTURE_NAMES[kind]}; {nearest(key, known)}"
            )
    start = models.published_keys(kind, name) if own is kind else {}
    read = {key: _read(kind, key, value, start) for key, value in keys.items() if key != "name"}
    if own is kind:
        published: Architecture = models.load(name, **read)
        return published
    missing = [key for key in required(kind) if key not in keys]
    if missing:
        raise ModelError(
            f"model.{missing[0]} is missing; write it, or the name of a published model "
            f"({listed(models.names(kind))})"
        )
    return kind(**({"name": name} if name else {}), **read)


def _read(kind: type[Architecture], key: str, value: Any, start: Mapping[str, Any]) -> Any:
    """Return a value of a field as its class takes it: lists as tuples, tables as groups.

    start: the fields of the published model that is changed; a table changes its group, or the
        default one.

    Raise ModelError for a key of a table that its group does not have, and for a missing one.
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
    own: Any = start.get(key, _default(kind, key))
    if own is not None:
        return replace(own, **value)
    missing = [name for name in required(group) if name not in value]
    if missing:
        raise ModelError(f"model.{key}.{missing[0]} is missing; write it")
    return group(**value)


def _default(kind: type[Architecture], key: str) -> Any:
    """Return the default of a field; None if it has none."""
    field = next(field for field in fields(kind) if field.name == key)  # type: ignore[arg-type]
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default

"""A config whose family is known: its keys, checked and with the defaults of its class."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tpusim.errors import ModelError, TpusimError
from tpusim.models.hf.families import (
    CANNOT,
    CANNOT_CLASSES,
    CANNOT_TYPES,
    FAMILIES,
    HARMLESS,
    Family,
)
from tpusim.models.hf.file import find, read

MOST = 10**9
_LONGEST = 60
_NEAR = 0.85
"""Architectures that end alike are near each other; a slip of the pen is nearer."""

_CLASSES = {name: family for family in FAMILIES for name in family.architectures}
_TYPES = {name: family for family in FAMILIES for name in family.types}
KNOWN = f"known are {', '.join(_CLASSES)}"


@dataclass(frozen=True, slots=True)
class Config:
    """One config. where: the words that name it; table: all of it; dims: the part with the
    dimensions, which is `table` itself or its `text_config`."""

    where: str
    family: Family
    table: Mapping[str, Any]
    dims: Mapping[str, Any]

    @property
    def nested(self) -> bool:
        """The dimensions stand in a part of their own."""
        return self.dims is not self.table

    def value(self, key: str) -> Any:
        """What a key says, or its default where it is not written; None if it has none."""
        return self.dims.get(key, self.family.defaults.get(key))

    def size(self, key: str) -> int:
        """A key that must be written, except where the dimensions stand in a part of their own."""
        if key not in self.dims and not (self.nested and key in self.family.defaults):
            raise self.fault(f"{self._named(key)} is missing; {_whole(1)}")
        return self._whole(key, self.value(key))

    def count(self, key: str, least: int = 1) -> int | None:
        """A key that may say null, or not be there at all."""
        value = self.value(key)
        return None if value is None else self._whole(key, value, least)

    def flag(self, key: str) -> bool:
        """A key that is true or false."""
        value = self.value(key)
        if not isinstance(value, bool):
            raise self.fault(f"{self._named(key)} is {shown(value)}; write true or false")
        return value

    def fault(self, sentence: str) -> TpusimError:
        """The error that says `sentence` about this config."""
        return ModelError(f"{self.where}: {sentence}")

    def _whole(self, key: str, value: object, least: int = 1) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
            raise self.fault(f"{self._named(key)} is {shown(value)}; {_whole(least)}")
        return value

    def _named(self, key: str) -> str:
        return f"text_config.{key}" if self.nested else key


def _whole(least: int) -> str:
    return f"write a whole number from {least} to {MOST:,}"


def config_of(given: str | Path | Mapping[str, Any]) -> Config:
    """The config at a path, or of a mapping."""
    if isinstance(given, Mapping):
        return _config("the config", given)
    path = find(given)
    return _config(str(path), read(path))


def shown(value: object) -> str:
    """A value as JSON writes it, cut short where it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = str(type(value).__name__)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _config(where: str, table: Mapping[str, Any]) -> Config:
    name, kind = _architecture(where, table), _type(where, table)
    dims = table.get("text_config", table)
    if not isinstance(dims, Mapping):
        raise ModelError(f"{where}: text_config is {shown(dims)}; write an object of keys")
    _refuse(where, name, kind, {**table, **dims})
    return Config(where, _family(where, name, kind), table, dims)


def _architecture(where: str, table: Mapping[str, Any]) -> str | None:
    names = table.get("architectures")
    if not names and isinstance(names, list | None):
        return None
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ModelError(
            f'{where}: architectures is {shown(names)}; write a list, such as ["LlamaForCausalLM"]'
        )
    return names[0]


def _type(where: str, table: Mapping[str, Any]) -> str | None:
    kind = table.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise ModelError(f'{where}: model_type is {shown(kind)}; write text, such as "llama"')
    return kind


def _refuse(where: str, name: str | None, kind: str | None, keys: Mapping[str, Any]) -> None:
    """Raise for what is understood and cannot be simulated yet."""
    found = {
        what: f"{what} ({key} = {shown(keys[key])})"
        for what, names in CANNOT.items()
        for key in names
        if keys.get(key) is True or keys.get(key) not in HARMLESS
    }
    for what in CANNOT_TYPES.get(CANNOT_CLASSES.get(name or "", kind or ""), ()):
        found.setdefault(what, what)
    if found:
        raise ModelError(
            f"{where}: {name or kind or 'the model'} cannot be simulated yet, as it has "
            f"{' and '.join(found.values())}; {KNOWN}"
        )


def _family(where: str, name: str | None, kind: str | None) -> Family:
    if name is None and kind is None:
        raise ModelError(
            f"{where}: neither architectures nor model_type says what the model is; {KNOWN}"
        )
    family = _TYPES.get(kind or "") if name is None else _CLASSES.get(name)
    if family is None:
        said = f"architecture {name!r}" if name else f"model_type {kind!r}"
        near = get_close_matches(name or kind or "", _CLASSES if name else _TYPES, 1, _NEAR)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ModelError(f"{where}: the {said} is unknown; {hint}{KNOWN}")
    if kind is not None and kind not in family.types:
        raise ModelError(
            f"{where}: architectures says {name} and model_type {kind!r}; write "
            f"{' or '.join(repr(known) for known in family.types)} for {name}"
        )
    return family

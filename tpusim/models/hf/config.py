"""A config whose family is known: its keys, checked and with the defaults of its class."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpusim.errors import ModelError, TpusimError
from tpusim.models.hf.families import Family
from tpusim.models.hf.file import find, read, shown
from tpusim.models.hf.recognise import family_of

MOST = 10**9


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

    def needed(self, key: str, least: int = 1) -> int:
        """A key that may not be there only where the family's class has a default."""
        if self.value(key) is None:
            raise self.fault(f"{self._named(key)} is missing; {_whole(least)}")
        return self._whole(key, self.value(key), least)

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


def _config(where: str, table: Mapping[str, Any]) -> Config:
    dims = table.get("text_config", table)
    if not isinstance(dims, Mapping):
        raise ModelError(f"{where}: text_config is {shown(dims)}; write an object of keys")
    return Config(where, family_of(where, table, {**table, **dims}), table, dims)

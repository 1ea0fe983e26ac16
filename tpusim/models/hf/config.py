"""A config of a known family: its keys, checked and with the defaults of its class."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpusim.base.errors import ModelError, TpusimError
from tpusim.base.value_checks import as_boolean
from tpusim.models.hf.families import HfFamily
from tpusim.models.hf.json_file import find, read, shown
from tpusim.models.hf.recognise import TEXT_PARTS, family_of

LARGEST_DIMENSION = 10**9


@dataclass(frozen=True, slots=True)
class HfConfig:
    """One config.

    where: the words that name it in messages.
    family: the family that it belongs to.
    table: all of its keys.
    dims: the part with the dimensions, which is `table` itself or one of its `TEXT_PARTS`.
    part: the key of that part; empty for `table`.
    """

    where: str
    family: HfFamily
    table: Mapping[str, Any]
    dims: Mapping[str, Any]
    part: str = ""

    @property
    def nested(self) -> bool:
        """True if the dimensions are in a part of their own."""
        return bool(self.part)

    def value(self, key: str) -> Any:
        """Return the value of a key, or its default; None if it has neither."""
        default = self.family.defaults.get(key)
        part, _, inner = key.partition(".")
        if not inner:
            return self.dims.get(key, default)
        within = self.dims.get(part)
        return within.get(inner, default) if isinstance(within, Mapping) else default

    def holds(self, key: str) -> bool:
        """Return True for a key that is true; with `!` before it, for one that is false.

        With `?` before it, for one that has a value. A key that is neither written nor has a
        default is false.
        """
        if key.startswith("?"):
            return self.value(key[1:]) is not None
        if key.startswith("!"):
            return not self.holds(key[1:])
        return self.value(key) is not None and self.flag(key)

    def size(self, key: str) -> int:
        """Return a size that must be written, unless the dimensions are in a part of their own."""
        written = self.value(key) is not None if "." in key else key in self.dims
        if not written and not (self.nested and key in self.family.defaults):
            raise self.fault(f"{self._named(key)} is missing; {_whole(1)}")
        return self.whole(key, self.value(key))

    def count(self, key: str, least: int = 1) -> int | None:
        """Return a number that may be null or missing."""
        value = self.value(key)
        return None if value is None else self.whole(key, value, least)

    def needed(self, key: str, least: int = 1) -> int:
        """Return a number that may be missing only where the family's class has a default."""
        if self.value(key) is None:
            raise self.fault(f"{self._named(key)} is missing; {_whole(least)}")
        return self.whole(key, self.value(key), least)

    def flag(self, key: str) -> bool:
        """Return a key that is true or false."""
        value = self.value(key)
        value = as_boolean(value)
        if not isinstance(value, bool):
            raise self.fault(f"{self._named(key)} is {shown(value)}; write true or false")
        return value

    def fault(self, sentence: str) -> TpusimError:
        """Return the error that says `sentence` about this config."""
        return ModelError(f"{self.where}: {sentence}")

    def whole(self, key: str, value: object, least: int = 1) -> int:
        """Return the value of a key as a whole number; of a list, that of all layers."""
        if isinstance(value, list) and value:
            value = self._alike(key, value)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not least <= value <= LARGEST_DIMENSION
        ):
            raise self.fault(f"{self._named(key)} is {shown(value)}; {_whole(least)}")
        return value

    def _alike(self, key: str, values: list[Any]) -> Any:
        """Return the value that a list gives for each layer, which all must have."""
        layers = self.value(self.family.sizes["layers"])
        if len(values) != layers:
            raise self.fault(
                f"{self._named(key)} is {shown(values)}; write one number, or one for each of the "
                f"{shown(layers)} layers"
            )
        at = next((i for i, value in enumerate(values) if value != values[0]), None)
        if at is not None:
            raise self.fault(
                f"{self._named(key)} is {shown(values[0])} in layer 0 and {shown(values[at])} in "
                f"layer {at}; layers that differ in it cannot be simulated, so write one number "
                "for all"
            )
        return values[0]

    def _named(self, key: str) -> str:
        return f"{self.part}.{key}" if self.part else key


def _whole(least: int) -> str:
    return f"write a whole number from {least} to {LARGEST_DIMENSION:,}"


def config_of(given: str | Path | Mapping[str, Any]) -> HfConfig:
    """Return the config at a path, or of a mapping."""
    if isinstance(given, Mapping):
        return _config("the config", given)
    path = find(given)
    return _config(str(path), read(path))


def _config(where: str, table: Mapping[str, Any]) -> HfConfig:
    part = next((key for key in TEXT_PARTS if key in table), "")
    dims = table[part] if part else table
    if not isinstance(dims, Mapping):
        raise ModelError(f"{where}: {part} is {shown(dims)}; write an object of keys")
    family = family_of(where, table, part)
    if not part:
        older = {now: table[key] for key, now in family.older.items() if key in table}
        table = dims = {**older, **table}
    return HfConfig(where, family, table, dims, part)

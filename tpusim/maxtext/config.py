"""A MaxText config: its keys, merged and checked.

The file overrides the defaults, the model of its `model_name` overrides the file, and the overrides
are over both, as in MaxText's pyconfig: a key of the model is overridden only on request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, PlanError, TpusimError, nearest
from tpusim.base.model_names import nearest_model
from tpusim.base.shown_value import cut, shown
from tpusim.base.text_files import path_of
from tpusim.base.value_checks import as_boolean
from tpusim.maxtext.features import Feature
from tpusim.maxtext.shipped_tables import (
    defaults,
    is_known,
    models,
    similar_key,
    typed_defaults,
    unsimulated,
)
from tpusim.maxtext.yaml_file import parse, read_config

DEFAULTS_WORDS = ("", "default", "defaults")
"""Words for MaxText's defaults in place of a path."""

LARGEST_VALUE = 10**9

NESTED = "lora"
"""The key whose table is read: its keys are `lora.enable_lora` and so on."""

Overrides = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True, slots=True)
class MaxTextConfig:
    """One config.

    where: the words that name it in messages.
    table: all keys that hold, the defaults included.
    file: the keys of the file.
    model: the keys of its `model_name`.
    over: the overrides.
    replaced: keys of the file that its `model_name` replaces.
    unknown: keys of the file that no version of MaxText has.
    """

    where: str
    table: Mapping[str, Any]
    file: Mapping[str, Any]
    model: Mapping[str, Any]
    over: Mapping[str, Any]
    replaced: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def size(self, key: str, least: int = 1) -> int:
        """Return a whole number. Raise PlanError if it is less than `least`."""
        value = self.table[key]
        if not isinstance(value, int) or not least <= value <= LARGEST_VALUE:
            raise self.fault(f"{key} is {shown(value)}; write a whole number from {least} up")
        return value

    def flag(self, key: str) -> bool:
        """Return a key that is true or false."""
        return self.table[key] is True

    def text(self, key: str) -> str:
        """Return a key that is text."""
        return str(self.table[key])

    def choice(self, key: str, table: Mapping[str, Any]) -> Any:
        """Return the entry of a table for the text of a key. Raise PlanError if there is none."""
        value = self.text(key)
        if value not in table:
            raise self.fault(
                f"{key} is {shown(value)}, which cannot be simulated; {nearest(value, table)}"
            )
        return table[value]

    def differs(self, key: str) -> bool:
        """Return True if a key has another value than its default."""
        return bool(self.table[key] != typed_defaults()[key])

    def asks_for(self, key: str, feature: Feature) -> bool:
        """Return True if the value of a key asks for a feature, and what it needs is there."""
        return feature.asked_by(key, self.table[key]) and (
            not feature.needs or any(map(self._meets, feature.needs))
        )

    def _meets(self, need: str) -> bool:
        """Return True for keys that differ from their defaults, or have the value after `=`."""
        parts = [part.partition("=") for part in need.split(" & ")]
        return all(
            self.text(key) == value if equals else self.differs(key) for key, equals, value in parts
        )

    def fault(self, sentence: str) -> TpusimError:
        """Return the error that says `sentence`; the reader of the config adds its name."""
        return PlanError(sentence)


def source(given: str | Path | None) -> tuple[str, Mapping[str, Any]]:
    """Return the words that name a config, and the keys of its file."""
    if given is None or str(given) in DEFAULTS_WORDS:
        return "MaxText's defaults", {}
    return str(given), read_config(path_of(given, "from_maxtext"))


def config_of(where: str, file: Mapping[str, Any], overrides: Overrides = ()) -> MaxTextConfig:
    """Return the config of a file's keys and overrides: `key=value` each, or a table."""
    over = _with_current_names(_parsed(overrides))
    for key in over:
        if not is_known(key):
            hint = similar_key(key) or "the keys are those of MaxText's base.yml"
            raise FileError(f"no key is called {cut(key)!r}; {hint}")
    given = _with_current_names(file)
    _check_file(given)
    return _merged(where, _typed_values(given), _typed_values(over))


def _check_file(file: Mapping[str, Any]) -> None:
    """Raise FileError for a file of another kind, and for unknown tables of keys."""
    unknown = [key for key in file if not is_known(key)]
    if 2 * len(unknown) > len(file):
        listed = ", ".join(cut(key) for key in unknown[:3])
        raise FileError(
            f"{len(unknown)} of its {len(file)} keys are none of MaxText's, such as {listed}; give "
            "a config of MaxText's, or the file to the reader of its kind"
        )
    for key in unknown:
        if isinstance(file[key], Mapping):
            raise FileError(
                f"{cut(key)} holds keys of its own, and is no key of MaxText's; write them at the "
                "top, or leave it out"
            )


def _merged(where: str, file: Mapping[str, Any], over: Mapping[str, Any]) -> MaxTextConfig:
    name = {**defaults(), **file, **over}["model_name"]
    model = _model(name)
    _check_overridden(name, model, {**file, **over}, over)
    return MaxTextConfig(
        where=where,
        table={**typed_defaults(), **file, **model, **over},
        file=file,
        model=model,
        over=over,
        replaced=tuple(
            k for k in file if k in model and file[k] not in (model[k], defaults().get(k))
        ),
        unknown=tuple(key for key in file if not is_known(key)),
    )


def without_override(config: MaxTextConfig, key: str) -> MaxTextConfig:
    """Return the config without one of its overrides."""
    over = {other: value for other, value in config.over.items() if other != key}
    return _merged(config.where, config.file, over)


def _model(name: str) -> Mapping[str, Any]:
    if name == "default":
        return {}
    if (block := unsimulated("models").get(name)) is not None:
        has = unsimulated("decoder_blocks")[block]
        raise FileError(
            f"model_name {name} cannot be simulated: its decoder_block {block} has {has}; write "
            "another model_name"
        )
    if name not in models():
        own = "MaxText 0.2.5 has no other; give the model's own file (configs/models) as the config"
        near = nearest_model(name, (*models(), *unsimulated("models")), own)
        raise FileError(f"model_name is {cut(name)!r}; {near}")
    return _typed_values(models()[name])


def _check_overridden(
    name: str, model: Mapping[str, Any], merged: Mapping[str, Any], over: Mapping[str, Any]
) -> None:
    if merged.get("override_model_config") is True:
        return
    for key, value in over.items():
        if key in model and value != model[key]:
            raise PlanError(
                f"{key} is {shown(value)}, but model_name {name} sets it to "
                f"{shown(model[key])}; MaxText takes yours with override_model_config=true only"
            )


def _parsed(overrides: Overrides) -> Mapping[str, Any]:
    """Return the table of `key=value` texts; each value is YAML."""
    if isinstance(overrides, Mapping):
        return {str(key): value for key, value in overrides.items()}
    found: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise FileError(
                f"{cut(text)!r} is no override; write KEY=VALUE, such as per_device_batch_size=4"
            )
        if key in found:
            raise FileError(f"{key} is given twice; write it once")
        try:
            found[key] = parse(value) if value else ""
        except FileError as error:
            raise FileError(f"{key}={cut(value)}: {error}") from error
    return found


def _with_current_names(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table with the current names of its keys, those of a nested table with a dot."""
    found: dict[str, Any] = {}
    inner = table.get(NESTED)
    if isinstance(inner, Mapping):
        table = {key: value for key, value in table.items() if key != NESTED}
        table |= {f"{NESTED}.{key}": value for key, value in inner.items()}
    for key, value in table.items():
        name = unsimulated("renamed").get(key, key)
        if name in found:
            raise FileError(f"{key} and {name} mean the same; write one of them")
        found[name] = value
    return found


def _typed_values(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys whose values matter, each of the type of its default, as MaxText reads it.

    Raise `FileError` for a value that has no such type.
    """
    return {
        key: _as_default(key, value, typed_defaults()[key]) if key in typed_defaults() else value
        for key, value in table.items()
    }


def _as_default(key: str, value: Any, default: Any) -> Any:
    """Return `value` as the type of `default`, as MaxText reads it."""
    if isinstance(default, bool):
        if isinstance(flag := as_boolean(value), bool):
            return flag
        raise FileError(f"{key} is {shown(value)}; write true or false")
    if isinstance(default, int | float):
        return _number(key, value, whole=isinstance(default, int))
    if isinstance(default, list):
        if isinstance(value, list | tuple) and not any(map(_is_nested, value)):
            return list(value)
        such = f", as {shown(default)}" if default else " of single values"
        raise FileError(f"{key} is {shown(value)}; write a list{such}")
    if isinstance(default, dict):
        if value is None or isinstance(value, Mapping):
            return dict(value or {})
        raise FileError(f"{key} is {shown(value)}; write a table of keys")
    return _as_text(key, value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | tuple | Mapping)


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
        or abs(number) > LARGEST_VALUE
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

"""A MaxText config: its keys, merged and checked.

The defaults give way to the file, the file to what its `model_name` stands for, and both to the
overrides, as in MaxText's pyconfig: whoever overrides a key of the model has to say so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpusim.errors import FileError, PlanError, TpusimError, nearest
from tpusim.maxtext.file import cut, parse, read_config, shown
from tpusim.maxtext.keys import LEFT_OUT, REFUSED, RENAMED, ignored
from tpusim.maxtext.tables import defaults, models, patterns
from tpusim.maxtext.values import MOST, typed

OWN = ("", "default", "defaults")
"""What stands for MaxText's defaults in place of a path."""
RULES = "logical_axis_rules"

Overrides = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Config:
    """One config. where: the words that name it; table: all that holds, the defaults included;
    file, over: what the file says, and the overrides; replaced: keys of the file in whose place its
    `model_name` puts its own; unknown: keys of the file that no version of MaxText has."""

    where: str
    table: Mapping[str, Any]
    file: Mapping[str, Any]
    over: Mapping[str, Any]
    replaced: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def written(self) -> Mapping[str, Any]:
        """What the file and the overrides say."""
        return {**self.file, **self.over}

    def size(self, key: str, least: int = 1) -> int:
        """A whole number."""
        value = self.table[key]
        if not isinstance(value, int) or not least <= value <= MOST:
            raise self.fault(f"{key} is {shown(value)}; write a whole number from {least} up")
        return value

    def flag(self, key: str) -> bool:
        """A key that is true or false."""
        return self.table[key] is True

    def text(self, key: str) -> str:
        """A key that is text."""
        return str(self.table[key])

    def choice(self, key: str, table: Mapping[str, Any]) -> Any:
        """What a table has for the text of a key."""
        value = self.text(key)
        if value not in table:
            raise self.fault(
                f"{key} is {shown(value)}, which cannot be simulated; {nearest(value, table)}"
            )
        return table[value]

    def fault(self, sentence: str) -> TpusimError:
        """The error that says `sentence`; whoever reads the config names it."""
        return PlanError(sentence)


def source(given: str | Path | None) -> tuple[str, Mapping[str, Any]]:
    """The words that name a config, and the keys of its file."""
    if given is None or str(given) in OWN:
        return "MaxText's defaults", {}
    return str(given), read_config(Path(given))


def config_of(where: str, file: Mapping[str, Any], overrides: Overrides = ()) -> Config:
    """The config of a file's keys and overrides: `key=value` each, or a table."""
    over = _current(_parsed(overrides))
    for key in over:
        if not _known(key):
            raise FileError(f"no key is called {cut(key)!r}; {_near(key)}")
    return _merged(where, typed(_current(file)), typed(over))


def _merged(where: str, file: Mapping[str, Any], over: Mapping[str, Any]) -> Config:
    name = {**defaults(), **file, **over}["model_name"]
    model = _model(name)
    _check_overridden(name, model, {**file, **over}, over)
    return Config(
        where=where,
        table={**defaults(), **file, **model, **over},
        file=file,
        over=over,
        replaced=tuple(k for k in file if k in model and file[k] not in (model[k], _default(k))),
        unknown=tuple(key for key in file if not _known(key)),
    )


def without(config: Config, key: str) -> Config:
    """The config without one of its overrides."""
    over = {other: value for other, value in config.over.items() if other != key}
    return _merged(config.where, config.file, over)


def _model(name: str) -> Mapping[str, Any]:
    if name == "default":
        return {}
    if name not in models():
        raise FileError(f"model_name is {cut(name)!r}; {nearest(name, models())}")
    return models()[name]


def _check_overridden(
    name: str, model: Mapping[str, Any], all_: Mapping[str, Any], over: Mapping[str, Any]
) -> None:
    if all_.get("override_model_config") is True:
        return
    for key, value in over.items():
        if key in model and value != model[key]:
            raise PlanError(
                f"{key} is {shown(value)}, but model_name {name} sets it to "
                f"{shown(model[key])}; MaxText takes yours with override_model_config=true only"
            )


def _default(key: str) -> Any:
    return defaults().get(key)


def _parsed(overrides: Overrides) -> Mapping[str, Any]:
    """The table of `key=value` texts; each value is YAML."""
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


def _current(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with the names of today."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = RENAMED.get(key, key)
        if name in found:
            raise FileError(f"{key} and {name} mean the same; write one of them")
        found[name] = value
    return found


def _known(key: str) -> bool:
    return key in defaults() or key in LEFT_OUT or key in REFUSED or key == RULES or ignored(key)


def _near(key: str) -> str:
    """The nearest of the keys that are written out."""
    near = nearest(key, named())
    return near if near.startswith("did you mean") else "the keys are those of MaxText's base.yml"


def named() -> Iterable[str]:
    """The keys that are written out."""
    plain = (key for key in patterns() if "*" not in key)
    return (*defaults(), *LEFT_OUT, *REFUSED, RULES, *plain)

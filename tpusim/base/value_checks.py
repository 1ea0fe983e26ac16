"""Checks of single values of a plan, whatever their key: words, numbers, flags and names."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shown_value import shown

LONGEST_NAME = 80
MOST_SECONDS = 1_000_000_000
"""The longest duration that is an input: thirty years."""

MOST_COUNT = 10**18
"""The most of anything that is counted, such as the tokens of a run."""


@cache
def choices_of(kind: Hashable) -> Mapping[str, tuple[str, ...]]:
    """Return the words of each field of a dataclass whose type is a `Literal` or has one.

    The type says what is accepted: to editors and type checkers, to `check_words`, and to help.
    """
    hints = get_type_hints(kind)
    found = {field.name: _words(hints[field.name]) for field in fields(cast("type[Any]", kind))}
    return {name: words for name, words in found.items() if words}


def _words(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return next((get_args(part) for part in parts if get_origin(part) is Literal), ())


@cache
def _tables_of(kind: Hashable) -> frozenset[str]:
    """Return the fields of a dataclass whose type has a table as well."""
    hints = get_type_hints(kind)
    parts = {name: (hint, *get_args(hint)) for name, hint in hints.items()}
    return frozenset(
        name
        for name, kinds in parts.items()
        if any(get_origin(each) in (Mapping, dict) for each in kinds)
    )


def check_words(where: str, owner: Any) -> None:
    """Raise PlanError unless each field whose type is a `Literal` is one of its words."""
    kind: Any = type(owner)
    for name, words in choices_of(kind).items():
        value, key = getattr(owner, name), f"{where}.{name}"
        if isinstance(value, Mapping) and name in _tables_of(kind):
            continue  # words by axis, which their owner checks
        check_word(key, value, [word for word in words if word], optional="" in words)


def check_word(where: str, value: Any, choices: Collection[str], *, optional: bool = False) -> None:
    """Raise PlanError unless the value is one of the choices, or empty where it is optional."""
    known = isinstance(value, str) and (value in choices or (optional and not value))
    if not known:
        raise PlanError(f"{where} is {value!r}: {nearest(str(value), choices)}")


def check_positive(where: str, value: Any) -> None:
    """Raise PlanError unless the value is a whole number from 1 to MOST_COUNT."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{where} is {value!r}; it must be a whole number of at least 1")
    if value > MOST_COUNT:
        raise PlanError(f"{where} is {shown(value)}; write at most {MOST_COUNT:.0e}")


def check_from_zero(where: str, value: float) -> None:
    """Raise PlanError unless the value is finite and not negative."""
    if not isfinite(value) or value < 0:
        raise PlanError(f"{where} is {value:g}; write a number from 0 up")


def check_count(
    where: str, value: Any, low: int, high: int, error: type[ValueError] = PlanError
) -> None:
    """Raise an error, by default PlanError, unless the value is a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise error(f"{where} is {shown(value)}; write a whole number from {low} to {high:,}")


def check_range(where: str, value: Any, low: float, high: float) -> None:
    """Raise PlanError unless the value is a number in a range."""
    if not is_number(value) or not low <= value <= high:
        raise PlanError(f"{where} is {shown(value)}; write a number from {low:g} to {high:,g}")


def check_flag(where: str, value: Any) -> None:
    """Raise PlanError unless the value is true or false."""
    if not isinstance(value, bool):
        raise PlanError(f"{where} is {value!r}; write true or false")


def check_name(where: str, value: Any) -> None:
    """Raise PlanError unless the value, a name in a table, has 1 to 80 printable characters."""
    if not (isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()):
        raise PlanError(
            f"{where} has the name {shown(value)}; write 1 to {LONGEST_NAME} printable characters"
        )


def check_names(where: str, value: Any, example: str = '["q", "k"]') -> None:
    """Raise PlanError unless the value is a list of names, each of them once."""
    if not is_list(value) or not all(isinstance(name, str) for name in value):
        raise PlanError(f"{where} is {value!r}; write a list of names, such as {example}")
    for position, name in enumerate(value):
        if name in value[:position]:
            raise PlanError(f"{where} lists {name!r} twice; write each name once")


def seconds(where: str, value: Any) -> float:
    """Return a duration as a float. Raise PlanError unless it is from 0 to MOST_SECONDS."""
    if not is_number(value) or not 0 <= value <= MOST_SECONDS:
        raise PlanError(f"{where} is {value!r}; write seconds, a number from 0 to {MOST_SECONDS:,}")
    return float(value)


def as_boolean(value: Any) -> Any:
    """Return a value, or for the text `true` or `false` its boolean: YAML's and shells' words."""
    words = {"true": True, "false": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def is_number(value: Any) -> bool:
    """Return True if the value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    """Return True if the value is a list; text is not."""
    return isinstance(value, Sequence) and not isinstance(value, str)

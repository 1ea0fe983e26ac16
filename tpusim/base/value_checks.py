"""Checks of single values of a plan, whatever their key: words, numbers, flags and names."""

from collections.abc import Collection, Sequence
from math import inf
from typing import Any

from tpusim.base.errors import PlanError, nearest
from tpusim.tape import untraced


def check_word(where: str, value: Any, choices: Collection[str], *, optional: bool = False) -> None:
    """Raise PlanError unless the value is one of the choices, or empty where it is optional."""
    known = isinstance(value, str) and (value in choices or (optional and not value))
    if not known:
        raise PlanError(f"{where} is {value!r}: {nearest(str(value), choices)}")


def check_positive(where: str, value: Any) -> None:
    """Raise PlanError unless the value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(untraced(value), int) or value < 1:
        raise PlanError(f"{where} is {value!r}; it must be a whole number of at least 1")


def check_flag(where: str, value: Any) -> None:
    """Raise PlanError unless the value is true or false."""
    if not isinstance(value, bool):
        raise PlanError(f"{where} is {value!r}; write true or false")


def check_names(where: str, value: Any, example: str = '["q", "k"]') -> None:
    """Raise PlanError unless the value is a list of names, each of them once."""
    if not is_list(value) or not all(isinstance(name, str) for name in value):
        raise PlanError(f"{where} is {value!r}; write a list of names, such as {example}")
    for position, name in enumerate(value):
        if name in value[:position]:
            raise PlanError(f"{where} lists {name!r} twice; write each name once")


def seconds(where: str, value: Any) -> float:
    """Return a duration as a float. Raise PlanError unless it is finite and not negative."""
    if not is_number(value) or not 0 <= value < inf:
        raise PlanError(f"{where} is {value!r}; write seconds, a finite number of at least 0")
    return float(value)


def is_number(value: Any) -> bool:
    """Return True if the value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    """Return True if the value is a list; text is not."""
    return isinstance(value, Sequence) and not isinstance(value, str)

"""What values of a plan's keys have to be, whatever the key: numbers, flags, names."""

from collections.abc import Sequence
from math import inf
from typing import Any

from tpusim.errors import PlanError


def check_positive(where: str, value: Any) -> None:
    """Raise PlanError for what is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{where} is {value!r}; it must be a whole number of at least 1")


def check_flag(where: str, value: Any) -> None:
    """Raise PlanError for what is neither true nor false."""
    if not isinstance(value, bool):
        raise PlanError(f"{where} is {value!r}; write true or false")


def check_names(where: str, value: Any) -> None:
    """Raise PlanError for what is no list of names, each of them once."""
    if not is_list(value) or not all(isinstance(name, str) for name in value):
        raise PlanError(f'{where} is {value!r}; write a list of names, such as ["q", "k"]')
    for place, name in enumerate(value):
        if name in value[:place]:
            raise PlanError(f"{where} lists {name!r} twice; write each name once")


def seconds(where: str, value: Any) -> float:
    """A time as a float. Raises PlanError for what is none."""
    if not is_number(value) or not 0 <= value < inf:
        raise PlanError(f"{where} is {value!r}; write seconds, a finite number of at least 0")
    return float(value)


def is_number(value: Any) -> bool:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    """Whether a value is a list; a word is none."""
    return isinstance(value, Sequence) and not isinstance(value, str)

"""Traced numbers: they stand for numbers, and write down what is done with them."""

import operator
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NoReturn, Protocol, TypeVar, cast

Result = TypeVar("Result")


class Recorder(Protocol):
    """What a traced number needs of its tape.

    values: by position.
    """

    values: list[Any]

    def apply(self, function: Callable[..., Any], *given: Any) -> "Traced":
        """Return the result of a function of numbers."""

    def apply_to_two(self, function: Callable[..., Any], first: Any, second: Any) -> "Traced":
        """Return the result of a function of two numbers."""

    def decide(self, node: int, truth: bool) -> Any:
        """Return the value of a number, on which the rest depends."""


class Traced:
    """A number on a tape.

    Arithmetic and comparisons give further traced numbers. Where Python needs the number itself, in
    a condition, as an index or in a text, the tape notes that the rest depends on it: on the truth
    of a condition, on the exact value of anything else.

    node: its position on the tape.
    """

    __slots__ = ("node", "tape")

    def __init__(self, tape: Recorder, node: int) -> None:
        self.tape = tape
        self.node = node

    @property
    def value(self) -> Any:
        """The number with which the tape was recorded."""
        return self.tape.values[self.node]

    def __repr__(self) -> str:
        return f"Traced(v{self.node}={self.value!r})"

    def __bool__(self) -> bool:
        return bool(self.tape.decide(self.node, truth=True))

    def __hash__(self) -> int:
        raise TracedHashError(
            f"{self!r} is no key: a cache would hold it for numbers that are equal"
        )

    def _exact(self) -> Any:
        return self.tape.decide(self.node, truth=False)

    def __index__(self) -> int:
        return operator.index(self._exact())

    def __int__(self) -> int:
        return int(self._exact())

    def __float__(self) -> float:
        return float(self._exact())

    def __format__(self, spec: str) -> str:
        return format(self._exact(), spec)

    def __str__(self) -> str:
        return str(self._exact())

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot leave the process that recorded it")

    def is_integer(self) -> "Traced":
        """Return whether the number is whole, as `float.is_integer`."""
        return self.tape.apply(_is_integer, self)


class TracedHashError(TypeError):
    """A traced number was used as a key."""


def _is_integer(value: float) -> bool:
    return float(value).is_integer()


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self.tape.apply_to_two(function, self, other)


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self.tape.apply_to_two(function, other, self)


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: self.tape.apply(function, self)


def _ceil(value: float) -> int:
    return value.__ceil__()


def _floor(value: float) -> int:
    return value.__floor__()


# Operators that are not here are not recorded: Python then says that it has none for the number.
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or"):
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    setattr(Traced, f"__{_name}__", _forward(_function))
    setattr(Traced, f"__r{_name}__", _reflected(_function))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Traced, f"__{_name}__", _forward(getattr(operator, _name)))
for _name in ("neg", "pos", "abs"):
    setattr(Traced, f"__{_name}__", _alone(getattr(operator, _name)))
Traced.__ceil__ = _alone(_ceil)  # type: ignore[attr-defined]
Traced.__floor__ = _alone(_floor)  # type: ignore[attr-defined]


def call(function: Callable[..., Result], *given: Any) -> Result:
    """Return `function(*given)`, as one operation of the tape where a number is traced.

    A pure function of plain numbers then stays one step of the tape, and its own conditions decide
    nothing beyond it.
    """
    for each in given:
        if type(each) is Traced:
            return cast(Result, each.tape.apply(function, *given))
    return function(*given)


def untraced(value: Any) -> Any:
    """Return the number that a traced one was recorded with; any other value unchanged.

    What is made of it must not depend on the number.
    """
    return value.value if type(value) is Traced else value


def uncached_if_traced(
    maxsize: int,
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator that caches as `lru_cache` does, but no call with traced numbers."""

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        cached = lru_cache(maxsize=maxsize)(function)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Result:
            try:
                return cached(*args, **kwargs)
            except TracedHashError:
                return function(*args, **kwargs)

        return run

    return decorate

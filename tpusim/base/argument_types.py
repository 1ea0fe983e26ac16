"""Checks of values against annotations of types, which say in words what a value must be."""

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from inspect import signature
from math import isfinite
from numbers import Number
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from tpusim.base.shown_value import cut, with_article

Check: TypeAlias = Callable[[Any], str]
"""Returns what a value must be, in words; empty if it is that."""


@dataclass(frozen=True, slots=True)
class _Argument:
    """A parameter of a function.

    several: it is `*name`.
    plain: the class whose values all fit, for a quick look; None where more is asked.
    """

    name: str
    several: bool
    plain: type | None
    check: Check


@cache
def _arguments(function: Callable[..., Any]) -> tuple[_Argument, ...]:
    """Return the parameters of a function but for `**name`, in order."""
    hints = hints_of(function, include_extras=True)
    found = []
    for name, each in signature(function).parameters.items():
        if each.kind is not each.VAR_KEYWORD:
            hint = hints.get(name, Any)
            plain = hint if isinstance(hint, type) and hint is not Any else None
            several = each.kind is each.VAR_POSITIONAL
            found.append(_Argument(name, several, plain, check_of(hint)))
    return tuple(found)


@cache
def check_of(kind: Any) -> Check:
    """Return the check of an annotation; of one that it does not know, one that all values pass.

    What an annotation asks besides the type is a `Check` as well: the `unmet` of each object in it,
    as in `Annotated[int, AtLeast(1)]`.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _limited(check_of(inner[0]), inner[1:])
    if origin in (Union, types.UnionType):
        return _one_of(tuple(map(check_of, inner)))
    if origin is Literal:
        words = f"one of {', '.join(map(repr, inner))}"
        return lambda value: "" if _in(value, inner) else words
    if origin is tuple and inner[-1:] != (...,):
        return _row(tuple(map(check_of, inner)))
    if origin in (Sequence, Iterable, list, tuple):
        return _several(check_of(inner[0]))
    if origin is Callable or kind is Callable:
        return lambda value: "" if callable(value) else "a function"
    return _plain(origin or kind)


def _plain(kind: Any) -> Check:
    if kind is None or kind is type(None):
        return lambda value: "" if value is None else "None"
    if kind is float:
        return lambda value: "" if _is_number(value) else "a finite number"
    if kind is int:
        return lambda value: "" if _is_whole(value) else "a whole number"
    if kind is Any or not isinstance(kind, type):
        return lambda value: ""
    words = {str: "text", bool: "True or False", Mapping: "a table"}.get(
        kind, with_article(kind.__name__)
    )
    return lambda value: "" if isinstance(value, kind) else words


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
    return known and (not isinstance(value, float) or isfinite(value))


def _in(value: Any, words: tuple[Any, ...]) -> bool:
    return any(type(value) is type(word) and value == word for word in words)


def _limited(check: Check, limits: tuple[Any, ...]) -> Check:
    def both(value: Any) -> str:
        said = check(value)
        own = (limit.unmet(value) for limit in limits if hasattr(limit, "unmet"))
        return said or next(filter(None, own), "")

    return both


def _one_of(checks: tuple[Check, ...]) -> Check:
    def either(value: Any) -> str:
        words = [check(value) for check in checks]
        return " or ".join(dict.fromkeys(words)) if all(words) else ""

    return either


def _several(check: Check) -> Check:
    def each(value: Any) -> str:
        if not isinstance(value, list | tuple):
            return f"a list or a tuple, each {check(_NOTHING)}".removesuffix(", each ")
        return next((f"a list, each {said}" for said in map(check, value) if said), "")

    return each


def _row(checks: tuple[Check, ...]) -> Check:
    words = f"({', '.join(check(_NOTHING) or 'any value' for check in checks)})"

    def each(value: Any) -> str:
        fits = isinstance(value, tuple) and len(value) == len(checks)
        wrong = not fits or any(check(one) for check, one in zip(checks, value, strict=True))
        return f"a tuple, {words}" if wrong else ""

    return each


_NOTHING = type("nothing", (), {})()
"""A value that no annotation with a class takes."""


def misfit(function: Callable[..., Any], args: Sequence[Any], keys: Mapping[str, Any]) -> str:
    """Return which argument of a call is not of its type, and what it must be; empty if all are.

    Arguments that the function does not have, and those that are missing, are left to the call.
    """
    count = len(args)
    for at, argument in enumerate(_arguments(function)):
        if argument.several:
            given, count = args[at:], 0
        elif at < count:
            given = args[at : at + 1]
        elif argument.name in keys:
            given = (keys[argument.name],)
        else:
            continue
        for value in given:
            if type(value) is not argument.plain and (said := argument.check(value)):
                return _sentence(argument.name, value, said)
    return ""


def _sentence(name: str, value: Any, said: str) -> str:
    return f"{name} is {cut(in_words(value))}; it must be {said}"


def in_words(value: Any) -> str:
    """Return a value as a message shows it: its own short text, or the name of its class."""
    if isinstance(value, str | Number | None):
        return repr(value)
    text = str(value)
    return with_article(type(value).__name__) if text.startswith("<") else text

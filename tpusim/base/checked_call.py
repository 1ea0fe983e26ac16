"""Calls whose arguments do not fit the function: a sentence in place of Python's own words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from tpusim.base.close_names import joined
from tpusim.base.errors import ArgumentError, nearest

Callee = TypeVar("Callee", bound=Callable[..., Any])

_ANY_NUMBER = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def checked_call(callee: Callee) -> Callee:
    """Return a function, or a class, whose calls raise ArgumentError where arguments do not fit.

    That is one with a name that it does not know, one too many, one given twice, or one missing.
    A call that fits costs nothing but the call.
    """
    if isinstance(callee, type):
        made: Any = callee
        made.__init__ = _checked(made.__init__, made.__name__, made)
        if getattr(getattr(made, "__dataclass_params__", None), "frozen", False):
            made.__setattr__ = _unchanged
        return callee
    return _checked(callee, callee.__name__, None)  # type: ignore[return-value]


def _checked(function: Callable[..., Any], name: str, owner: Any) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **keys: Any) -> Any:
        try:
            return function(*args, **keys)
        except TypeError as error:
            refused_here = error.__traceback__ is not None and error.__traceback__.tb_next is None
            sentence = _sentence(function, name, owner, args, keys) if refused_here else ""
            if not sentence:
                raise
        raise ArgumentError(sentence)

    return checked


def _unchanged(owner: Any, key: str, _: object) -> None:
    """Raise, as objects of a frozen class do not change."""
    method = "" if hasattr(owner, "replace") else "dataclasses."
    given = "" if hasattr(owner, "replace") else "it, "
    raise FrozenInstanceError(
        f"a {type(owner).__name__} does not change; make another by "
        f"{method}replace({given}{key}=...)"
    )


def _sentence(
    function: Callable[..., Any],
    name: str,
    owner: Any,
    args: Sequence[Any],
    keys: Mapping[str, Any],
) -> str:
    """Return what is wrong with the arguments of a call; empty if they fit."""
    parameters = list(signature(function).parameters.values())
    if owner is not None or [each.name for each in parameters[:1]] in (["self"], ["cls"]):
        parameters, args = parameters[1:], args[1:]
    several = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters)
    named = [each for each in parameters if each.kind not in _ANY_NUMBER]
    by_place = [each.name for each in named if each.kind in _BY_PLACE]
    known = [each.name for each in named if each.kind is not Parameter.POSITIONAL_ONLY]
    needed = [each.name for each in named if each.default is Parameter.empty]
    if grouped := getattr(owner, "KEYS", None):
        known = [*known, *grouped.table, *grouped.groups]
        needed += grouped.needed
    call = f"write {name}({', '.join(_written(needed, by_place))})"
    for key in keys:
        if "." not in key and key not in known:
            return f"{name} has no {_noun(owner)} {key!r}; {nearest(key, known)}"
    if len(args) > len(by_place) and not several:
        return f"{name} takes {_places(by_place)} without a name, and {len(args)} are given; {call}"
    given = by_place[: len(args)]
    if twice := [key for key in given if key in keys]:
        return f"{name} has {twice[0]!r} twice, by its place and by its name; write it once"
    if missing := [key for key in needed if key not in given and key not in keys]:
        return f"{name} needs {joined(missing)}; {call}"
    return ""


def _noun(owner: Any) -> str:
    return "argument" if owner is None else "key"


def _written(needed: Iterable[str], by_place: Sequence[str]) -> list[str]:
    return [key if key in by_place else f"{key}=..." for key in needed]


def _places(by_place: Sequence[str]) -> str:
    return f"{len(by_place)} values ({', '.join(by_place)})" if by_place else "no values"

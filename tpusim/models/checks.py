"""Checks of the fields of a model and of its groups: types, minima, words and divisors."""

from collections.abc import Mapping
from dataclasses import fields
from math import inf
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args, get_origin

from tpusim.base.argument_types import in_words
from tpusim.base.errors import ModelError, PlanError
from tpusim.base.foreign_names import foreign_advice
from tpusim.base.shown_value import cut
from tpusim.graph import GraphWriter

_FIELD_TYPES: dict[object, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: (bool, "True or False"),
}
"""For each type of a field: the type of its values, and its name in a message."""

_COUNTS = {
    True: "a list of whole numbers of at least 1, such as [3, 4, 6, 3]",
    False: "two whole numbers of at least 1, such as [832, 1344]",
}
"""What a field of counts must be, by whether it has any number of them."""

_DERIVED = ("kv_heads", "head_dim")
"""Fields whose default, 0, is replaced by a number of at least 1."""


def check_types(owner: Any, prefix: str = "") -> None:
    """Raise ModelError for a value that is not of its field's type.

    prefix: text before a field's name in messages, such as `latent.`.
    """
    for field in fields(owner):
        value = getattr(owner, field.name)
        said = _wanted(value, field.type)
        if said:
            raise ModelError(f"{prefix}{field.name} is {cut(in_words(value))}; it must be {said}")


def _wanted(value: Any, kind: Any) -> str:
    """Return what a value of a field's type would be, in words; empty if it is one."""
    if kind in _FIELD_TYPES:
        own, said = _FIELD_TYPES[kind]
        fits = isinstance(value, own) and isinstance(value, bool) == (kind is bool)
        return "" if fits else said
    if get_origin(kind) is tuple:
        return "" if _is_counts(value, kind) else _COUNTS[get_args(kind)[-1] is Ellipsis]
    if get_origin(kind) is UnionType:
        words = [_wanted(value, one) for one in get_args(kind)]
        return " or ".join(words) if all(words) else ""
    if isinstance(kind, type) and not isinstance(value, kind):
        return f"of the class {kind.__name__}"
    return ""


def _is_counts(value: Any, kind: Any) -> bool:
    """Return True if a value is a tuple of whole numbers of at least 1, as many as its type has."""
    several = get_args(kind)[-1] is Ellipsis
    if (
        not isinstance(value, tuple)
        or len(value) < 1
        or not (several or len(value) == len(get_args(kind)))
    ):
        return False
    return all(not _wanted(one, int) and one >= 1 for one in value)


def check_values(owner: Any, choices: Mapping[str, tuple[str, ...]], prefix: str = "") -> None:
    """Raise ModelError for a number that is too small or not finite, and for a word of no choice.

    choices: the words that a field may be; empty for none of them.
    """
    for field in fields(owner):
        key, value = field.name, getattr(owner, field.name)
        least = 0 if field.default == 0 and key not in _DERIVED else 1
        if field.type in (int, float) and not least <= value < inf:
            upper = "" if value < inf else " and finite"
            raise ModelError(f"{prefix}{key} is {value}; it must be at least {least}{upper}")
        if key in choices and value not in choices[key]:
            words = list(filter(None, choices[key]))
            told = foreign_advice(str(value), words) or f"write one of {', '.join(words)}"
            raise ModelError(f"{prefix}{key} is {value!r}; {told}")


def check_heads(
    embed: int,
    heads: int,
    prefix: str = "",
    *,
    halves: bool = False,
    instead: str = "write heads that divide it",
) -> None:
    """Raise ModelError for heads that do not share the embedding evenly.

    prefix: text before the field's name in the message, such as `text.`.
    halves: each head is cut in two.
    instead: what to write.
    """
    if heads < 1 or embed % (2 * heads if halves else heads):
        parts = f"{heads} heads{' and in halves' if halves else ''}"
        raise ModelError(f"{prefix}embed {embed} does not divide into {parts}; {instead}")


def check_halvings(key: str, size: int, times: int) -> None:
    """Raise ModelError for a size that cannot be halved so many times."""
    if size % 2**times:
        raise ModelError(
            f"{key} is {size}, which cannot be halved {times} times; write a multiple of {2**times}"
        )


def check_length(w: GraphWriter, name: str, positions: int) -> int:
    """Return the tokens of a sequence.

    positions: rows of the table of learnt positions, 0 for none.

    Raise PlanError if there are more of them than rows.
    """
    length = w.extent("seq")
    if positions and length > positions:
        raise PlanError(
            f"plan.seq_len is {length}, and {name} has {positions} positions; write "
            f"seq_len = {positions} or less, or model.positions = {length}"
        )
    return length

"""Checks of the fields of a model and of its groups: types, minima and words."""

from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral
from typing import Any

from tpusim.base.errors import ModelError

_FIELD_TYPES: dict[object, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    str: (str, "text"),
    bool: (bool, "True or False"),
}
"""For each type of a field: the type of its values, and its name in a message."""

_DERIVED = ("kv_heads", "head_dim")
"""Fields whose default, 0, is replaced by a number of at least 1."""


def check_types(owner: Any, prefix: str = "") -> None:
    """Raise ModelError for a value that is not of its field's type.

    prefix: text before a field's name in messages, such as `latent.`.
    """
    for field in fields(owner):
        value = getattr(owner, field.name)
        if field.type in _FIELD_TYPES:
            kind, said = _FIELD_TYPES[field.type]
            if not isinstance(value, kind) or isinstance(value, bool) != (field.type is bool):
                raise ModelError(f"{prefix}{field.name} is {value!r}; it must be {said}")


def check_values(owner: Any, choices: Mapping[str, tuple[str, ...]], prefix: str = "") -> None:
    """Raise ModelError for a number that is too small, and for a word that is not a choice.

    choices: the words that a field may be.
    """
    for field in fields(owner):
        key, value = field.name, getattr(owner, field.name)
        least = 0 if field.default == 0 and key not in _DERIVED else 1
        if field.type is int and value < least:
            raise ModelError(f"{prefix}{key} is {value}; it must be at least {least}")
        if key in choices and value not in choices[key]:
            raise ModelError(f"{prefix}{key} is {value!r}; write one of {', '.join(choices[key])}")

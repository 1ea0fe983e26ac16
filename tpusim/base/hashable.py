"""Keys of values that hold lists and dictionaries."""

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def hashable(value: Any) -> Hashable:
    """Return a key of a value: equal for equal ones, with the items of dictionaries in order."""
    try:
        hash(value)
    except TypeError:
        return _without_lists(value)
    return value  # type: ignore[no-any-return]


def _without_lists(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((key, hashable(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    if is_dataclass(value):
        return type(value), *(hashable(getattr(value, each.name)) for each in fields(value))
    raise TypeError(f"{value!r} cannot be a key")

"""Values as NumPy and data frames hold them, as Python's own. Neither package is imported."""

from collections.abc import Mapping
from typing import Any

_PYTHON_TYPES = frozenset({int, bool, str, type(None)})

_MISSING_TYPES = ("NAType", "NaTType")


def is_plain(value: Any) -> bool:
    """Return True for values that are Python's own at a glance, as nearly all are."""
    kind = type(value)
    if kind is float:
        return bool(value == value)
    if kind is dict:
        return _PYTHON_TYPES.issuperset(map(type, value.values()))
    if kind is tuple or kind is list:
        return _PYTHON_TYPES.issuperset(map(type, value))
    return kind in _PYTHON_TYPES


def is_missing(value: Any) -> bool:
    """Return True for NaN, NA and NaT, which a frame holds where a row has no value."""
    if isinstance(value, float):
        return value != value
    return type(value).__name__ in _MISSING_TYPES


def python_value(value: Any, kind: Any = None) -> Any:
    """Return NumPy's scalars and arrays as Python's own, also within mappings and lists.

    kind: the type that is wanted; where it is `int`, or a mapping to `int`, a whole NumPy float is
        an int, as a row of numbers alone has floats in place of its whole numbers.

    >>> import numpy as np
    >>> python_value({"fsdp": np.float64(16)}, Mapping[str, int])
    {'fsdp': 16}
    """
    if type(value) in _PYTHON_TYPES:
        return value
    if isinstance(value, Mapping):
        inner = int if kind == Mapping[str, int] else None
        changed = {key: python_value(each, inner) for key, each in value.items()}
        same = all(changed[key] is each for key, each in value.items())
        return value if same else changed
    if isinstance(value, list | tuple):
        parts = [python_value(each) for each in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    if not (hasattr(value, "dtype") and hasattr(value, "tolist")):
        return value
    plain = value.tolist()
    return int(plain) if kind is int and isinstance(plain, float) and plain.is_integer() else plain

"""Programs as JSON, to inspect, to compare, and to simulate again elsewhere.

Each dataclass is an object with its `type` and those of its fields that differ from the default;
tuples are lists. Integers stay integers and floats keep every digit, so a program that is read
back equals the one that was written.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import numpy as np

from tpusim.base.errors import FileError, nearest
from tpusim.program.program import Program

TYPE_KEY = "type"


def dumps(program: Program) -> str:
    """Return the program as JSON text, the same for equal programs.

    Raise ValueError for a number that is not finite, which no valid program has.
    """
    return json.dumps(_encoded(program), indent=1, allow_nan=False) + "\n"


def loads(text: str) -> Program:
    """Return the program that `dumps` wrote.

    Raise FileError, with the path in the file, for text that is not JSON or not a program.
    """
    try:
        tree = json.loads(text, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        raise FileError(f"the program is not JSON: {error}") from None
    except RecursionError:
        raise FileError("the program is nested too deeply to be one of ours") from None
    program: Program = _decoded(Program, tree, "program")
    return program


def _encoded(value: Any) -> Any:
    if is_dataclass(value):
        kind: type = type(value)
        kept = {name: getattr(value, name) for name in _hints(kind)}
        defaults = _defaults(kind)
        return {TYPE_KEY: kind.__name__} | {
            name: _encoded(v) for name, v in kept.items() if not _same(v, defaults.get(name))
        }
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def _same(value: Any, default: Any) -> bool:
    """Return True for equal values of one type: 0.0 is kept if the default is 0."""
    return type(value) is type(default) and bool(np.all(value == default))


@lru_cache(maxsize=32)
def _defaults(kind: type) -> dict[str, Any]:
    return {f.name: _default(f) for f in fields(kind) if _default(f) is not MISSING}


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


@lru_cache(maxsize=32)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decoded(hint: Any, value: Any, where: str) -> Any:
    """Return `value` as the type that `hint` names."""
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), value, where)
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if float in options:
        return _number(value, where)
    if all(is_dataclass(option) for option in options):
        return _object({option.__name__: option for option in options}, value, where)
    if issubclass(hint, Enum):
        return _member(hint, value, where)
    if type(value) is not hint:
        raise _wrong(where, value, f"of type {hint.__name__}")
    return value


def _tuple(items: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    hints = items[:1] * len(value) if items[-1] is Ellipsis else items
    if len(hints) != len(value):
        raise _wrong(where, value, f"a list of {len(hints)}")
    pairs = enumerate(zip(hints, value, strict=True))
    return tuple(_decoded(hint, item, f"{where}[{i}]") for i, (hint, item) in pairs)


def _number(value: Any, where: str) -> Any:
    """Return a number, or an array with one for each plan."""
    many = value if isinstance(value, list) else [value]
    if not all(type(item) in (int, float) for item in many):
        raise _wrong(where, value, "a number")
    return np.array(value, dtype=np.float64) if many is value else value


def _object(options: dict[str, type], value: Any, where: str) -> Any:
    name = value.get(TYPE_KEY) if isinstance(value, dict) else None
    if name not in options:
        raise _wrong(where, name or value, f"an object whose {TYPE_KEY} is {' or '.join(options)}")
    given = {key: item for key, item in value.items() if key != TYPE_KEY}
    hints = _hints(options[name])
    for key in given:
        if key not in hints:
            raise FileError(f"{where}.{key} is no field of {name}: {nearest(key, hints)}")
    for key in hints:
        if key not in given and key not in _defaults(options[name]):
            raise FileError(f"{where} lacks the field {key!r} of {name}")
    make: Callable[..., Any] = options[name]
    return make(**{key: _decoded(hints[key], v, f"{where}.{key}") for key, v in given.items()})


def _member(kind: type[Enum], value: Any, where: str) -> Enum:
    names = [str(member.value) for member in kind]
    if value not in names:
        raise FileError(f"{where} is {value!r}, no {kind.__name__}: {nearest(str(value), names)}")
    return kind(value)


def _wrong(where: str, value: Any, wanted: str) -> FileError:
    shown = repr(value)
    shown = shown if len(shown) < 60 else f"{shown[:57]}..."
    return FileError(f"{where} is {shown}; it must be {wanted}")


def _not_finite(text: str) -> NoReturn:
    raise FileError(f"the program has the number {text}; every number must be finite")

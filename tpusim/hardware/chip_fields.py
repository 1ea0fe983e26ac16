"""Units of the fields of a chip: reading what a person wrote, and checking the values.

The metadata of a dataclass field is its unit. The catalogue parses a chip's file by it,
`Chip.replace` a what-if.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tpusim.base.errors import HardwareError
from tpusim.base.shown_value import shown
from tpusim.base.units import parse

Dims = tuple[int, ...]
"""Chips along each dimension of a slice."""

COUNT, YEAR, SHAPE, SHARE, EXPONENT = "count", "year", "shape", "share", "exponent"
SHAPE_LIST, NAME_LIST, FLAG = "shapes", "names", "flag"
FACTOR, WORD = "factor", "word"
BYTES = MappingProxyType({"unit": "B"})
BANDWIDTH = MappingProxyType({"unit": "B/s"})
FLOPS = MappingProxyType({"unit": "FLOP/s"})
SECONDS = MappingProxyType({"unit": "s", "zero": True})
COUNTED = MappingProxyType({"unit": COUNT})
SHARED = MappingProxyType({"unit": SHARE})
OR_ZERO = MappingProxyType({"zero": True})
"""The units of fields; numbers are above zero, but for seconds and those with `OR_ZERO`."""

MOST_NUMBER = 1e30
"""No rate, size or price of a chip is larger, so that sums over chips are finite."""

_SHAPE_PATTERN = r"[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){0,2}"


def parse_shape(text: str) -> Dims:
    """Return the dimensions of a shape: `8x16x16` -> (8, 16, 16).

    Raise HardwareError if the text is not a shape of one to three dimensions.
    """
    if not isinstance(text, str) or not re.fullmatch(_SHAPE_PATTERN, text):
        raise HardwareError(f"{text!r} is not a topology; {_shape_hint(text)}")
    return tuple(int(length) for length in text.split("x"))


def _shape_hint(text: Any) -> str:
    twisted = isinstance(text, str) and "twist" in text.lower()
    if twisted and (shape := re.match(_SHAPE_PATTERN, text)):
        return f"a twisted torus is written '{shape[0]}_twisted'"
    return "write chips along each dimension, as in '8x16x16'"


def format_shape(dims: Dims) -> str:
    """Return the written form of a shape.

    >>> format_shape((8, 16, 16))
    '8x16x16'
    """
    return "x".join(map(str, dims))


def read_value(raw: Any, unit: str, where: str) -> Any:
    """Return the value written for a field, in SI.

    raw: a quantity with its unit, a shape, a plain number, a word, or a list of shapes or names.
    unit: unit of the field, as its metadata has it; "" for a field without one.
    where: name of the field, for the message.

    Raise HardwareError or UnitError if `raw` is not such a value.
    """
    if unit == SHAPE:
        return parse_shape(raw)
    if unit in (SHAPE_LIST, NAME_LIST):
        if not isinstance(raw, list) or not raw:
            raise HardwareError(f"{where} is {raw!r}; write a list of {unit}")
        return tuple(map(parse_shape, raw)) if unit == SHAPE_LIST else tuple(raw)
    if unit == FLAG:
        if not isinstance(raw, bool):
            raise HardwareError(f"{where} is {raw!r}; write true or false")
        return raw
    if unit == WORD:
        if not isinstance(raw, str):
            raise HardwareError(f"{where} is {raw!r}; write a word in quotes")
        return raw
    if unit in (SHARE, EXPONENT, FACTOR, COUNT, YEAR):
        whole = unit in (COUNT, YEAR)
        if isinstance(raw, bool) or not isinstance(raw, int if whole else (int, float)):
            kind = "a whole number" if whole else "a number"
            raise HardwareError(f"{where} is {raw!r}; write {kind}, without a unit")
        return raw
    return parse(raw, unit, where) if unit else raw


def units_of(kind: type) -> dict[str, str]:
    """Return the unit of each field of a dataclass that has one, by name."""
    fields = dataclasses.fields(kind)
    return {entry.name: entry.metadata["unit"] for entry in fields if entry.metadata}


def check_fields(part: Any, where: str) -> None:
    """Raise HardwareError unless each number of a chip, its costs or its rules is valid."""
    for entry in dataclasses.fields(part):
        value, unit = getattr(part, entry.name), entry.metadata.get("unit")
        if unit in (None, SHAPE_LIST, NAME_LIST, FLAG, WORD) or (
            value is None and entry.default is None
        ):
            continue
        for number in _numbers(value):
            _check_number(number, unit, f"{where}: {entry.name}", "zero" in entry.metadata)


def _numbers(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple) else (value,)


def _check_number(number: Any, unit: str, where: str, zero: bool) -> None:
    wanted = int if unit in (COUNT, SHAPE, YEAR) else (int, float)
    if isinstance(number, bool) or not isinstance(number, wanted):
        kind = "a whole number" if wanted is int else "a number"
        raise HardwareError(f"{where} is {number!r}; write {kind}")
    if MOST_NUMBER < number < math.inf:
        raise HardwareError(f"{where} is {shown(number)}; write at most {MOST_NUMBER:.0e}")
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "not below zero" if zero else "above zero"
        raise HardwareError(f"{where} is {number!r}; write a finite number {least}")
    if unit == SHARE and number > 1:
        raise HardwareError(f"{where} is {number!r}, a share of one; write a number up to 1")

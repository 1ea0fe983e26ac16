"""How the fields of a chip are written, read and checked.

The metadata of a field is its unit: the catalogue reads it to parse the chip's file, and
`Chip.replace` to parse a what-if.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tpusim.errors import HardwareError
from tpusim.hardware.legality import parse_shape
from tpusim.units import parse

COUNT, YEAR, SHAPE, SHARE, EXPONENT = "count", "year", "shape", "share", "exponent"
BYTES = MappingProxyType({"unit": "B"})
BANDWIDTH = MappingProxyType({"unit": "B/s"})
FLOPS = MappingProxyType({"unit": "FLOP/s"})
SECONDS = MappingProxyType({"unit": "s"})
COUNTED = MappingProxyType({"unit": COUNT})
SHARED = MappingProxyType({"unit": SHARE})

_MAY_BE_ZERO = {
    "sparse_cores",
    "cmem_bytes",
    "die_to_die_bandwidth",
    "hop_latency",
    "collective_launch",
    "dcn_latency",
    "op_launch",
    "vector_launch",
    "slice_jitter",
    "dispatch",
    "price",
}


def read_value(raw: Any, unit: str, where: str) -> Any:
    """What was written for a field, in SI: a quantity with its unit, a shape, or a plain number."""
    if unit == SHAPE:
        return parse_shape(raw)
    if unit in (SHARE, EXPONENT, COUNT, YEAR):
        wanted = (int, float) if unit in (SHARE, EXPONENT) else int
        if isinstance(raw, bool) or not isinstance(raw, wanted):
            raise HardwareError(f"{where} is {raw!r}; write {_plain(unit)}, without a unit")
        return raw
    return parse(raw, unit, where) if unit else raw


def _plain(unit: str) -> str:
    return "a number" if unit in (SHARE, EXPONENT) else "a whole number"


def units_of(kind: type) -> dict[str, str]:
    """The unit of each field that has one."""
    fields = dataclasses.fields(kind)
    return {entry.name: entry.metadata["unit"] for entry in fields if entry.metadata}


def check_fields(part: Any, where: str) -> None:
    """Raise `HardwareError` unless every number of a chip, or of its costs, can be one."""
    for entry in dataclasses.fields(part):
        value, unit = getattr(part, entry.name), entry.metadata.get("unit")
        if not unit or (value is None and entry.default is None):
            continue
        for number in _numbers(value):
            _check_number(number, unit, f"{where}: {entry.name}", entry.name in _MAY_BE_ZERO)


def _numbers(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple) else (value,)


def _check_number(number: Any, unit: str, where: str, zero: bool) -> None:
    wanted = int if unit in (COUNT, SHAPE, YEAR) else (int, float)
    if isinstance(number, bool) or not isinstance(number, wanted):
        kind = "a whole number" if wanted is int else "a number"
        raise HardwareError(f"{where} is {number!r}; write {kind}")
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "not below zero" if zero else "above zero"
        raise HardwareError(f"{where} is {number!r}; write a finite number {least}")
    if unit == SHARE and number > 1:
        raise HardwareError(f"{where} is {number!r}, a share of one; write a number up to 1")

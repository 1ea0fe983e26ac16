"""The catalogue: reads `hardware_specs/<chip>.toml` and hands over frozen data.

The only file of this package that knows the format. Every number is a table with `value`, `kind`
and `source`; `fitted` names its `data`, `assumed` gives a `range`.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tpusim.errors import HardwareError, UnitError, nearest
from tpusim.hardware.chip import (
    CHIP_UNITS,
    COST_UNITS,
    DTYPES,
    Chip,
    Costs,
    Rates,
)
from tpusim.hardware.fields import read_value

Kind = Literal["published", "derived", "measured", "fitted", "assumed"]
Value: TypeAlias = float | int | tuple[int, ...]

SECTIONS: dict[str, tuple[str, ...]] = {
    "chip": ("year", "devices", "tensor_cores", "sparse_cores"),
    "compute": ("mxus", "mxu_side", "mxu_side_fp8", "clock", "vpu_flops"),
    "flops": DTYPES,
    "memory": ("hbm_bytes", "hbm_usable_bytes", "hbm_bandwidth", "vmem_bytes", "cmem_bytes"),
    "ici": ("ici_dimensions", "ici_bandwidth", "die_to_die_bandwidth", "pod_shape"),
    "host": ("host_chips", "host_bytes", "dcn_bandwidth", "pcie_bandwidth"),
    "running": ("power", "price"),
    "costs": tuple(COST_UNITS),
}
_OPTIONAL = {"int8", "fp8", "int4", "mxu_side_fp8", "host_bytes", "power", "price"}


@dataclass(frozen=True, slots=True)
class Sourced:
    """One number of the catalogue: its SI value, its text as written, and where it comes from."""

    value: Value
    text: str
    unit: str
    kind: Kind
    source: str
    note: str = ""
    range: tuple[str, ...] = ()
    data: str = ""


class _Entry(BaseModel):
    """An entry as the file has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    value: str | int | float
    kind: Kind
    source: str
    note: str = ""
    range: list[str | int | float] = []
    data: str = ""


def specs_folder(package: Traversable, checkout: Path) -> Traversable:
    """Where the files are: inside the installed package, or beside it in a checkout."""
    inside = package / "hardware_specs"
    return inside if inside.is_dir() else checkout / "hardware_specs"


def _folder() -> Traversable:
    return specs_folder(resources.files("tpusim"), Path(__file__).parents[2])


@cache
def chip_names() -> tuple[str, ...]:
    """The chips of the catalogue, oldest generation first."""
    files = [entry.name for entry in _folder().iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted((name[: -len(".toml")] for name in files), key=_generation_order))


def _generation_order(name: str) -> tuple[int, str]:
    digits = "".join(letter for letter in name if letter.isdigit())
    return (int(digits) if digits else 0, name)


@cache
def load_chip(name: str) -> Chip:
    """The chip of the catalogue with this name; `HardwareError` if there is none.

    >>> load_chip("v4").hbm_bandwidth
    1200000000000.0
    """
    return chip_of(name, load_entries(name))


@cache
def load_entries(name: str) -> Mapping[str, Sourced]:
    """Every number of a chip with its source, by field: `hbm_bytes`, `flops.bf16`, `costs.…`."""
    if name not in chip_names():
        raise HardwareError(
            f"no chip {name!r} in the catalogue; {nearest(str(name), chip_names())}"
        )
    return read_entries((_folder() / f"{name}.toml").read_text("utf-8"), f"{name}.toml", name)


def read_entries(text: str, file: str, name: str) -> dict[str, Sourced]:
    """The entries of one file's text; `HardwareError` names the file and the key at fault."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"{file} is not valid TOML: {error}") from error
    chip = tables.get("chip")
    if not isinstance(chip, dict) or chip.pop("name", None) != name:
        raise HardwareError(f"{file} [chip]: name must be {name!r}, as the file is called")
    _check_keys(tables, SECTIONS, set(), file)
    return dict(_entries(tables, file))


def _entries(tables: Mapping[str, Any], file: str) -> Iterator[tuple[str, Sourced]]:
    for section, names in SECTIONS.items():
        where = f"{file} [{section}]"
        _check_keys(tables[section], names, _OPTIONAL, where)
        for name in (name for name in names if name in tables[section]):
            key = f"{section}.{name}" if section in ("flops", "costs") else name
            unit = "FLOP/s" if section == "flops" else (CHIP_UNITS | COST_UNITS)[name]
            yield key, _sourced(tables[section][name], unit, f"{file} [{section}.{name}]")


def _check_keys(found: Any, valid: Any, optional: set[str], where: str) -> None:
    if not isinstance(found, dict):
        raise HardwareError(f"{where} is {found!r}; write a table")
    for key in found:
        if key not in valid:
            raise HardwareError(f"{where}: unknown key {key!r}; {nearest(key, valid)}")
    for key in valid:
        if key not in found and key not in optional:
            raise HardwareError(f"{where}: {key!r} is missing; write it, with value, kind, source")


def _sourced(raw: Any, unit: str, where: str) -> Sourced:
    try:
        entry = _Entry.model_validate(raw)
    except ValidationError as error:
        raise HardwareError(_fault(error, where)) from error
    _check_kind(entry, where)
    value = _read(entry.value, unit, where)
    _check_range(entry, [_read(end, unit, where) for end in entry.range], value, where)
    return Sourced(
        value=value,
        text=str(entry.value),
        unit=unit,
        kind=entry.kind,
        source=entry.source,
        note=entry.note,
        range=tuple(str(end) for end in entry.range),
        data=entry.data,
    )


def _read(raw: str | int | float, unit: str, where: str) -> Value:
    try:
        value: Value = read_value(raw, unit, where)
    except UnitError as error:
        raise HardwareError(str(error)) from error
    return value


def _check_range(entry: _Entry, ends: list[Any], value: Any, where: str) -> None:
    if ends and not (len(ends) == 2 and ends[0] <= value <= ends[1] and ends[0] < ends[1]):
        raise HardwareError(
            f"{where}: range {entry.range} must be two values, rising, with {entry.value!r} inside"
        )


def _fault(error: ValidationError, where: str) -> str:
    """The first fault that pydantic found, unknown keys before the rest, as one sentence."""
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    key = str(first["loc"][0]) if first["loc"] else "the entry"
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}; {nearest(key, _Entry.model_fields)}"
    if first["type"] == "missing":
        return f"{where}: {key!r} is missing; every number has value, kind and source"
    if key == "kind":
        kind = str(first["input"])
        return f"{where}: unknown kind {kind!r}; {nearest(kind, get_args(Kind))}"
    return f"{where}: {key} is {first['input']!r}; {first['msg']}"


def _check_kind(entry: _Entry, where: str) -> None:
    if not entry.source.strip():
        raise HardwareError(f"{where}: source is empty; write who says so")
    if entry.kind == "fitted" and not entry.data:
        raise HardwareError(f"{where}: fitted, but to what? write data = '...'")
    if entry.kind == "assumed" and not entry.range:
        raise HardwareError(f"{where}: assumed, but how surely? write range = [low, high]")


def chip_of(name: str, entries: Mapping[str, Sourced]) -> Chip:
    """The chip that the entries of a file describe."""
    values: dict[str, Any] = {key: entry.value for key, entry in entries.items()}
    flops = {dtype: values.pop(f"flops.{dtype}") for dtype in DTYPES if f"flops.{dtype}" in values}
    costs = Costs(**{key: values.pop(f"costs.{key}") for key in COST_UNITS})
    return Chip(name=name, generation=name, flops=Rates.of(flops), costs=costs, **values)

"""The catalogue of chips: `hardware_specs/<chip>.toml` read into frozen data.

This module alone knows the format. Every number is a table with `value`, `kind` and `source`;
`fitted` names its `data`, `assumed` gives a `range`. A new chip is one more file.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import HardwareError, UnitError, blame, nearest
from tpusim.base.foreign_names import our_names
from tpusim.base.shown_value import shown
from tpusim.base.text_files import read_text
from tpusim.hardware.chip import (
    CHIP_UNITS,
    COMPILER_UNITS,
    COST_UNITS,
    DTYPES,
    Chip,
    CostConstants,
    PeakRates,
)
from tpusim.hardware.chip_fields import read_value, units_of
from tpusim.hardware.compiler_rules import CompilerRules
from tpusim.hardware.slice_rules import SliceRules

Kind = Literal["published", "derived", "measured", "fitted", "assumed"]
FieldValue: TypeAlias = float | int | str | tuple[int, ...]

CHIP_SECTIONS: dict[str, tuple[str, ...]] = {
    "chip": ("year", "devices", "tensor_cores", "sparse_cores"),
    "compute": ("mxus", "mxu_side", "mxu_side_fp8", "clock", "vpu_flops"),
    "flops": DTYPES,
    "memory": ("hbm_bytes", "hbm_usable_bytes", "hbm_bandwidth", "vmem_bytes", "cmem_bytes"),
    "ici": ("ici_dimensions", "ici_bandwidth", "die_to_die_bandwidth", "pod_shape"),
    "host": ("host_chips", "host_cpus", "host_bytes", "dcn_bandwidth", "pcie_bandwidth"),
    "running": ("power", "price"),
    "costs": tuple(COST_UNITS),
}
"""The numbers of a chip's file, by section."""

_LABEL = re.compile(r"^tpu_?|_(podslice|slice|pod)$")
"""What GKE and JAX write around the name of a chip."""

_SIZE = re.compile(r"[-_: ][0-9]+(x[0-9]+)*$")
"""What follows the chip in the name of a slice."""

COMPILER = "compiler"
"""The section of what the compiler does for the chip, which a file may leave out."""

_RULE_UNITS = units_of(SliceRules)
_OPTIONAL_FIELDS = {"int8", "fp8", "int4", "mxu_side_fp8", "power", "price"} | {
    *("host_cpus", "host_bytes"),
    *("max_cubes", "any_order", "wrap_length", "twistable", "reroutes"),
    *("libtpu_name", "libtpu_config", "pair_gathers", "pair_reductions", "pair_scatters"),
    *("short_ring", "asynchronous_permutes"),
    *(each.name for each in fields(CostConstants) if each.default is None),
}


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number of the catalogue with its source.

    value: the number in SI, counts as ints, a shape as its dimensions.
    text: the number as the file has it, with its unit.
    data: the data that a `fitted` number was fitted to.
    range: the ends between which an `assumed` number may be, as the file has them.
    """

    value: FieldValue
    text: str
    unit: str
    kind: Kind
    source: str
    note: str = ""
    range: tuple[str, ...] = ()
    data: str = ""

    @property
    def origin(self) -> str:
        """The source, the data, the range and the note, as sentences."""
        parts = [self.source, f"data: {self.data}" if self.data else ""]
        parts += [f"range: {' to '.join(self.range)}" if self.range else "", self.note]
        return ". ".join(part.rstrip(".") for part in parts if part) + "."


@dataclass(frozen=True, slots=True)
class ChipFile:
    """The contents of a chip's file.

    entries: each number with its source, by field: `hbm_bytes`, `flops.bf16`, `costs.…`.
    variants: slice rules of generations that have the same chip, but other slices.
    """

    chip: Chip
    entries: Mapping[str, Sourced]
    variants: tuple[SliceRules, ...]


class _CatalogueEntry(BaseModel):
    """A number, or a rule of the slices, as the file has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    value: str | int | float | bool | list[str]
    kind: Kind
    source: str
    note: str = ""
    range: list[str | int | float] = []
    data: str = ""


def specs_folder(package: Traversable, checkout: Path) -> Traversable:
    """Return the folder of the files: inside the installed package, or beside it in a checkout."""
    inside = package / "hardware_specs"
    return inside if inside.is_dir() else checkout / "hardware_specs"


def _folder() -> Traversable:
    return specs_folder(resources.files("tpusim"), Path(__file__).parents[2])


@cache
def chip_names() -> tuple[str, ...]:
    """Return the names of the chips in the catalogue, the oldest generation first."""
    files = [entry.name for entry in _folder().iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted((name[: -len(".toml")] for name in files), key=_generation_order))


def _generation_order(name: str) -> tuple[int, str]:
    digits = "".join(letter for letter in name if letter.isdigit())
    return (int(digits) if digits else 0, name)


def known_name(name: str, known: Collection[str]) -> str:
    """Return the one of `known`, chips or prefixes of slices, that a name in other words means.

    Cloud TPU's product names and JAX's names of devices are read, in any case, such as `Trillium`
    and `TPU v5 lite`. What means none is returned as it is.

    >>> known_name("TPU v5 lite", chip_names()), known_name("a100", chip_names())
    ('v5e', 'a100')
    """
    if name in known:
        return name
    bare = _LABEL.sub("", re.sub(r"[\s_-]+", "_", name.strip().lower()))
    for each in (name.lower(), bare):
        meant = each if each in known else our_names("chips").get(each)
        if meant is not None and meant in known:
            return meant
    return name


@checked_call
def load_chip(name: str | Path) -> Chip:
    """Return a chip of the catalogue, or of a file.

    name: a chip of the catalogue, such as `v5p`, also as Cloud TPU and JAX call it (`ironwood`,
        `TPU v5 lite`), or the `Path` of a file that is written as those in `hardware_specs/` are
        and called after its chip.

    Raise HardwareError if there is no such chip, or if the file lacks a section or a key.

    >>> load_chip("v4").hbm_bandwidth
    1200000000000.0
    """
    if isinstance(name, Path):
        with blame(str(name)):
            text = read_text(name, "a chip's file", "a file such as hardware_specs/v4.toml")
        return read_chip_file(text, name.name, name.stem).chip
    if not isinstance(name, str):
        raise HardwareError(f"the chip is {shown(name)}; write a name, such as 'v5e', or a Chip")
    return _catalogue_file(known_name(name, chip_names())).chip


def chip_of(rules: SliceRules) -> Chip:
    """Return the chip of a generation's slices; a variant has that of its catalogue file."""
    files = (_catalogue_file(name) for name in chip_names())
    chip = next(f.chip for f in files if rules in (f.chip.slice_rules, *f.variants))
    return chip if chip.slice_rules == rules else chip.replace(generation=rules.generation)


def load_entries(name: str) -> Mapping[str, Sourced]:
    """Return every number of a chip with its source: `hbm_bytes`, `flops.bf16`, `costs.…`."""
    return _catalogue_file(known_name(name, chip_names())).entries


@cache
def catalogue_rules() -> dict[str, SliceRules]:
    """Return the slice rules of every generation in the catalogue, by name."""
    files = [_catalogue_file(name) for name in chip_names()]
    every = [*(file.chip.slice_rules for file in files), *(r for f in files for r in f.variants)]
    return {rules.generation: rules for rules in every}


def rules_of(generation: str | SliceRules) -> SliceRules:
    """Return the slice rules of a generation, which may be given themselves."""
    if isinstance(generation, SliceRules):
        return generation
    generation = known_name(str(generation), chip_names())
    if generation in chip_names():
        return _catalogue_file(generation).chip.slice_rules
    if generation not in catalogue_rules():
        raise HardwareError(
            f"no topology rules for the generation {generation!r}; "
            f"{nearest(generation, catalogue_rules())}"
        )
    return catalogue_rules()[generation]


@cache
def _catalogue_file(name: str) -> ChipFile:
    if name not in chip_names():
        chip = known_name(_SIZE.sub("", name), chip_names())
        slice_of = f"that is a slice of the chip {chip}; write {chip!r}"
        told = slice_of if chip in chip_names() else nearest(name, chip_names())
        raise HardwareError(f"no chip {name!r} in the catalogue; {told}")
    return read_chip_file((_folder() / f"{name}.toml").read_text("utf-8"), f"{name}.toml", name)


def read_chip_file(text: str, file: str, name: str) -> ChipFile:
    """Return the contents of a chip's file.

    text: the file's text, TOML.
    file: the file's name, for messages.
    name: the chip's name.

    Raise HardwareError, which names the file and the key at fault.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"{file} is not valid TOML: {error}") from error
    chip = tables.get("chip")
    if not isinstance(chip, dict) or chip.pop("name", None) != name:
        raise HardwareError(f"{file} [chip]: name must be {name!r}, as the file is called")
    required = (*CHIP_SECTIONS, "slices")
    known = (*required, COMPILER, "variants")
    _check_keys(tables, known, {*known}, file)
    for section in required:
        if section not in tables:
            raise HardwareError(
                f"{file}: the section [{section}] is missing; write it, each key with value, kind "
                "and source"
            )
    variants = tables.get("variants", {})
    if not isinstance(variants, dict):
        raise HardwareError(f"{file} [variants] is {variants!r}; write a table for each generation")
    entries = dict(_entries(tables, file))
    cores: Any = entries["tensor_cores"].value
    given = _rules(tables["slices"], f"{file} [slices]", set())
    rules = SliceRules(generation=name, cores=cores, **given)
    others = tuple(
        replace(rules, generation=other, **_rules(table, f"{file} [variants.{other}]", {*given}))
        for other, table in variants.items()
    )
    return ChipFile(_chip(name, entries, rules), entries, others)


def _entries(tables: Mapping[str, Any], file: str) -> Iterator[tuple[str, Sourced]]:
    units = CHIP_UNITS | COST_UNITS | COMPILER_UNITS
    sections = CHIP_SECTIONS | ({COMPILER: tuple(COMPILER_UNITS)} if COMPILER in tables else {})
    for section, names in sections.items():
        _check_keys(tables[section], names, _OPTIONAL_FIELDS, f"{file} [{section}]")
        for name in (name for name in names if name in tables[section]):
            key = f"{section}.{name}" if section in ("flops", "costs", COMPILER) else name
            unit = "FLOP/s" if section == "flops" else units[name]
            yield key, _sourced(tables[section][name], unit, f"{file} [{section}.{name}]")


def _rules(table: Any, where: str, optional: set[str]) -> dict[str, Any]:
    """Return the slice rules that a section gives, by field."""
    _check_keys(table, _RULE_UNITS, _OPTIONAL_FIELDS | optional, where)
    return {
        name: _sourced(raw, _RULE_UNITS[name], f"{where[:-1]}.{name}]").value
        for name, raw in table.items()
    }


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
        entry = _CatalogueEntry.model_validate(raw)
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


def _read(raw: Any, unit: str, where: str) -> FieldValue:
    try:
        value: FieldValue = read_value(raw, unit, where)
    except UnitError as error:
        raise HardwareError(str(error)) from error
    return value


def _check_range(entry: _CatalogueEntry, ends: list[Any], value: Any, where: str) -> None:
    if ends and not (len(ends) == 2 and ends[0] <= value <= ends[1] and ends[0] < ends[1]):
        raise HardwareError(
            f"{where}: range {entry.range} must be two values, rising, with {entry.value!r} inside"
        )


def _fault(error: ValidationError, where: str) -> str:
    """Return the first fault that pydantic found, unknown keys first, as one sentence."""
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    key = str(first["loc"][0]) if first["loc"] else "the entry"
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}; {nearest(key, _CatalogueEntry.model_fields)}"
    if first["type"] == "missing":
        return f"{where}: {key!r} is missing; every number has value, kind and source"
    if key == "kind":
        kind = str(first["input"])
        return f"{where}: unknown kind {kind!r}; {nearest(kind, get_args(Kind))}"
    return f"{where}: {key} is {first['input']!r}; {first['msg']}"


def _check_kind(entry: _CatalogueEntry, where: str) -> None:
    if not entry.source.strip():
        raise HardwareError(f"{where}: source is empty; write who says so")
    if entry.kind == "fitted" and not entry.data:
        raise HardwareError(f"{where}: fitted, but to what? write data = '...'")
    if entry.kind == "assumed" and not entry.range:
        raise HardwareError(f"{where}: assumed, but how surely? write range = [low, high]")


def _chip(name: str, entries: Mapping[str, Sourced], rules: SliceRules) -> Chip:
    values: dict[str, Any] = {key: entry.value for key, entry in entries.items()}
    flops = {dtype: values.pop(f"flops.{dtype}") for dtype in DTYPES if f"flops.{dtype}" in values}
    costs = CostConstants(**{key: values.pop(f"costs.{key}", None) for key in COST_UNITS})
    said = {key: f"{COMPILER}.{key}" for key in COMPILER_UNITS if f"{COMPILER}.{key}" in values}
    compiler = {key: values.pop(entry) for key, entry in said.items()}
    return Chip(
        name=name,
        generation=name,
        slice_rules=rules,
        flops=PeakRates.of(flops),
        costs=costs,
        compiler=CompilerRules(**compiler) if compiler else None,
        **values,
    )

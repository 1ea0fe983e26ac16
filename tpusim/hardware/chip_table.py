"""The catalogue as text: a table of all chips, or one chip with its sources."""

from collections.abc import Mapping

from tpusim.base.text_table import folded_table
from tpusim.base.text_width import PAGE_WIDTH, table_width, wrapped
from tpusim.hardware.catalogue import Sourced, chip_names, known_name, load_entries
from tpusim.hardware.chip_fields import EXPONENT, FACTOR, SHARE

_INDENT = " " * 4
_COLUMN_FIELDS = (
    ("year", ""),
    ("devices", ""),
    ("flops.bf16", " TFLOP/s"),
    ("flops.int8", " TFLOP/s"),
    ("flops.fp8", " TFLOP/s"),
    ("hbm_bytes", ""),
    ("hbm_bandwidth", ""),
    ("ici_bandwidth", ""),
    ("pod_shape", ""),
    ("dcn_bandwidth", ""),
    ("price", " USD/h"),
)
_HEADINGS = (
    (
        "chip",
        "year",
        "devices",
        *("bf16", "int8", "fp8"),
        *("HBM", "HBM"),
        *("ICI link", "pod", "DCN", "USD"),
    ),
    ("", "", "", *("TFLOP/s",) * 3, "", "bandwidth", "one way", "", "a chip", "/h"),
)


def show_chips() -> str:
    """Return a table of the catalogue, one row per chip."""
    return "\n".join(folded_table([*_HEADINGS, *map(_row, chip_names())]))


def _row(name: str) -> tuple[str, ...]:
    texts = {field: entry.text for field, entry in load_entries(name).items()}
    return (name, *(texts.get(field, "-").removesuffix(unit) for field, unit in _COLUMN_FIELDS))


def show_chip(name: str) -> str:
    """Return every number of a chip with its unit, kind, source, range and note."""
    name, entries = known_name(name, chip_names()), load_entries(name)
    names = max(map(len, entries))
    values = max(len(_written(entry)) for entry in entries.values())
    lines = wrapped(f"TPU {name}: {_kinds(entries)}")
    for field, entry in entries.items():
        room = (table_width() or PAGE_WIDTH) - names - len(entry.kind) - 4
        lines.append(f"{field:<{names}}  {_written(entry):>{min(values, room)}}  {entry.kind}")
        lines.extend(wrapped(entry.origin, _INDENT, _INDENT))
    return "\n".join(lines)


def _written(entry: Sourced) -> str:
    return f"{entry.text} ({entry.unit})" if entry.unit in (SHARE, EXPONENT, FACTOR) else entry.text


def _kinds(entries: Mapping[str, Sourced]) -> str:
    kinds = [entry.kind for entry in entries.values()]
    counts = (f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f"{len(kinds)} numbers, {', '.join(counts)}"

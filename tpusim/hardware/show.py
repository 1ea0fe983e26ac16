"""The catalogue as text, for people: all chips side by side, or one chip with its sources."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from tpusim.hardware.catalogue import Sourced, chip_names, load_entries
from tpusim.hardware.fields import EXPONENT, SHARE

WIDTH = 100
INDENT = " " * 4
_FIELDS = (
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
_HEADS = (
    (
        "chip",
        "year",
        "devices",
        *("bf16", "int8", "fp8"),
        "HBM",
        "HBM",
        "ICI link",
        "pod",
        "DCN",
        "USD",
    ),
    ("", "", "", *("TFLOP/s",) * 3, "", "bandwidth", "one way", "", "a chip", "/h"),
)


def show_chips() -> str:
    """A table of the catalogue, one row a chip."""
    return "\n".join(_columns([*_HEADS, *map(_row, chip_names())]))


def _row(name: str) -> tuple[str, ...]:
    texts = {field: entry.text for field, entry in load_entries(name).items()}
    return (name, *(texts.get(field, "-").removesuffix(unit) for field, unit in _FIELDS))


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def show_chip(name: str) -> str:
    """Every number of a chip: value and unit, kind, source, range, note."""
    entries = load_entries(name)
    names = max(map(len, entries))
    values = max(len(_written(entry)) for entry in entries.values())
    lines = [f"TPU {name}: {_kinds(entries)}"]
    for field, entry in entries.items():
        lines.append(f"{field:<{names}}  {_written(entry):>{values}}  {entry.kind}")
        lines.extend(wrap(_origin(entry), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT))
    return "\n".join(lines)


def _written(entry: Sourced) -> str:
    return f"{entry.text} ({entry.unit})" if entry.unit in (SHARE, EXPONENT) else entry.text


def _kinds(entries: Mapping[str, Sourced]) -> str:
    kinds = [entry.kind for entry in entries.values()]
    counts = (f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f"{len(kinds)} numbers, {', '.join(counts)}"


def _origin(entry: Sourced) -> str:
    """The sentence that says where a number comes from."""
    parts = [entry.source]
    if entry.data:
        parts.append(f"data: {entry.data}")
    if entry.range:
        parts.append(f"range: {' to '.join(entry.range)}")
    return ". ".join([*(part.rstrip(".") for part in parts), entry.note]).rstrip(". ") + "."

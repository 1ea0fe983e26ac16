"""The command `tpusim models`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from tpusim import models
from tpusim.base.units import format_count
from tpusim.models import ARCHITECTURE_NAMES, ARCHITECTURES, Architecture, Transformer

LEAST_COLUMNS = 60
_SEQ_LEN = 2048
_NAME_COLUMNS = 27
_COUNT_COLUMNS = 7
_INDENT = "  "


def show_models(name: str | None, *, as_json: bool) -> str:
    """Return the table of all published models, or what is known of one.

    Raise ModelError for a name that is unknown, with the nearest ones.
    """
    columns = max(get_terminal_size((80, 24)).columns, LEAST_COLUMNS)
    if name is not None:
        found = _about(models.load(name), name)
        return json.dumps(found, indent=2) if as_json else "\n".join(_page(found, columns))
    if as_json:
        listed = [_about(models.load(each), each) for each in models.names()]
        kept = ("name", "architecture", "parameters", "source")
        return json.dumps([{key: one[key] for key in kept} for one in listed], indent=2)
    return "\n".join(_table(columns))


def _table(columns: int) -> Iterator[str]:
    """Yield the models under the name of their architecture, each with its size and source."""
    for architecture, kind in ARCHITECTURES.items():
        names = models.names(kind)
        if not names:
            continue
        yield f"{architecture}:"
        for name in names:
            count = format_count(models.load(name).parameter_count)
            head = f"{_INDENT}{name:<{_NAME_COLUMNS}}{count:>{_COUNT_COLUMNS}}{_INDENT}"
            yield head + _cut(models.source(name), columns - len(head))
        yield ""
    yield "tpusim models NAME shows one, with the lines of a run"
    yield "file. A run file also takes the config of a Hugging"
    yield 'Face model, hf = "config.json": docs/models.md.'


def _about(model: Architecture, name: str) -> dict[str, Any]:
    """Return what is known of a published model, as JSON shows it."""
    active = model.active_parameter_count
    return {
        "name": name,
        "architecture": ARCHITECTURE_NAMES[type(model)],
        "parameters": model.parameter_count,
        "active_parameters": active,
        "source": models.source(name),
        "dimensions": _dimensions(model),
        "reads_text": model.reads_text,
    }


def _dimensions(model: Architecture) -> dict[str, Any]:
    """Return the fields that a model is known by: those that differ from their defaults.

    Of a `Transformer` they are flat keys.
    """
    if isinstance(model, Transformer):
        sizes = ("layers", "embed", "mlp", "heads", "vocab")
        plain = Transformer(layers=1, embed=1, mlp=1, heads=1, vocab=1).flat()
        follow = {"kv_heads": model.heads, "head_dim": model.embed // model.heads}
        return {
            key: value
            for key, value in model.flat().items()
            if key in sizes or (key != "name" and value != (plain | follow)[key])
        }
    found: dict[str, Any] = {}
    for field in fields(model):  # type: ignore[arg-type]
        value = getattr(model, field.name)
        if field.name not in ("name", "scanned") and (value != field.default or field.type is int):
            found[field.name] = asdict(value) if is_dataclass(value) else value  # type: ignore[arg-type]
    return found


def _page(about: Mapping[str, Any], columns: int) -> Iterator[str]:
    """Yield the lines about one model."""
    total, active = about["parameters"], about["active_parameters"]
    yield f"{about['name']}, {about['architecture']}"
    each = f", {active:,} active per token" if active != total else ""
    yield from _entry("parameters", f"{total:,} ({format_count(total)}){each}", columns)
    yield from _entry("source", about["source"], columns)
    yield ""
    yield "dimensions"
    for key, value in _flattened(about["dimensions"]):
        yield from _entry(f"{_INDENT}{key}", json.dumps(value), columns)
    yield ""
    yield "in a run file"
    yield f"{_INDENT}[model]"
    yield f'{_INDENT}name = "{about["name"]}"'
    if about["reads_text"]:
        yield ""
        yield f"{_INDENT}[plan]"
        longest = about["dimensions"].get("positions") or _SEQ_LEN
        yield f"{_INDENT}seq_len = {min(_SEQ_LEN, longest)}   # tokens of an example"


def _flattened(dimensions: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in dimensions.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _entry(head: str, text: str, columns: int) -> Iterator[str]:
    """Yield a head and its text, which is wrapped beside it."""
    margin = f"{head:<22}  "
    rest = " " * len(margin)
    for number, line in enumerate(
        wrap(text, max(columns - len(margin), 20), break_on_hyphens=False) or [""]
    ):
        yield ((rest if number else margin) + line).rstrip()


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 3].rstrip()}..."

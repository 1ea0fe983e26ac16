"""Short HTML for notebooks: tables and texts, escaped."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from html import escape
from typing import Any

from tpusim.base.plain_text import plain
from tpusim.base.shown_value import cut

LONGEST_CELL = 160
"""Characters of a value."""


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns, what and its value, below a title."""
    body = "".join(
        f'<tr><th style="text-align:left">{escape(what)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for what, text in rows
    )
    return f"<div><strong>{escape(plain(title))}</strong><table>{body}</table></div>"


def html_fields(title: str, value: Any) -> str:
    """Return the fields of a dataclass that differ from their defaults, below a title."""
    changed = {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if not _is_default(field, getattr(value, field.name))
    }
    return html_table(title, ((name, cut(str(one), LONGEST_CELL)) for name, one in changed.items()))


def _is_default(field: "Field[Any]", value: Any) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return field.default is not MISSING and bool(value == field.default)


def html_bar(shares: Mapping[str, float]) -> str:
    """Return shares of a whole as the parts of a bar, each with its label; they sum to 1."""
    parts = "".join(
        f'<div title="{escape(label)} {share:.1%}" style="width:{share:.2%};overflow:hidden;'
        'white-space:nowrap;box-sizing:border-box;border:1px solid currentColor;padding:0 2px">'
        f"{escape(label)}&nbsp;{share:.0%}</div>"
        for label, share in shares.items()
        if share > 0
    )
    return f'<div style="display:flex;max-width:52em">{parts}</div>'


def html_text(text: str) -> str:
    """Return a text with its lines and columns as they are."""
    return f'<pre style="line-height:1.25">{escape(text)}</pre>'

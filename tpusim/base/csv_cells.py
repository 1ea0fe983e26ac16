"""Cells of CSV tables: none begins as a formula, and none has control characters."""

import re
from typing import Any

from tpusim.base.plain_text import visible

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?")


def cell_text(text: str) -> str:
    """Return a cell; a spreadsheet would run a text that begins as a formula, so that is quoted.

    >>> cell_text("=1+1"), cell_text("-1.5"), cell_text("matmul")
    ("'=1+1", '-1.5', 'matmul')
    """
    if text[:1] in FORMULA_SIGNS and not NUMBER.fullmatch(text):
        text = f"'{text}"
    return visible(text)


def frame_csv(table: Any) -> str:
    """Return a pandas frame as CSV, without its index; heads and texts are `cell_text`."""
    texts = table.select_dtypes(exclude=["number", "bool"]).columns
    kept = table.assign(**{column: table[column].map(_cell) for column in texts})
    text: str = kept.rename(columns=_cell).to_csv(index=False, lineterminator="\n")
    return text


def _cell(value: Any) -> Any:
    return cell_text(value) if isinstance(value, str) else value

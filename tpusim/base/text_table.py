"""Tables of text: rows of cells, the first columns aligned left and the others right.

They are as wide as they are in files, and as the terminal where one reads them; see `text_width`.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest

from tpusim.base.text_width import (
    LEAST_TEXT,
    PAGE_WIDTH,
    folded,
    table_width,
    text_width,
    wrapped,
)

GAP = "  "
"""Between the columns of a table, before the text that ends a row, and before a whole one."""


def padded(rows: Sequence[Sequence[str]], left: int = 1, indent: str = "") -> list[str]:
    """Return the lines of a table, however wide; rows may be short.

    left: columns that are aligned left.
    indent: before each line.
    """
    widths = _widths(rows)
    return [f"{indent}{GAP.join(_cells(row, widths, left))}" for row in rows]


def folded_table(rows: Sequence[Sequence[str]], left: int = 1, indent: str = "") -> Iterator[str]:
    """Yield the lines of a table, in parts one below the other where they are too wide.

    The parts repeat the columns that are aligned left, or only the first if they take more than
    half of a line; `left` and `indent` are those of `padded`.
    """
    ends = [len(indent) - len(GAP)]
    for width in _widths(rows):
        ends.append(ends[-1] + len(GAP) + width)
    names = left if ends[left] <= (table_width() or PAGE_WIDTH) / 2 else 1
    yield from folded([line.rstrip() for line in padded(rows, left, indent)], ends[names:-1])


def wrapped_table(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Yield the lines of an indented table whose last column is text, which is wrapped.

    On a terminal that is too narrow for the text, it stands below the other columns.
    """
    heads = padded([row[:-1] for row in rows], left, GAP)
    for head, row in zip(heads, rows, strict=True):
        if table_width() is None or len(head) + len(GAP) + LEAST_TEXT <= text_width():
            yield from wrapped(row[-1], f"{head}{GAP}", " " * len(f"{head}{GAP}"))
        else:
            yield from wrapped(head, "", " " * 4)
            yield from wrapped(row[-1], " " * 6, " " * 6)


def fixed_table(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table with columns of these widths, folded where they are too wide.

    The first column is aligned left. A cell after the last column is text; rows may be short.
    """
    lines = []
    for row in rows:
        text = (f"{GAP}{cell}" for cell in row[len(widths) :])
        lines.append("".join((*_cells(row, widths[: len(row)], 1), *text)).rstrip())
    columns = max(map(len, rows))
    yield from folded(lines, [*accumulate(widths)][: columns - 1])


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]


def _cells(row: Sequence[str], widths: Sequence[int], left: int) -> Iterator[str]:
    """Yield a cell for each width."""
    full = (*row, *[""] * (len(widths) - len(row)))
    for place, (cell, width) in enumerate(zip(full, widths, strict=False)):
        yield cell.ljust(width) if place < left else cell.rjust(width)

"""The width of printed text: that of the terminal where one reads it, else that of a page.

Texts are as wide as a page (`PAGE_WIDTH`) and tables as wide as they are, so that files and pipes
get the same bytes everywhere. On a terminal (`printed_on`) texts wrap earlier and tables that are
too wide are folded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import wrap

PAGE_WIDTH = 100
LEAST_WIDTH = 60
"""Characters of a line in files, and on the narrowest terminal that texts are made for."""

LEAST_TEXT = 20
"""Characters of the last column of a folded table, below which it gets lines of its own."""

_COLUMNS: ContextVar[int | None] = ContextVar("_COLUMNS", default=None)


@contextmanager
def printed_on(columns: int | None) -> Iterator[None]:
    """Make texts in the block for a terminal of so many columns; None for files and pipes."""
    token = _COLUMNS.set(None if columns is None else max(columns, LEAST_WIDTH))
    try:
        yield
    finally:
        _COLUMNS.reset(token)


def text_width() -> int:
    """Return the characters of a line of text."""
    return min(PAGE_WIDTH, _COLUMNS.get() or PAGE_WIDTH)


def table_width() -> int | None:
    """Return the characters of a line of a table; None where a table is as wide as it is."""
    return _COLUMNS.get()


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Return a text in lines: the first begins with `first`, the others with `rest`."""
    return wrap(
        text,
        text_width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=_COLUMNS.get() is not None,
        break_on_hyphens=False,
    )


def unbroken(text: str, first: str = "", rest: str = "  ") -> list[str]:
    """Return a text in one line that begins with `first`, or on a terminal in as many as it takes.

    rest: the beginning of the other lines.
    """
    return [f"{first}{text}"] if table_width() is None else wrapped(text, first, rest)


def folded(lines: Sequence[str], ends: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table, in parts one below the other where they are too wide.

    Each part repeats the first columns, which name the rows; below the first it leaves out the rows
    that have nothing in its own columns.

    ends: where the naming columns end, and each column after them but the last, in characters.
    """
    room = table_width()
    if room is None or not lines or max(map(len, lines)) <= room:
        yield from lines
        return
    names, *others = ends
    begins, whole = [names, *others], max(map(len, lines))
    columns = list(zip(begins, [*others, whole], strict=True))
    parts: list[tuple[int, int]] = []
    for begin, end in columns:
        if parts and names + end - parts[-1][0] <= room:
            parts[-1] = (parts[-1][0], end)
        else:
            parts.append((begin, end))
    for number, (begin, end) in enumerate(parts):
        if number:
            yield ""
        for line in lines:
            text = line[begin:end].rstrip()
            if text.strip() or not number or not line[names:].strip():
                yield from _part(line, names, text, room)


def _part(line: str, names: int, text: str, room: int) -> Iterator[str]:
    """Yield what names a row, and a part of it; a text that is too long is wrapped."""
    head = line[:names]
    if names + len(text) <= room:
        yield f"{head}{text}".rstrip()
        return
    if room - names >= LEAST_TEXT:
        yield from (each.rstrip() for each in wrap(text, room, initial_indent=head,
                                                   subsequent_indent=" " * names))  # fmt: skip
        return
    yield head.rstrip()[:room]
    yield from wrap(text, room, initial_indent=" " * 4, subsequent_indent=" " * 4)

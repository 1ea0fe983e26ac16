"""An entry of a report: a head in the margin and a text beside it."""

from collections.abc import Iterator

from tpusim.base.text_width import wrapped

ENTRY_MARGIN = 12
"""Characters of the margin."""


def entry(head: str, text: str) -> Iterator[str]:
    """Yield the lines of a head in the margin and a text beside it."""
    first = f"{head:<{ENTRY_MARGIN}}" if len(head) < ENTRY_MARGIN else f"{head}: "
    yield from wrapped(text, first, " " * ENTRY_MARGIN)


def item(text: str) -> Iterator[str]:
    """Yield the lines of an item of a list that belongs to the entry above it."""
    yield from wrapped(text, f"{'':{ENTRY_MARGIN}}- ", " " * (ENTRY_MARGIN + 2))

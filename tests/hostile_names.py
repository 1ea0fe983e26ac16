"""Names that others chose, with what could end a literal, a line, a tag or a row."""

import random
from collections.abc import Iterator

PARTS = (
    '"', "'", '"""', "'''", "\\", "\\\\", "\n", "\r", "\x00", "\x1b[2J", "\u202e", "\u2028", "\t",
    "{}", "{0}", "{name}", "%s", "%", "$a$", "$\\frac{", "#", "<script>", "</script>", "<!--", " ",
    "&amp;", "=cmd()", "+1", "-1", "@x", ",", ";", "(", ")", "[", "]", "]]>", "x = 1", "lambda",
    "class", "None", "adam", "muon", "P", "w", "é", "ﬁ", "²", "日本", "😀", "\ud800", "..", "/",
    "a", "_", "A", "0", "-", ".", '";raise SystemExit;"', '"""\nraise SystemExit\n"""', "x" * 99,
    "import os", "\ufeff",
)  # fmt: skip
"""Pieces of names: each closes, opens, escapes or means something in one of the outputs."""

LONGEST_AXIS = 80


def names(count: int) -> Iterator[str]:
    """Yield names of one to six pieces; the first few are a piece each."""
    yield from PARTS[:count]
    draw = random.Random(count)
    for _ in range(count - len(PARTS)):
        yield "".join(draw.choices(PARTS, k=draw.randint(1, 6)))


def named(count: int, length: int) -> Iterator[tuple[str, ...]]:
    """Yield a name, and `length` different ones that a table of a run file may have."""
    draw = random.Random(length)
    usable = sorted({name for name in names(1000) if may_be_axis(name)})
    yield from ((name, *draw.sample(usable, length)) for name in names(count))


def may_be_axis(name: str) -> bool:
    """Return True for the name of an axis that a plan takes."""
    return name.isprintable() and len(name) <= LONGEST_AXIS and not set(name) & set(" +,;=")

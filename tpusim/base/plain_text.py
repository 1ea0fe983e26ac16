"""Texts that others chose (names of models, scopes, lines of code), made safe to show."""

import re

LONGEST_TEXT = 160
"""Characters of a name that are shown: those at its beginning and its end."""

LONGEST_WORD = 200
LONGEST_QUOTE = 120
"""Characters of a quoted text in a message."""

LONGEST_MESSAGE = 4000

_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD},}}")
_LONG_QUOTE = re.compile(rf"(?<!\w)(['\"])[^'\"\n]{{{LONGEST_QUOTE},}}\1(?!\w)")
_NOT_SHOWN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]"
)
"""Control characters, line breaks, marks that change the direction of writing, halves of pairs."""


def plain(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text on one line, in one direction, and no longer than `longest`.

    What cannot be shown is U+FFFD, and the middle of a text that is too long is an ellipsis.

    >>> plain("a\\nb"), plain("abcdefgh", 5)
    ('a\\ufffdb', 'ab…gh')
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}…{text[-(longest - 1 - half) :]}"
    return visible(text)


def presentable(text: str) -> str:
    """Return a message that may repeat what others wrote: lines without control characters.

    Words of more than `LONGEST_WORD` characters, quoted texts of more than `LONGEST_QUOTE`, and all
    after `LONGEST_MESSAGE` are cut short.

    >>> presentable("no file " + "x" * 1000 + "\\x1b[31m")[:12], len(presentable("x" * 10**6))
    ('no file xxxx', 120)
    """
    if len(text) > LONGEST_QUOTE:
        for long in (_LONG_QUOTE, _LONG_WORD):
            text = long.sub(lambda found: plain(found[0], LONGEST_QUOTE), text)
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]}…"
    return visible_lines(text)


def visible_lines(text: str) -> str:
    """Return lines of text with U+FFFD for what cannot be shown, each of any length."""
    return "\n".join(map(visible, text.split("\n")))


def visible(text: str) -> str:
    """Return a text with U+FFFD for what cannot be shown, of any length."""
    return _NOT_SHOWN.sub("\ufffd", text)

"""Values that users wrote, as messages show them: cut short where they are long."""

from collections.abc import Mapping
from typing import Any

LONGEST_SHOWN = 60
_EXACT_BITS = 80


def cut(text: str, longest: int = LONGEST_SHOWN) -> str:
    """Return the text, cut short where it is longer than `longest` characters."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def with_article(noun: str) -> str:
    """Return a noun after `a` or `an`, by its first letter."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def shown(value: Any, text: str = "") -> str:
    """Return a value as TOML and YAML write it; tables and long lists are only named.

    text: words that precede a text, such as `the text `.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        short = len(value) <= 3 and not any(isinstance(part, list) for part in value)
        return cut(f"[{', '.join(map(shown, value))}]") if short else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _EXACT_BITS:
        return f"a number of {value.bit_length()} bits"
    return cut(f"{text}{value!r}" if isinstance(value, str) else str(value))

"""A value as a message shows it."""

from typing import Any

_LONGEST = 60
_EXACT_BITS = 80


def shown(value: Any) -> str:
    """What was found, as TOML writes it, cut short where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > _EXACT_BITS:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict):
        return "a table"
    return cut(f"the text {value!r}" if isinstance(value, str) else str(value))


def cut(text: str) -> str:
    """The text, cut short where it is long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

"""Values as TOML writes them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def toml(value: Any) -> str:
    """Return a value as TOML writes it; None, which it does not have, as an empty array.

    >>> toml({"mesh": {"fsdp": 8}, "a b": [True, 'say "so"']})
    '{ mesh = { fsdp = 8 }, "a b" = [true, "say \\\\"so\\\\""] }'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # a basic string is JSON's but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return f"{{ {', '.join(toml_pairs(value))} }}" if value else "{}"
    if isinstance(value, Sequence) or value is None:
        return f"[{', '.join(map(toml, value or ()))}]"
    return str(value)


def toml_pairs(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield each entry of a table as TOML, its key in quotes where it has to be."""
    for key, value in table.items():
        yield f"{key if re.fullmatch(r'[A-Za-z0-9_-]+', key) else toml(key)} = {toml(value)}"

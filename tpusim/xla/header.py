"""The first line of an HLO file that tpusim saved: what the HLO itself does not say, as JSON.

    // tpusim: {"slice": "v4:8x16x16", ...}

It is a comment of HLO, so other readers pass over it.
"""

import json
from collections.abc import Mapping
from typing import Any

from tpusim.errors import FileError

_MARK = "// tpusim: "


def header_line(facts: Mapping[str, Any]) -> str:
    """The line that says `facts`, with its end; HLO text follows it."""
    return f"{_MARK}{json.dumps(facts)}\n"


def split_header(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """The facts of a first line that tpusim wrote, or None, and the rest.

    The rest keeps the end of that line, so that its lines have the numbers of the file. Raises
    FileError for a line that is broken.
    """
    mark = _MARK.encode()
    if not data.startswith(mark):
        return None, data
    end = data.find(b"\n") if b"\n" in data else len(data)
    try:
        facts = json.loads(data[len(mark) : end])
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"line 1 begins with {_MARK.strip()!r} and is no JSON ({error}); "
            "save the file again, or delete the line and give the slice yourself"
        ) from error
    if not isinstance(facts, dict):
        raise FileError(
            f"line 1 begins with {_MARK.strip()!r} and holds no JSON object; "
            "save the file again, or delete the line and give the slice yourself"
        )
    return facts, data[end:]

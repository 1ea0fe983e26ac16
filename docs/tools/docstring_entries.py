"""The docstrings of the project: a summary, prose, and entries such as `axis: mesh axis name.`"""

import inspect
import re
from collections.abc import Collection

NAMES = r"([a-z_]\w*(?:, [a-z_]\w*)*): "
ENTRY = re.compile(rf"^ *{NAMES}(.+)$")
"""The first line of an entry: one or more names, and what they mean."""


def entries(text: str, known: Collection[str]) -> dict[str, str]:
    """The entries of a docstring for the names that are known: name -> meaning, on one line."""
    found: dict[str, str] = {}
    for block in re.split(r"\n\n", inspect.cleandoc(text)):
        line = " ".join(block.split())
        heads = [
            head
            for head in re.finditer(rf"(?:^|(?<=[.;] )){NAMES}", line)
            if set(head[1].split(", ")) <= set(known)
        ]
        ends = [*(head.start() for head in heads), len(line)][1:]
        for head, end in zip(heads, ends, strict=False):
            found |= dict.fromkeys(head[1].split(", "), line[head.end() : end].strip())
    return found


def as_markdown(text: str) -> str:
    """The docstring with its entries as a list; prose and examples stay as they are."""
    lines: list[str] = []
    inside = False
    for line in inspect.cleandoc(text).splitlines():
        if entry := ENTRY.match(line):
            lines += [] if inside else [""]
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines.append(f"- {names}: {entry[2].strip()}")
            inside = True
        elif inside and line.startswith("  "):
            lines.append(f"  {line.strip()}")
        else:
            lines += [""] if inside and line.strip() else []
            inside = False
            lines.append(line)
    return "\n".join(lines)

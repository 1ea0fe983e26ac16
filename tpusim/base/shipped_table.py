"""TOML tables that ship with the package, beside the modules that read them."""

import tomllib
from importlib import resources
from typing import Any


def shipped_table(room: str, name: str) -> dict[str, Any]:
    """Return a table of a room, such as `zoo.toml` of `models`; room: below `tpusim`, with dots."""
    return tomllib.loads((resources.files(f"tpusim.{room}") / name).read_text("utf-8"))

"""TOML tables that ship with the package, beside the modules that read them."""

import tomllib
from importlib import resources
from typing import Any


def shipped_table(room: str, name: str) -> dict[str, Any]:
    """Return a table of a room, such as `passes.toml` of `lowering`."""
    return tomllib.loads(shipped_text(room, name))


def shipped_text(room: str, name: str) -> str:
    """Return the text of a file of a room."""
    return (resources.files(f"tpusim.{room}") / name).read_text("utf-8")

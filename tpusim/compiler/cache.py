"""Compiled programs on disk, by their inputs, so that none is compiled twice.

An entry is a file that `load` reads. The folder is `$TPUSIM_CACHE`, otherwise the system's folder
for caches: `~/.cache/tpusim` (or under `$XDG_CACHE_HOME`), `~/Library/Caches/tpusim`,
`%LOCALAPPDATA%\\tpusim`. It may be deleted at any time.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.compiler.compiled import Compiled, load

CACHE_FORMAT = 1
"""Increased when the meaning of entries changes."""


def folder() -> Path:
    """Return the folder of the entries; it need not exist."""
    if named := os.environ.get("TPUSIM_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tpusim"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "tpusim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpusim"


def key(program: bytes, facts: Mapping[str, Any]) -> str:
    """Return the name of an entry: a hash of the program before compilation, and of the facts."""
    found = hashlib.sha256(json.dumps([CACHE_FORMAT, facts], sort_keys=True).encode())
    found.update(program)
    return found.hexdigest()


def get(name: str) -> Compiled | None:
    """Return the entry of this name; None if there is none, or if it is broken."""
    path = folder() / f"{name}.hlo.gz"
    try:
        found = load(path) if path.exists() else None
    except (TpusimError, OSError):
        return None
    whole = found is not None and found.devices is not None and b"HloModule" in found.data[:99]
    if found is None or not whole:
        return None
    return replace(found, data=found.data.lstrip(), from_cache=True)


def put(name: str, compiled: Compiled) -> None:
    """Store a program under this name; a folder that cannot be written causes a warning."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        compiled.save(folder() / f"{name}.hlo.gz")
    except (TpusimError, OSError) as error:
        warnings.warn(
            f"the compiled program is not cached, so it will be compiled again ({error}); "
            "set TPUSIM_CACHE to a folder that can be written",
            stacklevel=2,
        )

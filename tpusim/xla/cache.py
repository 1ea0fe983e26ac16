"""Compiled programs on disk, by what went into them, so that none is compiled twice.

An entry is a file that `load` reads. The folder is `$TPUSIM_CACHE`, else the one that the system
keeps for caches: `~/.cache/tpusim` (or under `$XDG_CACHE_HOME`), `~/Library/Caches/tpusim`,
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

from tpusim.errors import TpusimError
from tpusim.xla.compiled import Compiled, load

FORMAT = 1
"""Raised when entries change their meaning."""


def folder() -> Path:
    """Where the entries are; it need not exist."""
    if named := os.environ.get("TPUSIM_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tpusim"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "tpusim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpusim"


def key(program: bytes, facts: Mapping[str, Any]) -> str:
    """The name of an entry: a hash of the program before compilation, and of all beside it."""
    found = hashlib.sha256(json.dumps([FORMAT, facts], sort_keys=True).encode())
    found.update(program)
    return found.hexdigest()


def get(name: str) -> Compiled | None:
    """The entry of this name; None where there is none, or where it is broken."""
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
    """Keep a program under this name; a folder that cannot be written is a warning."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        compiled.save(folder() / f"{name}.hlo.gz")
    except (TpusimError, OSError) as error:
        warnings.warn(
            f"what was compiled is not kept, so it will be compiled again ({error}); "
            "set TPUSIM_CACHE to a folder that can be written",
            stacklevel=2,
        )

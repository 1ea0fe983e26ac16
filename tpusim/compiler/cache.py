"""Compiled programs on disk, by their inputs, so that none is compiled twice.

An entry is a file that `load` reads, and one with its hash, which is checked on reading.
The folder is `$TPUSIM_CACHE`, otherwise the system's folder for caches: `~/.cache/tpusim` (or under
`$XDG_CACHE_HOME`), `~/Library/Caches/tpusim`, `%LOCALAPPDATA%\\tpusim`. A new one is its owner's
alone (mode 0700). It may be deleted at any time.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.base.text_files import write_file
from tpusim.compiler.compiled import Compiled, load

CACHE_FORMAT = 2
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
    found = sha256(json.dumps([CACHE_FORMAT, facts], sort_keys=True).encode())
    found.update(program)
    return found.hexdigest()


def get(name: str) -> Compiled | None:
    """Return the entry of this name; None if there is none, or if it is broken."""
    path, seal = folder() / f"{name}.hlo.gz", folder() / f"{name}.sha256"
    try:
        if seal.read_text("ascii").strip() != sha256(path.read_bytes()).hexdigest():
            return None
        found = load(path)
    except (TpusimError, OSError, ValueError):
        return None
    whole = found.devices is not None and b"HloModule" in found.data[:99]
    return replace(found, data=found.data.lstrip(), from_cache=True) if whole else None


def put(name: str, compiled: Compiled) -> None:
    """Store a program under this name; a folder that cannot be written causes a warning."""
    path, seal = folder() / f"{name}.hlo.gz", folder() / f"{name}.sha256"
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        compiled.save(path)
        write_file(seal, f"{sha256(path.read_bytes()).hexdigest()}\n".encode())
    except (TpusimError, OSError) as error:
        warnings.warn(
            f"the compiled program is not cached, so it will be compiled again ({error}); "
            "set TPUSIM_CACHE to a folder that can be written",
            stacklevel=2,
        )

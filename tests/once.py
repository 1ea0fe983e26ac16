"""Values that take long, made once in a session of tests, whichever of its processes asks first."""

import fcntl
import os
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from tpusim.validation import Validation, validate

T = TypeVar("T")
SHARED = "TPUSIM_TESTS_SHARED"
"""The variable of the environment with the session's folder, of conftest.py."""


def once(name: str, make: Callable[[], T]) -> T:
    """Return what `make` returns, or what it returned to a process of this session."""
    if SHARED not in os.environ:
        return make()
    path = Path(os.environ[SHARED]) / f"{name}.pickle"
    with path.with_suffix(".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            made: T = pickle.loads(path.read_bytes())
            return made
        value = make()
        path.write_bytes(pickle.dumps(value))
        return value


@cache
def validated(folder: Path) -> Validation:
    """Return the predictions of the measured runs of a folder."""
    return once("-".join(folder.parts[-2:]), lambda: validate(folder))

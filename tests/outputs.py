"""What may stand where an output should go, and must not be replaced by it."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

OBSTACLES: Mapping[str, Callable[[Path], None]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link that leads to nothing": lambda path: path.symlink_to("nowhere"),
}
"""By what messages call them. Tests need no device, which only root can make."""


def kind_of(path: Path) -> int:
    """Return the kind of what stands at a path, links not followed."""
    return stat.S_IFMT(path.lstat().st_mode)

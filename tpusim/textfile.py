"""Files that a user names: read as text or bytes, or one sentence; written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

from tpusim.errors import FileError
from tpusim.units import format_bytes

LARGEST = 2**20
"""Bytes of the largest config that is read."""


def read_text(path: Path, what: str, instead: str, largest: int = LARGEST) -> str:
    """The text of a file of `largest` bytes at most, without a byte order mark.

    what: what the file should be, such as `a config.json`. instead: what to give where it is not
    that. Raises FileError; its sentence leaves the path to `errors.blame`.
    """
    try:
        return read_bytes(path, what, instead, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"not a text file (byte {error.start} is not UTF-8); give {instead}"
        ) from error


def read_bytes(path: Path, what: str, instead: str, largest: int) -> bytes:
    """The bytes of a file; else as `read_text`."""
    try:
        if path.is_dir():
            raise FileError(f"a folder; give {instead}")
        if path.exists() and not path.is_file():
            raise FileError(f"not a regular file; give {instead}")
        size = path.stat().st_size
        if size > largest:
            raise FileError(f"{format_bytes(size)} is too large for {what}")
        return path.read_bytes()
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}; give {instead}") from error
    except ValueError as error:
        raise FileError(f"no path ({error}); give {instead}") from error


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what is there at the end takes its place at once.

    So nobody ever sees half of a file, and an error leaves the old one. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)

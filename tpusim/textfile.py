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


def read_text(path: Path, what: str, instead: str) -> str:
    """The text of a file, without a byte order mark.

    what: what the file should be, such as `a config.json`. instead: what to give where nothing can
    be read. Raises FileError; a path that is none raises ValueError, as `pathlib` does.
    """
    try:
        return read_bytes(path, what, instead, LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path}: not a text file (byte {error.start} is not UTF-8); give {what}"
        ) from error


def read_bytes(path: Path, what: str, instead: str, largest: int) -> bytes:
    """The bytes of a file, of `largest` at most; else as `read_text`."""
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path}: not a regular file; give the path of {what}")
        size = path.stat().st_size
        if size > largest:
            raise FileError(f"{path}: {format_bytes(size)} is too large for {what}")
        return path.read_bytes()
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: cannot be read: {error.strerror}; give {instead}") from error


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

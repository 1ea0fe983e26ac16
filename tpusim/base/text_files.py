"""Files that a user names: read with one-sentence errors, and written atomically."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

from tpusim.base.errors import FileError
from tpusim.base.shown_value import shown
from tpusim.base.units import format_bytes

MAX_CONFIG_BYTES = 2**20
"""Size of the largest config that is read."""


def path_of(given: object, call: str) -> Path:
    """Return a path that a user gave to a function. Raise FileError for what is none.

    call: the function, such as `read_run`, for the message.
    """
    if not isinstance(given, str | os.PathLike):
        raise FileError(f"{call} is given {shown(given)}; write a path, such as 'folder/name'")
    return Path(given)


def read_text(path: Path, what: str, instead: str, largest: int = MAX_CONFIG_BYTES) -> str:
    """Return the text of a file, without a byte order mark.

    what: description of the file, such as `a config.json`, for messages.
    instead: file to give instead, for messages.
    largest: size in bytes above which the file is refused.

    Raise FileError, whose sentence leaves the path to `errors.blame`.
    """
    try:
        return read_bytes(path, what, instead, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"not a text file (byte {error.start} is not UTF-8); give {instead}"
        ) from error


def read_bytes(path: Path, what: str, instead: str, largest: int) -> bytes:
    """Return the bytes of a file; otherwise as `read_text`."""
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
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which replaces `path` atomically at the end.

    A reader never sees half of a file, and an error leaves the old one. Raise OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made if need be; each of them whole or not at all.

    files: content by name.

    Raise FileError, with the folder or the file that cannot be written.
    """
    with blame_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with blame_writing(folder / name), atomic_write(folder / name) as beside:
            beside.write_bytes(content)


@contextmanager
def blame_writing(path: Path) -> Iterator[None]:
    """Raise FileError with a sentence about `path` if a write fails."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror}; give a folder that can be written to"
        ) from error

"""Files that a user names: read with one-sentence errors, and written atomically.

Everything that tpusim writes for a user goes through `atomic_write`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copymode
from threading import get_ident

from tpusim.base.errors import FileError, TpusimError
from tpusim.base.shown_value import shown
from tpusim.base.units import format_bytes

MAX_CONFIG_BYTES = 2**20
"""Size of the largest config that is read."""

PROFILES = (".xplane.pb", ".xplane.pb.gz", ".trace.json.gz", ".trace.json")
"""Ends of the names of profiles, which profilers of TPUs write."""

A_PROFILE = "a profile"
"""What is read where a profile is expected."""

LONGEST_BEGINNING = 40
"""Characters of a file's name that the name of the file beside it begins with."""


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
    check_readable(path, what, instead, largest)
    with blame_reading(instead):
        return path.read_bytes()


def check_readable(path: Path, what: str, instead: str, largest: int) -> None:
    """Raise FileError, as `read_text`, unless a path is a regular file that is not too large."""
    with blame_reading(instead):
        if path.is_dir():
            raise FileError(f"a folder; give {instead}")
        if path.exists() and not path.is_file():
            raise FileError(f"not a regular file; give {instead}")
        if path.name.endswith(PROFILES) and path.is_file() and what != A_PROFILE:
            raise FileError(
                f"a profile of a run, which `tpusim diagnose` compares with its prediction; give "
                f"{instead}"
            )
        size = path.stat().st_size
        if size > largest:
            raise FileError(f"{format_bytes(size)} is too large for {what}")


@contextmanager
def blame_reading(instead: str) -> Iterator[None]:
    """Raise FileError with a sentence, which leaves out the path, if a read fails."""
    try:
        yield
    except TpusimError:
        raise
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}; give {instead}") from error
    except ValueError as error:
        raise FileError(f"no path ({error}); give {instead}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all. Raise FileError as `atomic_write` does."""
    with atomic_write(path) as beside:
        beside.write_bytes(content)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made if need be; each of them whole or not at all.

    files: content by name. None is written if one cannot stand where it should.

    Raise FileError, with the folder or the file that cannot be written.
    """
    make_folder(folder)
    for name in files:
        written_place(folder / name)
    for name, content in files.items():
        write_file(folder / name, content)


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, unless it is there. Raise FileError if it cannot be made."""
    with blame_writing(folder):
        if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
            raise FileError(f"{folder} is {_kind(folder)}; give a folder to write to")
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which replaces `path` atomically at the end.

    A reader never sees half of a file, an error leaves the old one, and the new one has its
    permissions. Raise FileError if it cannot be written, and as `written_place` does.
    """
    place = written_place(path)
    beside = place.with_name(f".{place.name[:LONGEST_BEGINNING]}.{os.getpid()}.{get_ident()}")
    with blame_writing(path):
        try:
            yield beside
            if place.exists():
                copymode(place, beside)
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)


def written_place(path: Path) -> Path:
    """Return the place where an output named `path` is written: nothing or a regular file is there.

    A link is written through: its target is returned. Raise FileError for a link that leads to
    nothing, and for all that a file must not replace: a folder, a device, a pipe, a socket.
    """
    with blame_writing(path):
        if path.is_file():
            return path.resolve() if path.is_symlink() else path
        if path.is_symlink() or path.exists() or not path.name:
            raise FileError(
                f"{path} is {_kind(path)}, which no output replaces; give the name of a new file, "
                "or of a regular one"
            )
        path.parent.stat()
        return path


def _kind(path: Path) -> str:
    """Return what stands at a path that is no regular file."""
    kinds = {
        "a folder": path.is_dir,
        "a file": path.is_file,
        "a device": lambda: path.is_char_device() or path.is_block_device(),
        "a pipe": path.is_fifo,
        "a socket": path.is_socket,
        "a link that leads to nothing": path.is_symlink,
    }
    return next((kind for kind, is_kind in kinds.items() if is_kind()), "no file")


@contextmanager
def blame_writing(path: Path) -> Iterator[None]:
    """Raise FileError with a sentence about `path` if a write fails."""
    if not _is_path(path):
        raise FileError(f"{str(path)!r} is no path; leave out the characters that no path can have")
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror}; give a folder that can be written to"
        ) from error


def _is_path(path: Path) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False

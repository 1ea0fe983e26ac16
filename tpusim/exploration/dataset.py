"""A sweep on disk: a Parquet file per finished chunk, and the identity of the sweep.

The identity is in `_sweep.json`; readers of Parquet datasets skip names with an underscore.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.accuracy.residuals import residuals_path
from tpusim.base.errors import FileError
from tpusim.base.text_files import atomic_write, blame_writing
from tpusim.exploration.search_axes import SweepCandidate
from tpusim.hardware import Slice
from tpusim.models import Architecture

if TYPE_CHECKING:
    from pandas import DataFrame

IDENTITY_FILE = "_sweep.json"
CODE_FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class SweepDataset:
    """The folder of one sweep."""

    folder: Path

    def read(self, number: int) -> "DataFrame | None":
        """Return a chunk that an earlier run finished. Raise FileError if its file is damaged."""
        from pandas import read_parquet

        path = self._path(number)
        try:
            return read_parquet(path) if path.exists() else None
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read; remove it, and its plans run again") from error

    def write(self, number: int, chunk: "DataFrame") -> None:
        """Write a finished chunk, whole or not at all."""
        path = self._path(number)
        with blame_writing(path), atomic_write(path) as beside:
            chunk.to_parquet(beside, index=False)

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05}.parquet"


def open_dataset(folder: Path, identity: str) -> SweepDataset:
    """Return the dataset of the sweep `identity`, new or as an earlier run left it.

    Raise FileError for a folder that holds anything else: chunks of two sweeps never mix.
    """
    if folder.is_file():
        raise FileError(f"{folder} is a file; give a folder to write the sweep to")
    path = folder / IDENTITY_FILE
    content = f"{json.dumps({'sweep': identity})}\n".encode()
    with blame_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if any(not each.name.startswith(f".{IDENTITY_FILE}.") for each in folder.iterdir()):
                raise FileError(f"{folder} holds other files; give a new or an empty folder")
            with atomic_write(path) as beside:
                beside.write_bytes(content)
        elif path.read_bytes() != content:
            raise FileError(
                f"{folder} holds another sweep, or the same of another version; give a new folder, "
                "or remove it"
            )
    return SweepDataset(folder)


class SweepIdentity:
    """A digest of all that determines a sweep: its inputs, the code and the residuals."""

    def __init__(self, model: Architecture, pod: Slice) -> None:
        self._hash = sha256(repr((model, pod, code_digest())).encode())

    def add(self, tried: SweepCandidate) -> None:
        """Take in the next candidate."""
        self._hash.update(repr(tried).encode())

    @property
    def digest(self) -> str:
        """The digest of what was taken in so far."""
        return self._hash.hexdigest()


def code_digest() -> str:
    """Return a digest of the package's code and of the residuals."""
    digest = sha256()
    for path in (*sorted(CODE_FOLDER.rglob("*.py")), residuals_path()):
        digest.update(path.read_bytes())
    return digest.hexdigest()

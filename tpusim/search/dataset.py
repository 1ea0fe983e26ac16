"""A sweep on disk: a Parquet file a finished chunk, and what sweep it is.

`_sweep.json` holds the identity; readers of Parquet datasets pass over names with an underscore.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.errors import FileError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.search.space import Candidate
from tpusim.textfile import written_whole

if TYPE_CHECKING:
    from pandas import DataFrame

IDENTITY = "_sweep.json"
CODE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Dataset:
    """The folder of one sweep."""

    folder: Path

    def read(self, number: int) -> "DataFrame | None":
        """A chunk that an earlier run has finished; `FileError` if its file is damaged."""
        from pandas import read_parquet

        path = self._path(number)
        try:
            return read_parquet(path) if path.exists() else None
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read; remove it, and its plans run again") from error

    def write(self, number: int, chunk: "DataFrame") -> None:
        """Keep a finished chunk: written beside its place and moved there, so never half."""
        path = self._path(number)
        with _told(path), written_whole(path) as beside:
            chunk.to_parquet(beside, index=False)

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05}.parquet"


def open_dataset(folder: Path, identity: str) -> Dataset:
    """The dataset of the sweep `identity`, new or as an earlier run left it.

    Raises `FileError` for a folder that holds anything else: chunks of two sweeps never mix.
    """
    if folder.is_file():
        raise FileError(f"{folder} is a file; give a folder to write the sweep to")
    path = folder / IDENTITY
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        known = path.exists()
        if not known and any(folder.iterdir()):
            raise FileError(f"{folder} holds other files; give a new or an empty folder")
        if not known:
            path.write_text(json.dumps({"sweep": identity}) + "\n", "utf-8")
    if known and not _is(path, identity):
        raise FileError(
            f"{folder} holds another sweep, or the same of another version; give a new folder, "
            "or remove it"
        )
    return Dataset(folder)


def identity_of(model: Transformer, pod: Slice, tried: Sequence[Candidate]) -> str:
    """What the numbers of a sweep depend on, as a digest: its inputs and the simulator's code."""
    digest = sha256(repr((model, pod, tried)).encode())
    for path in sorted(CODE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is(path: Path, identity: str) -> bool:
    try:
        return bool(json.loads(path.read_text("utf-8"))["sweep"] == identity)
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror}; give a folder that can be written to"
        ) from error

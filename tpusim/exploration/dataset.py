"""A sweep on disk: a Parquet file per finished chunk, and the identity of the sweep.

The identity is in `_sweep.json`; readers of Parquet datasets skip names with an underscore. Each
chunk has it too, with its number and its rows, so that none is read that belongs elsewhere, and
checksums, so that none is read that was changed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.accuracy.residuals import residuals_path
from tpusim.base.errors import FileError
from tpusim.base.plain_text import plain
from tpusim.base.text_files import atomic_write, blame_writing
from tpusim.exploration.search_axes import SweepCandidate
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input

if TYPE_CHECKING:
    from pandas import DataFrame

IDENTITY_FILE = "_sweep.json"
CODE_FOLDER = Path(__file__).parents[1]
CHUNK_KEY = b"tpusim"
"""Key of a chunk's identity in the metadata of its file."""


@dataclass(frozen=True, slots=True)
class SweepDataset:
    """The folder of one sweep.

    identity: the digest of the sweep.
    sizes: the number of rows of each chunk.
    """

    folder: Path
    identity: str
    sizes: Sequence[int]

    def read(self, number: int) -> "DataFrame | None":
        """Return a chunk that an earlier run finished, or None.

        Raise FileError if its file is damaged, or that of another sweep or of another chunk.
        """
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        path = self._path(number)
        if not path.exists():
            return None
        try:
            with ParquetFile(path, page_checksum_verification=True) as file:
                own = (file.schema_arrow.metadata or {}).get(CHUNK_KEY)
                rows = file.metadata.num_rows
                if own != self._chunk_identity(number) or rows != self.sizes[number]:
                    raise FileError(
                        f"{path} is not chunk {number} of this sweep; remove it, and its plans run "
                        "again"
                    )
                found: DataFrame = file.read().to_pandas()
                return found
        except FileError:
            raise
        except (OSError, ValueError, ArrowException) as error:
            raise FileError(f"{path} cannot be read; remove it, and its plans run again") from error

    def write(self, number: int, chunk: "DataFrame") -> None:
        """Write a finished chunk, whole or not at all."""
        from pyarrow import Table
        from pyarrow.parquet import write_table

        path = self._path(number)
        table = Table.from_pandas(chunk, preserve_index=False)
        own = {CHUNK_KEY: self._chunk_identity(number)}
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **own})
        with blame_writing(path), atomic_write(path) as beside:
            write_table(table, beside, write_page_checksum=True)

    def check_files(self) -> None:
        """Raise FileError for a file that readers of the dataset would take for one of its own."""
        own = {self._path(number) for number in range(len(self.sizes))}
        for path in sorted(self.folder.iterdir()):
            if path not in own and path.name[:1] not in (".", "_"):
                raise FileError(
                    f"{self.folder} holds {plain(path.name)}, which is not of this sweep and its "
                    f"{len(self.sizes)} chunks; move it elsewhere"
                )

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05}.parquet"

    def _chunk_identity(self, number: int) -> bytes:
        own = {"sweep": self.identity, "chunk": number, "rows": self.sizes[number]}
        return json.dumps(own).encode()


def open_dataset(folder: Path, identity: str, sizes: Sequence[int]) -> SweepDataset:
    """Return the dataset of the sweep `identity`, new or as an earlier run left it.

    sizes: the number of rows of each chunk.

    Raise FileError for a folder that holds anything else: chunks of two sweeps never mix. An
    identity that was lost with the power (an empty file) is written again, as each chunk has it.
    """
    dataset = SweepDataset(folder, identity, sizes)
    path = folder / IDENTITY_FILE
    content = f"{json.dumps({'sweep': identity})}\n".encode()
    with blame_writing(folder):
        if folder.is_file():
            raise FileError(f"{folder} is a file; give a folder to write the sweep to")
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() and any(map(_is_foreign, folder.iterdir())):
            raise FileError(f"{folder} holds other files; give a new or an empty folder")
        known = path.read_bytes() if path.exists() else b""
        if known.strip(b"\0 \n") and known != content:
            raise FileError(
                f"{folder} holds another sweep, or the same of another version; give a new folder, "
                "or remove it"
            )
        if known != content:
            with atomic_write(path) as beside:
                beside.write_bytes(content)
        dataset.check_files()
    return dataset


def _is_foreign(path: Path) -> bool:
    """Return True for what no beginning of a sweep leaves behind."""
    return not path.name.startswith(f".{IDENTITY_FILE}.")


class SweepIdentity:
    """A digest of all that determines a sweep: its inputs, the code and the residuals."""

    def __init__(self, model: Architecture, pod: Slice, given: Input | None) -> None:
        self._hash = sha256(repr((model, pod, given, code_digest())).encode())

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

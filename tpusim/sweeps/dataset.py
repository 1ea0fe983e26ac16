"""A sweep on disk: Parquet files of consecutive rows, its parts, and the identity of the sweep.

The identity is in `_sweep.json`; readers of Parquet datasets skip names with an underscore. Each
part has it too, with the numbers of its rows, so that none is read that belongs elsewhere, and
checksums, so that none is read that was changed. Parts are cut as rows are finished, elsewhere in
each run.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.accuracy.residuals import residuals_path
from tpusim.base.errors import FileError
from tpusim.base.plain_text import plain
from tpusim.base.text_files import (
    atomic_write,
    blame_writing,
    make_folder,
    write_file,
    written_place,
)
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input
from tpusim.sweeps.search_axes import SweepCandidate

if TYPE_CHECKING:
    from pandas import DataFrame

IDENTITY_FILE = "_sweep.json"
CODE_FOLDER = Path(__file__).parents[1]
PART_NAME = re.compile(r"part-([0-9]{9})-([0-9]{9})\.parquet")
"""With the numbers of the first row and of the one after the last; the names sort as the rows."""

PART_KEY = b"tpusim"
"""Key of a part's identity in the metadata of its file."""

_NOT_OF_IT = "is not of this sweep; remove it, and its plans run again"


@dataclass(frozen=True, slots=True)
class SweepDataset:
    """The folder of one sweep.

    identity: the digest of the sweep.
    plans: the number of its rows.
    """

    folder: Path
    identity: str
    plans: int

    def read(self) -> "dict[int, DataFrame]":
        """Return the parts that an earlier run wrote: the number of the first row -> the rows.

        Raise FileError if a file is damaged, or that of another sweep or of other rows.
        """
        found: dict[int, DataFrame] = {}
        done = 0
        for path, (first, end) in self._files().items():
            if first < done:
                raise FileError(f"{path} {_NOT_OF_IT}")
            found[first] = self._part(path, first, end)
            done = end
        return found

    def write(self, first: int, part: "DataFrame") -> None:
        """Write rows from number `first` on, whole or not at all."""
        from pyarrow import Table
        from pyarrow.parquet import write_table

        end = first + len(part)
        path = self.folder / f"part-{first:09}-{end:09}.parquet"
        table = Table.from_pandas(part, preserve_index=False)
        own = {PART_KEY: self._part_identity(first, end)}
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **own})
        with atomic_write(path) as beside:
            write_table(table, beside, write_page_checksum=True)

    def check_files(self) -> None:
        """Raise FileError for a file that readers of the dataset would take for one of its own."""
        own = {path for path, (_, end) in self._files().items() if end <= self.plans}
        for path in sorted(self.folder.iterdir()):
            if path not in own and path.name[:1] not in (".", "_"):
                raise FileError(
                    f"{self.folder} holds {plain(path.name)}, which is not of this sweep and its "
                    f"{self.plans:,} plans; move it elsewhere"
                )

    def check_parts(self, parts: "Mapping[int, DataFrame]") -> None:
        """Raise FileError if there are other parts, which another run of the sweep wrote."""
        own = [(first, first + len(part)) for first, part in sorted(parts.items())]
        if list(self._files().values()) != own:
            raise FileError(
                f"another run of the same sweep wrote to {self.folder}; remove it, and run one at "
                "a time"
            )

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Return the file of each part, in order: its first row, and the one after its last."""
        named = ((path, PART_NAME.fullmatch(path.name)) for path in sorted(self.folder.iterdir()))
        return {path: (int(name[1]), int(name[2])) for path, name in named if name}

    def _part(self, path: Path, first: int, end: int) -> "DataFrame":
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        if not path.is_file():
            raise FileError(f"{path} {_NOT_OF_IT}")
        try:
            with ParquetFile(path, page_checksum_verification=True) as file:
                own = (file.schema_arrow.metadata or {}).get(PART_KEY)
                if own != self._part_identity(first, end) or file.metadata.num_rows != end - first:
                    raise FileError(f"{path} {_NOT_OF_IT}")
                found: DataFrame = file.read().to_pandas()
                return found
        except FileError:
            raise
        except (OSError, ValueError, ArrowException) as error:
            raise FileError(f"{path} cannot be read; remove it, and its plans run again") from error

    def _part_identity(self, first: int, end: int) -> bytes:
        return json.dumps({"sweep": self.identity, "first": first, "end": end}).encode()


def open_dataset(folder: Path, identity: str, plans: int) -> SweepDataset:
    """Return the dataset of the sweep `identity`, new or as an earlier run left it.

    plans: the number of its rows.

    Raise FileError for a folder that holds anything else: parts of two sweeps never mix. An
    identity that was lost with the power (an empty file) is written again, as each part has it.
    """
    dataset = SweepDataset(folder, identity, plans)
    path = folder / IDENTITY_FILE
    content = f"{json.dumps({'sweep': identity})}\n".encode()
    make_folder(folder)
    written_place(path)
    with blame_writing(folder):
        if not path.exists() and any(map(_is_foreign, folder.iterdir())):
            raise FileError(f"{folder} holds other files; give a new or an empty folder")
        known = path.read_bytes() if path.is_file() else b""
        if known.strip(b"\0 \n") and known != content:
            raise FileError(
                f"{folder} holds another sweep, or the same of another version; give a new folder, "
                "or remove it"
            )
        if known != content:
            write_file(path, content)
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

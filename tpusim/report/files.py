"""The report on disk: all of it, or a sentence that says why not."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from tpusim.errors import FileError
from tpusim.program.text import text
from tpusim.report.document import document
from tpusim.report.ideal import perfect_compiler
from tpusim.report.tables import lines, operations, transfers
from tpusim.report.trace import trace_bytes
from tpusim.result import Result
from tpusim.summary import summary
from tpusim.textfile import written_whole


def write_report(result: Result, folder: Path | str, ideal: Result | None = None) -> None:
    """Write summary, `result.json`, three tables, the program, the trace and figures into `folder`.

    ideal: the run under the lowering `ideal`; simulated when it is not given. Each file is written
    beside its place and then moved there, so that none is ever half written. The same result gives
    the same bytes. `FileError` when the folder or a file cannot be written.
    """
    ideal = ideal or perfect_compiler(result)
    files = rendered(result, ideal)
    folder = Path(folder)
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with _told(folder / name), written_whole(folder / name) as beside:
            beside.write_bytes(content)


def rendered(result: Result, ideal: Result | None) -> Mapping[str, bytes]:
    """The content of each file, by name."""
    from tpusim.report.figure import figure_bytes

    texts = {
        "summary.txt": f"{summary(result, ideal)}\n",
        "result.json": f"{json.dumps(document(result, ideal), indent=2)}\n",
        "operations.csv": operations(result),
        "transfers.csv": transfers(result),
        "lines.csv": lines(result),
        "program.txt": "\n\n".join(map(text, result.programs)) + "\n",
    }
    written = {name: content.encode() for name, content in texts.items()}
    return written | {"trace.json.gz": trace_bytes(result)} | figure_bytes(result)


def check_folder(folder: Path) -> None:
    """Raise `FileError` unless files can be written into `folder`; leaves no trace of the trial."""
    if folder.is_file():
        raise FileError(f"{folder} is a file; give a folder to write the report to")
    with _told(folder):
        made = [part for part in (folder, *folder.parents) if not part.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
        for part in made:
            part.rmdir()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror}; give a folder that can be written to"
        ) from error

"""The files of a report, written completely or refused with one sentence."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from tpusim.base.errors import FileError
from tpusim.base.text_files import atomic_write
from tpusim.program import program_text
from tpusim.report.csv_tables import lines_csv, operations_csv, transfers_csv
from tpusim.report.result_json import document
from tpusim.report.trace import trace_bytes
from tpusim.results import PlanResult, Result
from tpusim.results.summary import summary
from tpusim.simulation import simulate


def write_report(result: Result, folder: Path | str, ideal: Result | None = None) -> None:
    """Write summary, `result.json`, three tables, the program, the trace and figures into `folder`.

    Each file is written beside its place and then moved there, so that none is ever half written.
    The same result gives the same bytes. The figures are those of `register_figure`.
    Raise FileError if the folder or a file cannot be written.

    ideal: the run under the lowering `ideal`; simulated if it is not given.
    """
    files = render_files(result, ideal or perfect_compiler(result))
    folder = Path(folder)
    with _file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with _file_errors(folder / name), atomic_write(folder / name) as beside:
            beside.write_bytes(content)


def render_files(result: Result, ideal: Result | None) -> Mapping[str, bytes]:
    """Return the content of each file, by name."""
    from tpusim.report.figures.render import figure_bytes

    texts = {
        "summary.txt": f"{summary(result, ideal)}\n",
        "result.json": f"{json.dumps(document(result, ideal), indent=2)}\n",
        "operations.csv": operations_csv(result),
        "transfers.csv": transfers_csv(result),
        "lines.csv": lines_csv(result),
        "program.txt": "\n\n".join(map(program_text, result.programs)) + "\n",
    }
    files = {name: content.encode() for name, content in texts.items()}
    return files | {"trace.json.gz": trace_bytes(result)} | figure_bytes(result)


def perfect_compiler(result: Result) -> PlanResult | None:
    """Simulate the same plan under the lowering `ideal`.

    None if the plan has it, or a lowering of its own, and for a compiled program.
    """
    if not isinstance(result, PlanResult) or result.plan.compiler.lowering != "xla":
        return None
    fed_by = None if result.input is None else result.input.given
    plan = result.plan.replace(lowering="ideal")
    return simulate(result.model, plan, result.pod, input=fed_by)


def check_folder(folder: Path) -> None:
    """Raise FileError unless files can be written into `folder`; leave nothing of the trial."""
    if folder.is_file():
        raise FileError(f"{folder} is a file; give a folder to write the report to")
    with _file_errors(folder):
        made = [part for part in (folder, *folder.parents) if not part.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
        for part in made:
            part.rmdir()


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a FileError that names the path."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror}; give a folder that can be written to"
        ) from error

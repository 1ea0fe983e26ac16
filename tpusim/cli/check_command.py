"""The command `tpusim check`."""

from collections.abc import Sequence
from pathlib import Path

from tpusim.base.errors import blame
from tpusim.base.json_text import json_text
from tpusim.base.text_width import printed_on
from tpusim.cli.progress import show_work
from tpusim.compiler.compile_apart import check_time_limit
from tpusim.compiler_check import check
from tpusim.compiler_check.compile_step import step_versions
from tpusim.report import check_folder, write_check
from tpusim.runfile import read_run


def check_run_file(
    path: str,
    settings: Sequence[str],
    folder: Path | None,
    *,
    full: bool,
    time_limit: float,
    as_json: bool = False,
    quiet: bool = False,
) -> str:
    """Compare a run with what the TPU compiler makes of it; a folder gets the tables."""
    run = read_run(path, settings)
    with blame("--time-limit"):
        check_time_limit(time_limit)
    step_versions()
    if folder is not None:
        check_folder(folder)
    with blame(run.where), show_work("compiling", quiet=quiet):
        made = check(run.model, run.plan, run.pod, full=full, time_limit=time_limit)
    if folder is not None:
        with printed_on(None):
            write_check(made.comparison, folder)
    if as_json:
        return json_text(made.comparison.facts())
    if folder is None:
        return str(made)
    return f"{made}\n\nreport      {folder}"

"""The command `tpusim validate`."""

from collections.abc import Sequence
from pathlib import Path

from tpusim.base.json_text import json_text
from tpusim.base.text_width import printed_on
from tpusim.cli.progress import show_progress
from tpusim.report import check_folder
from tpusim.validation import validate
from tpusim.validation.validation_files import write_validation


def validate_runs(
    path: str,
    without: Sequence[str],
    folder: Path | None,
    *,
    allow_failures: bool,
    as_json: bool,
    quiet: bool,
) -> tuple[str, int]:
    """Return the comparison with the measured runs of a folder or a table, and the exit code.

    The code is 1 for a defect of tpusim, and, unless failures are allowed, for a run that cannot
    be simulated. A folder gets the tables.
    """
    if folder is not None:
        check_folder(folder)
    with show_progress("validate", "runs", quiet=quiet) as progress:
        found = validate(path, without_passes=without, progress=progress)
    answer = json_text(found.statistics) if as_json else str(found)
    if folder is not None:
        with printed_on(None):
            write_validation(found, folder)
        answer += "" if as_json else f"\n\nreport      {folder}"
    failed = any(o.status == "defect" or (not o.ok and not allow_failures) for o in found.outcomes)
    return answer, int(failed)

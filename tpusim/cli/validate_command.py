"""The command `tpusim validate`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tpusim.base.json_text import json_text
from tpusim.cli.app import with_files
from tpusim.cli.progress import show_progress
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
    with show_progress("validate", "runs", quiet=quiet) as progress:
        found = validate(path, without_passes=without, progress=progress)
    answer = json_text(found.statistics) if as_json else str(found)
    answer = with_files(answer, folder, partial(write_validation, found), as_json=as_json)
    failed = any(o.status == "defect" or (not o.ok and not allow_failures) for o in found.outcomes)
    return answer, int(failed)

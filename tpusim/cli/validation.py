"""What `tpusim validate` does."""

from pathlib import Path

from tpusim.report import check_folder
from tpusim.validation import validate_file
from tpusim.validation.files import write_validation
from tpusim.validation.text import text


def validation(path: str, folder: Path | None, *, allow_failures: bool) -> tuple[str, int]:
    """The tables of a file of runs, and the exit code: 1 when a run could not be simulated.

    `allow_failures` forgives what the simulator cannot do yet, not a defect of it.
    """
    if folder is not None:
        check_folder(folder)
    found = validate_file(path)
    said = text(found)
    if folder is not None:
        write_validation(found, folder)
        said = f"{said}\n\nreport      {folder}"
    failed = any(o.status == "defect" or (not o.ok and not allow_failures) for o in found.outcomes)
    return said, int(failed)

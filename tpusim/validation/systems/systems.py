"""A table of measured systems becomes a table of errors."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, blame
from tpusim.base.json_text import json_text
from tpusim.base.text_files import blame_writing
from tpusim.validation.format import percent, signed
from tpusim.validation.statistics import error_statistics
from tpusim.validation.systems.system_rows import form_of, system_row
from tpusim.validation.systems.system_run import SystemOutcome, run_system

COLUMNS = ("id", "measured", "predicted", "error", "status", "reason")


@dataclass(frozen=True, slots=True)
class SystemsReport:
    """The outcomes of a table, in its order. Prints as a table."""

    outcomes: tuple[SystemOutcome, ...]

    @property
    def statistics(self) -> dict[str, Any]:
        """The content of `systems.json`: fractions, None where there is nothing to count."""
        errors = [one.error for one in self.outcomes if one.error is not None]
        failed = sum(one.status == "failed" for one in self.outcomes)
        return {
            "runs": len(errors) + failed,
            "failed": failed,
            "no_training_step": len(self.outcomes) - len(errors) - failed,
            **error_statistics(errors),
        }

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield the rows of `systems.csv`; times are seconds per step."""
        for one in self.outcomes:
            predicted = one.result.step_time_s if one.result else None
            values = (one.measured_s, predicted, one.error)
            cells = ("" if value is None else f"{value:.6g}" for value in values)
            row = (one.row.id, *cells, one.status, one.reason)
            yield dict(zip(COLUMNS, row, strict=True))

    def write(self, folder: Path) -> None:
        """Write `systems.csv` and `systems.json`. Raise FileError if it cannot."""
        with blame_writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "systems.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows())
            text = json_text(self.statistics)
            (folder / "systems.json").write_text(f"{text}\n", encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        width = max(len(one.row.id) for one in self.outcomes)
        yield f"{'system':<{width}}{'measured':>12}{'predicted':>12}{'error':>9}  status"
        for row in self.rows():
            numbers = (
                f"{float(row[key]) * 1e3:.4g} ms" if row[key] else "-" for key in COLUMNS[1:3]
            )
            error = f"{float(row['error']):+.1%}" if row["error"] else "-"
            cells = "".join(f"{number:>12}" for number in numbers)
            status = ": ".join(filter(None, (row["status"], row["reason"])))
            yield f"{row['id']:<{width}}{cells}{error:>9}  {status}"
        found = self.statistics
        kinds = {"median": "median_abs_error", "mean": "mean_abs_error", "p90": "p90_abs_error"}
        errors = ", ".join(f"{name} {percent(found[key])}" for name, key in kinds.items())
        yield ""
        yield f"{found['runs']} runs, {found['failed']} failed; absolute error: {errors}"
        yield f"signed mean {signed(found['mean_error'])}"


def validate_systems(path: Path | str) -> SystemsReport:
    """Simulate each row of a CSV file of either form. Raise a TpusimError for a wrong table."""
    with blame(str(path)):
        try:
            with Path(path).open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file, skipinitialspace=True)
                rows = [{key: row[key] for key in row if key} for row in reader]
                header = tuple(reader.fieldnames or ())
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise FileError(f"cannot be read: {error}") from error
        form_of(header)
        if not rows:
            raise FileError("the table has no rows; write at least one")
        return SystemsReport(tuple(run_system(system_row(cells)) for cells in rows))

"""The files of a comparison of a plan with its compiled program."""

from collections.abc import Mapping
from pathlib import Path

from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.compiler_check import TwinComparison
from tpusim.report.csv_tables import csv_text

DIFFERENCE_COLUMNS = (
    *("what", "when", "topic", "seconds", "plan_s", "program_s", "words"),
    *("plan_operations", "program_operations"),
)


def write_check(comparison: TwinComparison, folder: Path | str) -> None:
    """Write `check.txt`, `check.json`, `differences.csv`, `check.png`, `report.html` into `folder`.

    `check.txt` is the printed comparison, `check.json` its `facts`, `report.html` a page that needs
    no other file. `differences.csv` has a row for each part of the step, those whose time differs
    most first; `seconds` is the plan's time less the program's, and the operations behind it are
    separated by spaces.

    Each file is written beside its place and then moved there, so that none is ever half written.
    The same comparison gives the same bytes.
    Raise FileError if the folder or a file cannot be written.
    """
    write_files(Path(folder), check_files(comparison))


def check_files(comparison: TwinComparison) -> Mapping[str, bytes]:
    """Return the content of each file, by name."""
    from tpusim.report.figures.check import plot_check
    from tpusim.report.figures.render import png_bytes
    from tpusim.report.html.comparison_page import comparison_page

    figure = png_bytes(lambda: plot_check(comparison)[0], comparison.title)
    return {
        "check.txt": f"{comparison}\n".encode(),
        "check.json": f"{json_text(comparison.facts())}\n".encode(),
        "differences.csv": differences_csv(comparison).encode(),
        "report.html": comparison_page(comparison, figure).encode(),
        "check.png": figure,
    }


def differences_csv(comparison: TwinComparison) -> str:
    """Return the differences as a table."""
    rows: list[tuple[str, ...]] = []
    for row in comparison.differences:
        seconds = (f"{value:.12f}" for value in (row.seconds, row.plan_s, row.program_s))
        operations = (" ".join(row.plan_operations), " ".join(row.program_operations))
        rows.append((row.what, row.when, row.topic, *seconds, row.words, *operations))
    return csv_text(DIFFERENCE_COLUMNS, rows)

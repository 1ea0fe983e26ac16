"""The files of comparisons: of steps side by side, and of a plan with its compiled program."""

from pathlib import Path

from tpusim.base.csv_cells import frame_csv
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.compiler_check import TwinComparison
from tpusim.report.comparison import Comparison
from tpusim.report.csv_tables import csv_text

DIFFERENCE_COLUMNS = (
    *("what", "when", "topic", "seconds", "plan_s", "program_s", "words"),
    *("plan_operations", "program_operations"),
)


def write_comparison(comparison: Comparison, folder: Path | str) -> None:
    """Write `compare.txt`, `.json`, `.csv`, `.png` and `.svg` into `folder`.

    `compare.txt` is the printed comparison, `compare.json` its `facts`, `compare.csv` its `table`,
    and the figure leads from the first step to each other by its causes.

    Each file is written beside its place and then moved there, so that none is ever half written.
    The same comparison gives the same bytes.
    Raise FileError if the folder or a file cannot be written.
    """
    from tpusim.report.figures.render import figure_files
    from tpusim.report.figures.waterfall import plot_waterfall

    title = "; ".join(map(str, comparison.differences))
    files = {
        "compare.txt": f"{comparison}\n".encode(),
        "compare.json": f"{json_text(comparison.facts())}\n".encode(),
        "compare.csv": frame_csv(comparison.table).encode(),
        **figure_files("compare", lambda: plot_waterfall(comparison)[0], title),
    }
    write_files(Path(folder), files)


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
    from tpusim.report.figures.check import plot_check
    from tpusim.report.figures.render import png_bytes
    from tpusim.report.html.comparison_page import comparison_page

    figure = png_bytes(lambda: plot_check(comparison)[0], comparison.title)
    files = {
        "check.txt": f"{comparison}\n".encode(),
        "check.json": f"{json_text(comparison.facts())}\n".encode(),
        "differences.csv": differences_csv(comparison).encode(),
        "report.html": comparison_page(comparison, figure).encode(),
        "check.png": figure,
    }
    write_files(Path(folder), files)


def differences_csv(comparison: TwinComparison) -> str:
    """Return the differences as a table."""
    rows: list[tuple[str, ...]] = []
    for row in comparison.differences:
        seconds = (f"{value:.12f}" for value in (row.seconds, row.plan_s, row.program_s))
        operations = (" ".join(row.plan_operations), " ".join(row.program_operations))
        rows.append((row.what, row.when, row.topic, *seconds, row.words, *operations))
    return csv_text(DIFFERENCE_COLUMNS, rows)

"""The files of a diagnosis: text, JSON, tables, figure and page."""

from base64 import b64encode
from pathlib import Path

import pandas as pd

from tpusim.base.csv_cells import frame_csv
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.base.units import format_seconds
from tpusim.diagnosis.alignment import TIMES
from tpusim.diagnosis.diagnosis import Diagnosis
from tpusim.profiles.profile import PS
from tpusim.report.html.headline import Fact
from tpusim.report.html.page import template

ROWS_SHOWN = 40
"""Rows of a table of the page; `parts.csv` has all."""

TABLES = {
    "kind": "By kind of work",
    "layer": "By layer",
    "line": "By line of code",
    "axis": "By mesh axes",
    "operation": "By operation",
}


def write_diagnosis(diagnosis: Diagnosis, folder: Path | str, *, html: bool = True) -> None:
    """Write `diagnose.txt`, `.json`, `parts.csv`, `timelines.png`, `.svg` and `report.html`.

    `diagnose.txt` is the printed diagnosis, `diagnose.json` its `facts`, `parts.csv` its `parts`,
    and the figure has one layer on both timelines. Each file is written beside its place and then
    moved there. The same diagnosis gives the same bytes.
    Raise FileError if the folder or a file cannot be written.

    html: False leaves out the page.
    """
    files = {
        "diagnose.txt": f"{diagnosis}\n".encode(),
        "diagnose.json": f"{json_text(diagnosis.facts())}\n".encode(),
        "parts.csv": frame_csv(diagnosis.parts).encode(),
    }
    from tpusim.report.figures.render import figure_files

    files |= figure_files("timelines", diagnosis.plot, diagnosis.title)
    if html:
        files["report.html"] = diagnosis_page(diagnosis, files["timelines.png"]).encode()
    write_files(Path(folder), files)


def diagnosis_page(diagnosis: Diagnosis, figure: bytes) -> str:
    """Return the diagnosis as one HTML page that needs no other file.

    figure: the PNG of both timelines.
    """
    columns = TIMES if diagnosis.prediction else TIMES[:1]
    tables = [(key, title, _rows(diagnosis.by(key), columns)) for key, title in TABLES.items()]
    return template("diagnosis.html.jinja").render(
        title=diagnosis.title,
        findings=[each.text for each in diagnosis.findings],
        notes=diagnosis.notes,
        facts=_facts(diagnosis),
        columns=[name.removesuffix("_ps").capitalize() for name in columns],
        figure=b64encode(figure).decode(),
        tables=[table for table in tables if len(table[-1]) > 1],
    )


def _facts(found: Diagnosis) -> list[Fact]:
    took = format_seconds(found.measured_ps * PS)
    facts = [Fact("Measured", took, f"a step; {found.runs}")]
    if found.prediction:
        ratio = found.measured_ps / found.predicted_ps
        facts += [
            Fact("Predicted", format_seconds(found.predicted_ps * PS), found.prediction),
            Fact("Measured over predicted", f"{ratio:.3f}", ""),
        ]
    return facts


def _rows(table: pd.DataFrame, columns: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    shown = table[(table[[*columns]] != 0).any(axis=1)].head(ROWS_SHOWN)
    return [
        (
            "outside of layers" if name == -1 else str(name),
            [format_seconds(int(row[each]) * PS) for each in columns],
        )
        for name, row in shown.iterrows()
    ]

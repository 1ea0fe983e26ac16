"""The files of a diagnosis: text, JSON, tables, figure and page."""

from base64 import b64encode
from pathlib import Path

from tpusim.base.csv_cells import frame_csv
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.diagnosis.diagnosis import Diagnosis
from tpusim.diagnosis.finding import duration
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
    from tpusim.report.figures.render import figure_files

    files = {
        "diagnose.txt": f"{diagnosis}\n".encode(),
        "diagnose.json": f"{json_text(diagnosis.facts())}\n".encode(),
        "parts.csv": frame_csv(diagnosis.parts).encode(),
        **figure_files("timelines", diagnosis.plot, diagnosis.title),
    }
    if html:
        files["report.html"] = _page(diagnosis, files["timelines.png"]).encode()
    write_files(Path(folder), files)


def _page(diagnosis: Diagnosis, figure: bytes) -> str:
    """Return the diagnosis as one HTML page that needs no other file. figure: a PNG."""
    facts = [Fact("Measured", duration(diagnosis.measured_ps), f"a step; {diagnosis.runs}")]
    if diagnosis.prediction:
        facts += [
            Fact("Predicted", duration(diagnosis.predicted_ps), diagnosis.prediction),
            Fact("Measured over predicted", f"{diagnosis.ratio:.3f}"),
        ]
    tables = []
    for key, title in TABLES.items():
        shown = diagnosis.largest(key, ROWS_SHOWN)
        names = ("outside of layers" if name == -1 else str(name) for name in shown.index)
        if len(shown) > 1:
            tables.append((key, title, [*zip(names, shown.to_numpy().tolist(), strict=True)]))
    return template("diagnosis.html.jinja").render(
        title=diagnosis.title,
        findings=[each.text for each in diagnosis.findings],
        notes=diagnosis.notes,
        facts=facts,
        columns=[name.removesuffix("_ps").capitalize() for name in diagnosis.times],
        figure=b64encode(figure).decode(),
        tables=tables,
    )

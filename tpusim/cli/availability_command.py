"""The files of `tpusim availability`."""

from pathlib import Path

from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.failures import Availability
from tpusim.report import availability_data, plot_availability
from tpusim.report.figures.render import figure_files


def write_availability(result: Availability, folder: Path) -> None:
    """Write `availability.txt`, `.json`, `.png` and `.svg` into `folder`.

    Raise FileError if it cannot be written.
    """
    curves = availability_data(result)
    files = {
        "availability.txt": f"{result}\n".encode(),
        "availability.json": f"{json_text(result.facts())}\n".encode(),
    }
    figures = figure_files("availability", lambda: plot_availability(curves), curves.title)
    write_files(folder, files | figures)

"""The files of a simulated server: text, JSON, table of requests, figures, trace and page."""

from pathlib import Path

import numpy as np

from tpusim.base.json_text import json_text
from tpusim.base.text_files import path_of, write_files
from tpusim.serving import ServingResult

COLUMNS = (
    *("arrival_ps", "scheduled_ps", "first_ps", "last_ps"),
    *("prompt", "output", "cached", "preemptions"),
)
"""The columns of `requests.csv`, those of `Served`."""


def write_serving(result: ServingResult, folder: Path | str, *, html: bool = True) -> None:
    """Write `serving.txt`, `.json`, `requests.csv`, figures, `trace.json.gz` and `report.html`.

    `requests.csv` has a row for each request. Each file is written beside its place and then moved
    there. The same result gives the same bytes. Raise FileError if one cannot be written.

    html: False leaves out the page.
    """
    write_files(path_of(folder, "write_serving"), serving_files(result, html=html))


def serving_files(result: ServingResult, *, html: bool = True) -> dict[str, bytes]:
    """Return the content of each file, by name."""
    from tpusim.report.figures.render import serving_figure_bytes
    from tpusim.report.server_trace import serving_trace_bytes

    figures = serving_figure_bytes(result)
    files = {
        "serving.txt": f"{result}\n".encode(),
        "serving.json": f"{json_text(result.facts())}\n".encode(),
        "requests.csv": _requests_csv(result).encode(),
        "trace.json.gz": serving_trace_bytes(result),
    } | figures
    if html:
        from tpusim.report.html.serving_page import serving_page

        files["report.html"] = serving_page(result, figures).encode()
    return files


def _requests_csv(result: ServingResult) -> str:
    """Return the requests in order of arrival, times in picoseconds after the traffic's start."""
    table = np.stack([getattr(result.served, name) for name in COLUMNS], axis=1)
    rows = (",".join(map(str, row)) for row in table.tolist())
    return "\n".join([",".join(COLUMNS), *rows, ""])

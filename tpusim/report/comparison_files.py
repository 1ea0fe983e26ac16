"""The files of a comparison: its text, its data, its table and the waterfall."""

from collections.abc import Mapping
from pathlib import Path

from tpusim.base.csv_cells import frame_csv
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.report.comparison import Comparison


def write_comparison(comparison: Comparison, folder: Path | str) -> None:
    """Write `compare.txt`, `.json`, `.csv`, `.png` and `.svg` into `folder`.

    `compare.txt` is the printed comparison, `compare.json` its `facts`, `compare.csv` its `table`,
    and the figure leads from the first step to each other by its causes.

    Each file is written beside its place and then moved there, so that none is ever half written.
    The same comparison gives the same bytes.
    Raise FileError if the folder or a file cannot be written.
    """
    write_files(Path(folder), comparison_files(comparison))


def comparison_files(comparison: Comparison) -> Mapping[str, bytes]:
    """Return the content of each file, by name."""
    from tpusim.report.figures.render import png_bytes, svg_bytes
    from tpusim.report.figures.waterfall import plot_waterfall

    title = "; ".join(map(str, comparison.differences))
    table = frame_csv(comparison.table)
    return {
        "compare.txt": f"{comparison}\n".encode(),
        "compare.json": f"{json_text(comparison.facts())}\n".encode(),
        "compare.csv": table.encode(),
        "compare.png": png_bytes(lambda: plot_waterfall(comparison)[0], title),
        "compare.svg": svg_bytes(lambda: plot_waterfall(comparison)[0], title),
    }

"""The command `tpusim scaling`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tpusim.base.csv_cells import frame_csv
from tpusim.base.errors import PlanError, blame
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.base.text_width import printed_on
from tpusim.cli.progress import show_work
from tpusim.report import check_folder, plot_scaling, scaling_data
from tpusim.runfile import read_run
from tpusim.sweeps.scaling import Scaling, scaling
from tpusim.validation.measured_points import with_measured


def scaling_file(
    path: str,
    settings: Sequence[str],
    folder: Path | None,
    *,
    chips: str | None,
    slices: str | None,
    axis: str | None,
    measured: str | None,
    as_json: bool,
    quiet: bool = False,
) -> str:
    """Return the scaling curves of a run; a folder gets the table, the JSON and the figure."""
    run = read_run(path, settings)
    if folder is not None:
        check_folder(folder)
    over = {"chips": _numbers("--chips", chips), "slices": _numbers("--slices", slices)}
    with blame(run.where), show_work("scaling", quiet=quiet):
        found = scaling(run.model, run.plan, run.pod, axis=axis, input=run.input, **over)
    found = with_measured(found, measured)
    answer = scaling_json(found) if as_json else str(found)
    if folder is None:
        return answer
    with printed_on(None):
        write_scaling(found, folder)
    return answer if as_json else f"{answer}\n\nreport      {folder}"


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Return the numbers of `64,128,256`. Raise PlanError for anything else."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,7}(,[0-9]{1,7})*", text):
        raise PlanError(f"{option} is {text!r}; write numbers such as 64,128,256")
    return [int(number) for number in text.split(",")]


def scaling_json(found: Scaling) -> str:
    """Return the curves as JSON: what grows, and an object for each point; NaN is null."""
    facts = {
        "model": found.model.name,
        "slice": str(found.pod),
        "grows": found.grows,
        "points": json.loads(found.table.to_json(orient="records", double_precision=15)),
    }
    return json_text(facts)


def write_scaling(found: Scaling, folder: Path) -> None:
    """Write `scaling.txt`, `.csv`, `.json`, `.png` and `.svg` into `folder`.

    Raise FileError if it cannot be written.
    """
    from tpusim.report.figures.render import png_bytes, svg_bytes

    title = f"{found.model.name} from {found.pod}"
    curves = scaling_data(found.table)
    files = {
        "scaling.txt": f"{found}\n".encode(),
        "scaling.csv": frame_csv(found.table).encode(),
        "scaling.json": f"{scaling_json(found)}\n".encode(),
        "scaling.png": png_bytes(lambda: plot_scaling(curves, title=title), title),
        "scaling.svg": svg_bytes(lambda: plot_scaling(curves, title=title), title),
    }
    write_files(folder, files)

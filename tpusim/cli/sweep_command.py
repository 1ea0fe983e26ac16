"""The command `tpusim sweep`."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from tpusim.base.csv_cells import frame_csv
from tpusim.base.errors import InterruptedWorkError, blame
from tpusim.base.json_text import json_text
from tpusim.base.text_width import wrapped
from tpusim.cli.executor_option import executor_of
from tpusim.cli.progress import show_progress
from tpusim.runfile import read_sweep
from tpusim.sweeps import Space, sweep
from tpusim.sweeps.format import TEXT_INDENT, refused_kinds, sweep_text

REFUSED = 3
"""The exit code of a sweep in which every plan of a kind is refused."""


def sweep_file(
    path: str,
    settings: Sequence[str],
    folder: Path | None,
    workers: int | None,
    address: str | None,
    *,
    as_csv: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> tuple[str, int]:
    """Return the report of a sweep, or its table, and the exit code; a folder gets the table too.

    address: of the Dask scheduler whose workers run it, in place of processes of this machine.
    as_csv, as_json: return the table as CSV or JSON, and print what was refused on stderr.
    """
    where_run = executor_of(address, workers)
    given = read_sweep(path, settings)
    run = given.run
    began = monotonic()
    with blame(run.where):
        space = Space(base=run.plan, **given.tries)
        progress_shown = show_progress("sweep", "plans", quiet=quiet)
        with _resumable(folder), where_run as executor, progress_shown as progress:
            table = sweep(
                run.model,
                space,
                run.pod,
                input=run.input,
                workers=workers,
                executor=executor,
                progress=progress,
                out=folder,
            )
    refused = list(refused_kinds(table, _kinds(space)))
    code = REFUSED if refused else 0
    if as_csv or as_json:
        for line in refused:
            print(line, file=sys.stderr)
        if as_json:
            return sweep_json(table), code
        return frame_csv(table).rstrip("\n"), code
    where = f"shapes of {run.pod.chip.name}" if space.shapes else run.pod
    head = (
        f"{len(table):,} plans of {run.model.name} on {where} ({run.pod.chips} chips) "
        f"in {monotonic() - began:.1f} s"
    )
    answer = sweep_text(table, head)
    if folder is not None:
        answer = f"{answer}\n\ntable       {folder}"
    if refused:
        answer = "\n".join(
            [answer, "", *(line for each in refused for line in wrapped(each, "", TEXT_INDENT))]
        )
    return answer, code


def _kinds(space: Space) -> list[str]:
    """Return the columns whose values a user wrote one by one."""
    listed = space.shapes is not None and not isinstance(space.shapes, str)
    return [*space.vary, *(["topology"] if listed else [])]


@contextmanager
def _resumable(folder: Path | None) -> Iterator[None]:
    """Say, where Ctrl-C ends the sweep, how it goes on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise InterruptedWorkError(
            "interrupted, and no table is kept, as there is no --out DIR; with one, the same "
            "command goes on where it stopped"
            if folder is None
            else f"interrupted; the plans that are done are in {folder}: the same command goes on "
            "where it stopped"
        ) from stop


def sweep_json(table: Any) -> str:
    """Return the table of a sweep as JSON, an object for each row; NaN is null."""
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    return json_text({"plans": rows})

"""The command `tpusim search`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeAlias

from tpusim.base.csv_cells import frame_csv
from tpusim.base.errors import blame
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.base.text_width import printed_on, unbroken
from tpusim.cli.app import INTERRUPTED
from tpusim.cli.executor_option import executor_of
from tpusim.cli.progress import now_and_then
from tpusim.report import check_folder
from tpusim.runfile import read_search
from tpusim.searches import PlanSpace, SearchResult, SearchState, search
from tpusim.searches.best import LOCAL
from tpusim.searches.objectives import OBJECTIVES, checked_objectives
from tpusim.searches.report import (
    left_out_lines,
    search_facts,
    search_frame,
    search_text,
    space_text,
)
from tpusim.searches.request import SearchRequest
from tpusim.sweeps.format import TEXT_INDENT

ReportProgress: TypeAlias = Callable[[SearchState], None]


def search_file(
    path: str,
    settings: Sequence[str],
    folder: Path | None,
    workers: int | None,
    address: str | None,
    *,
    local: bool,
    count: bool,
) -> str | tuple[str, int]:
    """Return the report of a search; a folder gets the table of the plans that it simulated.

    After Ctrl-C it is the report of the best plans so far, with the exit code of Ctrl-C.

    address: of the Dask scheduler whose workers simulate, in place of processes of this machine.
    local: search locally, without a proof.
    count: only say how many plans there are.
    """
    where_run = executor_of(address, workers)
    given = read_search(path, settings)
    if folder is not None:
        check_folder(folder)
    with blame(given.where):
        asked = SearchRequest(**{**given.keys, **({"method": LOCAL} if local else {})})
        space = asked.space(given.plan, given.pod).of(given.model)
        counted = f"{space_text(space)}, of {given.model.name}"
        if count:
            return "\n".join([f"search      {counted}", *map(_continued, left_out_lines(space))])
        unit = OBJECTIVES[checked_objectives(asked.objective)[0]].unit
        with where_run as executor, _progress(unit, counted) as progress:
            found = search(
                given.model,
                space,
                **asked.how,
                run=given.train,
                input=given.input,
                workers=workers,
                executor=executor,
                progress=progress,
            )
    answer = search_text(found, space, given.model.name)
    if folder is not None:
        with printed_on(None):
            page = search_text(found, space, given.model.name)
        write_search(found, space, page, folder)
        answer = f"{answer}\n\ntable       {folder}"
    return (answer, INTERRUPTED) if found.interrupted else answer


def _continued(text: str) -> str:
    return "\n".join(unbroken(text, TEXT_INDENT, TEXT_INDENT))


def write_search(found: SearchResult, space: PlanSpace, page: str, folder: Path) -> None:
    """Write `search.txt`, `.json`, `.csv` and `.parquet` into `folder`.

    Raise FileError if it cannot be written.
    """
    table = search_frame(found, space)
    files = {
        "search.txt": f"{page}\n".encode(),
        "search.json": f"{json_text(search_facts(found))}\n".encode(),
        "search.csv": frame_csv(table).encode(),
        "search.parquet": table.to_parquet(None, index=False),
    }
    write_files(folder, files)


def _progress(unit: str, counted: str) -> AbstractContextManager[ReportProgress]:
    """Show how the search goes, on a terminal after the count of its plans."""
    if not sys.stderr.isatty():
        return nullcontext(now_and_then(lambda state: _line(state, unit)))
    print(f"search      {counted}", file=sys.stderr, flush=True)
    return _progress_bar(unit)


def state_text(state: SearchState, unit: str) -> str:
    """Return the best so far, the best possible and the gap: `best 21.3 s, ..., gap 4.2%`."""
    if state.best == float("inf"):
        return "no plan that fits yet"
    if not state.possible:
        return f"best {state.best:.4g} {unit}, nothing proved"
    return f"best {state.best:.4g} {unit}, possible {state.possible:.4g}, gap {state.gap:.1%}"


@contextmanager
def _progress_bar(unit: str) -> Iterator[ReportProgress]:
    """Show a bar on the terminal until the search is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(20), MofNCompleteColumn(), "plans", TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("bounding all plans", total=None)

        def report(state: SearchState) -> None:
            total = state.simulated + state.left
            text = state_text(state, unit)
            bar.update(task, completed=state.simulated, total=total, description=text)

        yield report


def _line(state: SearchState, unit: str) -> str:
    """Return the line of a log; none at the end."""
    if not state.left:
        return ""
    counts = f"{state.simulated:,} simulated, {state.left:,} may be better"
    return f"search      {counts}; {state_text(state, unit)}"

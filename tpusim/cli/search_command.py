"""How `tpusim search` shows its progress, and its files."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeAlias

from tpusim.base.csv_cells import frame_csv
from tpusim.base.json_text import json_text
from tpusim.base.plain_text import visible
from tpusim.base.text_files import write_files
from tpusim.base.text_width import unbroken
from tpusim.cli.progress import drawn, now_and_then
from tpusim.searches import PlanSpace, SearchResult, SearchState
from tpusim.searches.objectives import Objective
from tpusim.searches.report import (
    left_out_lines,
    search_facts,
    search_frame,
)
from tpusim.sweeps.format import TEXT_INDENT

ReportProgress: TypeAlias = Callable[[SearchState], None]


def count_text(counted: str, space: PlanSpace, *, as_json: bool) -> str:
    """Return how many plans there are, and what is left out of them."""
    if as_json:
        return json_text(
            {"plans": len(space), "groups": space.groups, "not_plans": dict(space.left_out)}
        )
    lines = ("\n".join(unbroken(text, TEXT_INDENT, TEXT_INDENT)) for text in left_out_lines(space))
    return "\n".join([f"search      {counted}", *lines])


def search_json(found: SearchResult, space: PlanSpace) -> str:
    """Return the numbers of a search as JSON, with an object for each plan simulated."""
    rows = search_frame(found, space).to_json(orient="records", double_precision=15)
    return json_text({**search_facts(found), "tried": json.loads(rows)})


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


def show_search(
    goal: Objective, counted: str, *, quiet: bool = False
) -> AbstractContextManager[ReportProgress]:
    """Show how the search goes, on a terminal after the count of its plans."""
    if quiet:
        return nullcontext(lambda state: None)
    if not sys.stderr.isatty():
        return nullcontext(now_and_then(lambda state: _line(state, goal)))
    print(visible(f"search      {counted}"), file=sys.stderr, flush=True)
    return _progress_bar(goal)


def state_text(state: SearchState, goal: Objective) -> str:
    """Return the best so far, the best possible and the gap: `best 21.3 s, ..., gap 4.2%`."""
    if state.best == float("inf"):
        return "no plan that fits yet"
    if not state.possible:
        return f"best {goal.words(state.best)}, nothing proved"
    possible = goal.shown(state.possible)
    return f"best {goal.words(state.best)}, possible {possible}, gap {state.gap:.1%}"


@contextmanager
def _progress_bar(goal: Objective) -> Iterator[ReportProgress]:
    """Show a bar on the terminal until the search is done."""
    from rich.progress import BarColumn, MofNCompleteColumn

    with drawn(BarColumn(20), MofNCompleteColumn(), "plans", "{task.description}") as bar:
        task = bar.add_task("bounding all plans", total=None)

        def report(state: SearchState) -> None:
            total = state.simulated + state.left
            text = state_text(state, goal)
            bar.update(task, completed=state.simulated, total=total, description=text)

        yield report


def _line(state: SearchState, goal: Objective) -> str:
    """Return the line of a log; none at the end."""
    if not state.left:
        return ""
    counts = f"{state.simulated:,} simulated, {state.left:,} may be better"
    return f"search      {counts}; {state_text(state, goal)}"

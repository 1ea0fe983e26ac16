"""The command `tpusim sweep`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from tpusim.base.errors import InterruptedWorkError, TpusimError, blame
from tpusim.exploration import Space, cluster, sweep
from tpusim.exploration.format import refused_kinds, sweep_text, wrapped
from tpusim.runfile import read_sweep

ReportProgress: TypeAlias = Callable[[int, int], None]

PROGRESS_INTERVAL_S = 10.0
"""Seconds between two progress lines without a terminal."""


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
) -> tuple[str, int]:
    """Return the report of a sweep, or its table, and the exit code; a folder gets the table too.

    address: of the Dask scheduler whose workers run it, in place of processes of this machine.
    as_csv: return the table as CSV, and print what was refused on stderr.
    """
    if address is not None and workers is not None:
        raise TpusimError("--workers is for this machine and --cluster for others; give one")
    given = read_sweep(path, settings)
    run = given.run
    began = monotonic()
    with blame(run.where):
        space = Space(base=run.plan, **given.tries)
        where_run = nullcontext() if address is None else cluster(address)
        with _resumable(folder), where_run as executor, _progress() as progress:
            table = sweep(
                run.model,
                run.pod,
                space,
                workers=workers,
                executor=executor,
                progress=progress,
                out=folder,
            )
    refused = list(refused_kinds(table, _kinds(space)))
    code = REFUSED if refused else 0
    if as_csv:
        for line in refused:
            print(line, file=sys.stderr)
        return table.to_csv(index=False, lineterminator="\n").rstrip("\n"), code
    where = f"shapes of {run.pod.chip.name}" if space.shapes else run.pod
    head = (
        f"{len(table):,} plans of {run.model.name} on {where} ({run.pod.chips} chips) "
        f"in {monotonic() - began:.1f} s"
    )
    answer = sweep_text(table, head)
    if folder is not None:
        answer = f"{answer}\n\ntable       {folder}"
    if refused:
        answer = "\n".join([answer, "", *(line for each in refused for line in wrapped(each))])
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


def _progress() -> AbstractContextManager[ReportProgress]:
    return _progress_bar() if sys.stderr.isatty() else _progress_lines()


@contextmanager
def _progress_bar() -> Iterator[ReportProgress]:
    """Show a bar on the terminal until the sweep is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "plans", TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sweep")
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _progress_lines() -> Iterator[ReportProgress]:
    """Print a line now and then for readers of a log; none for a short sweep."""
    last = monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if monotonic() - last >= PROGRESS_INTERVAL_S and done < total:
            last = monotonic()
            print(f"sweep       {done:,} of {total:,} plans", file=sys.stderr, flush=True)

    yield report

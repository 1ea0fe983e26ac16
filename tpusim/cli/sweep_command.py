"""The command `tpusim sweep`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from tpusim.base.errors import TpusimError, blame
from tpusim.exploration import Space, cluster, sweep
from tpusim.exploration.format import sweep_text
from tpusim.runfile import read_sweep

ReportProgress: TypeAlias = Callable[[int, int], None]

PROGRESS_INTERVAL_S = 10.0
"""Seconds between two progress lines without a terminal."""


def sweep_file(
    path: str,
    settings: Sequence[str],
    folder: Path | None,
    workers: int | None,
    address: str | None,
) -> str:
    """Return the report of a sweep; a folder gets its table as a Parquet dataset.

    address: of the Dask scheduler whose workers run it, in place of processes of this machine.
    """
    if address is not None and workers is not None:
        raise TpusimError("--workers is for this machine and --cluster for others; give one")
    given = read_sweep(path, settings)
    run = given.run
    began = monotonic()
    with blame(run.where):
        space = Space(base=run.plan, **given.tries)
        where_run = nullcontext() if address is None else cluster(address)
        with where_run as executor, _progress() as progress:
            table = sweep(
                run.model,
                run.pod,
                space,
                workers=workers,
                executor=executor,
                progress=progress,
                out=folder,
            )
    where = f"shapes of {run.pod.chip.name}" if space.shapes else run.pod
    head = (
        f"{len(table):,} plans of {run.model.name} on {where} ({run.pod.chips} chips) "
        f"in {monotonic() - began:.1f} s"
    )
    answer = sweep_text(table, head)
    return answer if folder is None else f"{answer}\n\ntable       {folder}"


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

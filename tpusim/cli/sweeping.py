"""What `tpusim sweep` does."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import monotonic

from tpusim.errors import blame
from tpusim.runfile import read_sweep
from tpusim.search import Space, sweep
from tpusim.search.text import text

Progress = Callable[[int, int], None]

QUIET = 10.0
"""Seconds between two lines of progress where there is no terminal."""


def sweeping(path: str, settings: Sequence[str], folder: Path | None, workers: int | None) -> str:
    """The report of a sweep; with a folder, its table is written there as a Parquet dataset."""
    given = read_sweep(path, settings)
    run = given.run
    began = monotonic()
    with blame(run.where):
        space = Space(base=run.plan, **given.tries)
        with _progress() as progress:
            table = sweep(run.model, run.pod, space, workers=workers, progress=progress, out=folder)
    where = f"shapes of {run.pod.chip.name}" if space.shapes else run.pod
    head = (
        f"{len(table):,} plans of {run.model.name} on {where} ({run.pod.chips} chips) "
        f"in {monotonic() - began:.1f} s"
    )
    said = text(table, head)
    return said if folder is None else f"{said}\n\ntable       {folder}"


def _progress() -> AbstractContextManager[Progress]:
    return _bar() if sys.stderr.isatty() else _plain()


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar on the terminal, which goes when the sweep is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    shown = (BarColumn(), MofNCompleteColumn(), "plans", TimeRemainingColumn())
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sweep")
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


@contextmanager
def _plain() -> Iterator[Progress]:
    """A line now and then for whoever reads the log; none for a short sweep."""
    last = monotonic()

    def tell(done: int, whole: int) -> None:
        nonlocal last
        if monotonic() - last >= QUIET and done < whole:
            last = monotonic()
            print(f"sweep       {done:,} of {whole:,} plans", file=sys.stderr, flush=True)

    yield tell

"""Progress of long commands: a bar on a terminal, lines in a log, nothing where it is quiet."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, ParamSpec, TypeAlias

from tpusim.base.plain_text import visible_lines

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

State = ParamSpec("State")
ReportProgress: TypeAlias = Callable[[int, int], None]

PROGRESS_INTERVAL_S = 10.0
"""Seconds between two progress lines without a terminal."""


def show_progress(
    command: str, things: str, *, quiet: bool = False
) -> AbstractContextManager[ReportProgress]:
    """Return a context whose function takes how many are done, and of how many.

    command: of the command line, for lines of a log.
    things: a plural, for what is counted: `plans`.
    """
    if quiet:
        return nullcontext(lambda done, total: None)
    if sys.stderr.isatty():
        return _bar(things)
    return nullcontext(now_and_then(partial(_line, command, things)))


@contextmanager
def show_work(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Show on a terminal that work goes on whose length is not known, with its seconds."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with drawn(SpinnerColumn(), what, TimeElapsedColumn()) as bar:
        bar.add_task(what)
        yield


def drawn(*columns: "ProgressColumn | str") -> "Progress":
    """Return a row of columns on the terminal, which goes when the work is done."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def _bar(things: str) -> Iterator[ReportProgress]:
    """Show a bar on the terminal until the work is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    with drawn(BarColumn(), MofNCompleteColumn(), things, TimeRemainingColumn()) as bar:
        task = bar.add_task(things)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def now_and_then(line: Callable[State, str]) -> Callable[State, None]:
    """Return a function that prints the line of a state now and then, for readers of a log.

    line: of a state; empty where there is nothing to say. For short work none is printed.
    """
    last = monotonic()

    def report(*state: State.args, **named: State.kwargs) -> None:
        nonlocal last
        if monotonic() - last >= PROGRESS_INTERVAL_S and (text := line(*state, **named)):
            last = monotonic()
            print(visible_lines(text), file=sys.stderr, flush=True)

    return report


def _line(command: str, things: str, done: int, total: int) -> str:
    return f"{command:<12}{done:,} of {total:,} {things}" if done < total else ""

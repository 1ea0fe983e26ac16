"""Run chunks of work in processes, or on any executor."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from tpusim.base.errors import TpusimError
from tpusim.base.shown_value import shown
from tpusim.base.worker_team import WorkerEndedError, WorkerTeam

FEW_PLANS = 1000
"""Plans of a search for which no processes are started, as it simulates few of them."""

MOST_SUBMITTED = 512
"""Chunks that an executor holds at a time: several for each worker of a large cluster."""

Chunk = TypeVar("Chunk")
Rows = TypeVar("Rows")


def run_chunks(
    function: Callable[[Chunk], Rows],
    work: Iterable[tuple[int, Chunk]],
    processes: int,
    executor: Executor | None = None,
    ahead: int = MOST_SUBMITTED,
    alone: Callable[[], bool] = lambda: False,
) -> Generator[tuple[int, Chunk, Rows]]:
    """Yield each chunk with its number and `function` of it, in the order in which they finish.

    ahead: chunks that wait at a time; the next is taken from `work` when one of them has finished.
    alone: is asked before each chunk until it says no; until then this process runs them.

    Ctrl-C is left to this process. Raise TpusimError if a process of this machine is killed.
    """
    rest = iter(work)
    if executor is not None:
        yield from _submitted(function, rest, executor, ahead)
        return
    while processes == 1 or alone():
        due = next(rest, None)
        if due is None:
            return
        yield (*due, function(due[1]))
    with worker_pool(processes) as pool:
        yield from _submitted(function, rest, pool, ahead)


@contextmanager
def worker_pool(processes: int, *, finish: bool = False) -> Iterator[Executor]:
    """Yield processes that leave Ctrl-C to this one, and end when it ends, even if it is killed.

    finish: wait at the end for the chunks that are being worked on.
    """
    team = WorkerTeam(processes)
    try:
        yield team
    except WorkerEndedError as error:
        raise TpusimError(
            f"{error}; run the same again (a sweep with a folder for its table continues where it "
            "stopped), with fewer workers if memory is short"
        ) from error
    finally:
        team.shutdown(wait=finish, cancel_futures=True)
        team.end()


def check_workers(workers: object, executor: object, progress: object) -> None:
    """Raise TpusimError for what is no number of processes, no executor or no function."""
    whole = isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1
    if workers is not None and not whole:
        raise TpusimError(f"workers is {shown(workers)}; write a whole number from 1 up")
    if executor is not None and not isinstance(executor, Executor):
        raise TpusimError(
            f"executor is {shown(executor)}; write an executor of concurrent.futures, such as that "
            "of ts.cluster(address)"
        )
    if progress is not None and not callable(progress):
        raise TpusimError(f"progress is {shown(progress)}; write a function that is called")


def process_count(workers: int | None, plans: int, chunks: int) -> int:
    """Return the number of processes: the CPUs available to this one, or 1 for few plans."""
    if workers is None:
        return 1 if plans <= FEW_PLANS else min(usable_cpus(), chunks)
    return max(1, min(workers, chunks))


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _submitted(
    function: Callable[[Chunk], Rows],
    rest: Iterator[tuple[int, Chunk]],
    executor: Executor,
    ahead: int,
) -> Iterator[tuple[int, Chunk, Rows]]:
    waiting: dict[Future[Rows], tuple[int, Chunk]] = {}
    try:
        while True:
            for number, chunk in islice(rest, ahead - len(waiting)):
                waiting[executor.submit(function, chunk)] = number, chunk
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                number, chunk = waiting.pop(future)
                yield number, chunk, future.result()
    finally:
        for future in waiting:
            future.cancel()

"""Run chunks of work in processes, or on any executor.

Where there is one, workers come from a fork server: a process without threads that has loaded what
they run, so they are ready at once. A fork of this process, which may have threads (a notebook's,
JAX's), may hang. Workers need nothing of the caller's script, so it is not run again in them and
needs no `if __name__ == "__main__"`. They end with this process, however it ends: each holds both
ends of the queue that it waits at, so it would not notice by itself.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import active_children, get_all_start_methods, get_context, parent_process
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.context import BaseContext
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from types import ModuleType
from typing import TypeVar

from tpusim.base.errors import TpusimError
from tpusim.base.shown_value import shown

FEW_PLANS = 1000
"""Plans of a search for which no processes are started, as it simulates few of them."""

MOST_SUBMITTED = 512
"""Chunks that an executor holds at a time: several for each worker of a large cluster."""

_LOADED = ("tpusim.sweeps.rows",)
"""Modules that the workers of a sweep run."""

_ENDED = "ended from outside, perhaps for lack of memory"
_AGAIN = (
    "run the same again (a sweep with a folder for its table continues where it stopped), with "
    "fewer workers if memory is short"
)

Chunk = TypeVar("Chunk")
Rows = TypeVar("Rows")


def run_chunks(
    function: Callable[[Chunk], Rows],
    work: Iterable[tuple[int, Chunk]],
    processes: int,
    executor: Executor | None = None,
    ahead: int = MOST_SUBMITTED,
    alone: Callable[[], bool] = lambda: False,
) -> Generator[tuple[int, Chunk, Rows], None, None]:
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


def prepare_workers(loaded: Sequence[str] = _LOADED) -> BaseContext:
    """Start the fork server, if there is one, and return the context of workers.

    It loads what workers run while this process goes on. One that has started is left as it is.

    loaded: names of modules.
    """
    served = "forkserver" in get_all_start_methods()
    context = get_context("forkserver" if served else "spawn")
    if served:
        from multiprocessing.forkserver import ensure_running

        context.set_forkserver_preload(list(loaded))
        with _script_hidden():
            ensure_running()
    return context


@contextmanager
def worker_pool(processes: int) -> Iterator[Executor]:
    """Yield processes that leave Ctrl-C to this one, and end when it ends, even if it is killed.

    What they work on at the end is not waited for.
    """
    context = prepare_workers()
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, context, initializer=_begin_worker)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise TpusimError(f"a worker process was {_ENDED}; {_AGAIN}") from error
    except _NotStartedError:
        for child in set(active_children()) - others:
            child.kill()  # it would wait for work for ever
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _NotStartedError(TpusimError):
    """A pool of which some process could not be started."""


def _begin_worker() -> None:
    signal(SIGINT, SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait_for_any([parent.sentinel])
        os._exit(1)


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
            due = tuple(islice(rest, ahead - len(waiting)))
            with _script_hidden():
                for number, chunk in due:
                    waiting[_submit(executor, function, chunk)] = number, chunk
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                number, chunk = waiting.pop(future)
                yield number, chunk, future.result()
    finally:
        for future in waiting:
            future.cancel()


def _submit(executor: Executor, function: Callable[[Chunk], Rows], chunk: Chunk) -> Future[Rows]:
    """Submit a chunk; the first ones start processes, which may fail or be killed meanwhile."""
    try:
        return executor.submit(function, chunk)
    except OSError as error:
        raise _NotStartedError(
            f"a worker process could not be started, or was {_ENDED} ({error.strerror}); {_AGAIN}"
        ) from error


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Hide the caller's script from the processes that start in the meantime."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script

"""Run chunks of work in processes, or on any executor.

Workers are spawned, because a fork of a process with threads (a notebook's, JAX's) may hang. They
need nothing of the caller's script, so it is not run again in them and needs no
`if __name__ == "__main__"`.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from signal import SIG_IGN, SIGINT, signal
from types import ModuleType
from typing import TypeVar

from tpusim.base.errors import TpusimError

FEW_PLANS = 128
"""This process simulates as many plans before others have started."""

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
) -> Iterator[tuple[int, Chunk, Rows]]:
    """Yield each chunk with its number and `function` of it, in the order in which they finish.

    ahead: chunks that wait at a time; the next is taken from `work` when one of them has finished.

    Ctrl-C is left to this process. Raise TpusimError if a process of this machine is killed.
    """
    if executor is not None:
        yield from _submitted(function, work, executor, ahead)
    elif processes == 1:
        yield from ((number, chunk, function(chunk)) for number, chunk in work)
    else:
        spawn, ignore = get_context("spawn"), (SIGINT, SIG_IGN)
        with ProcessPoolExecutor(processes, spawn, initializer=signal, initargs=ignore) as pool:
            yield from _submitted(function, work, pool, ahead)


def process_count(workers: int | None, plans: int, chunks: int) -> int:
    """Return the number of processes: the CPUs available to this one, or 1 for few plans."""
    if workers is None:
        return 1 if plans <= FEW_PLANS else min(_cpus(), chunks)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise TpusimError(f"workers is {workers!r}; write a whole number from 1 up")
    return max(1, min(workers, chunks))


def _cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _submitted(
    function: Callable[[Chunk], Rows],
    work: Iterable[tuple[int, Chunk]],
    executor: Executor,
    ahead: int,
) -> Iterator[tuple[int, Chunk, Rows]]:
    waiting: dict[Future[Rows], tuple[int, Chunk]] = {}
    rest = iter(work)
    try:
        while True:
            with _script_hidden():
                for number, chunk in islice(rest, ahead - len(waiting)):
                    waiting[executor.submit(function, chunk)] = number, chunk
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                number, chunk = waiting.pop(future)
                yield number, chunk, future.result()
    except BrokenProcessPool as error:
        raise TpusimError(
            "a worker process was ended from outside, perhaps for lack of memory; run the same "
            "again (a sweep with a folder for its table continues where it stopped)"
        ) from error
    finally:
        for future in waiting:
            future.cancel()


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Hide the caller's script from the processes that start in the meantime."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script

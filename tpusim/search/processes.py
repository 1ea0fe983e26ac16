"""Run chunks of work in processes, or on any executor.

Workers are spawned, because a fork of a process with threads (a notebook's, JAX's) may hang. They
need nothing of the caller's script, so it is not run again in them and needs no
`if __name__ == "__main__"`.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from types import ModuleType
from typing import TypeVar

from tpusim.base.errors import TpusimError

FEW_PLANS = 128
"""This process simulates as many plans before others have started."""

Chunk = TypeVar("Chunk")
Rows = TypeVar("Rows")


def run_chunks(
    function: Callable[[Chunk], Rows],
    work: Mapping[int, Chunk],
    processes: int,
    executor: Executor | None = None,
) -> Iterator[tuple[int, Rows]]:
    """Yield `function` of each chunk with its number, in the order in which they finish."""
    if executor is not None:
        yield from _submitted(function, work, executor)
    elif processes == 1:
        yield from ((number, function(chunk)) for number, chunk in work.items())
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            yield from _submitted(function, work, pool)


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
    function: Callable[[Chunk], Rows], work: Mapping[int, Chunk], executor: Executor
) -> Iterator[tuple[int, Rows]]:
    with _script_hidden():
        futures: dict[Future[Rows], int] = {
            executor.submit(function, chunk): number for number, chunk in work.items()
        }
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
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

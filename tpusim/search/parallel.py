"""Chunks of work over processes, or over any executor.

Workers are spawned: a fork of a process that has threads (a notebook's, JAX's) may hang. Nothing of
the caller's script is needed in them, so it is not run again there and needs no
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

from tpusim.errors import TpusimError

FEW = 128
"""Plans that this process has done before others have started."""

Given = TypeVar("Given")
Found = TypeVar("Found")


def run_all(
    function: Callable[[Given], Found], work: Mapping[int, Given], processes: int,
    executor: Executor | None = None,
) -> Iterator[tuple[int, Found]]:  # fmt: skip
    """`function` of each piece of work with its number, in the order in which they finish."""
    if executor is not None:
        yield from _submitted(function, work, executor)
    elif processes == 1:
        yield from ((number, function(given)) for number, given in work.items())
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            yield from _submitted(function, work, pool)


def processes(workers: int | None, plans: int, chunks: int) -> int:
    """How many processes to use: the CPUs that this one may use, and one for few plans."""
    if workers is None:
        return 1 if plans <= FEW else min(_cpus(), chunks)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise TpusimError(f"workers is {workers!r}; write a whole number from 1 up")
    return max(1, min(workers, chunks))


def _cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _submitted(
    function: Callable[[Given], Found], work: Mapping[int, Given], executor: Executor
) -> Iterator[tuple[int, Found]]:
    with _no_script():
        futures: dict[Future[Found], int] = {
            executor.submit(function, given): number for number, given in work.items()
        }
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


@contextmanager
def _no_script() -> Iterator[None]:
    """Hide the caller's script from the processes that start meanwhile."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script

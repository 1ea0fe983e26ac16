"""Processes that work for this one.

The first worker of a team is spawned: a fork of this process, which may have threads (a notebook's,
JAX's), may hang in a lock that one of them held. The first worker loads what the work needs and
then forks the others, which are ready at once; it has one thread, so that is safe. None needs the
caller's script, so it is not run again and needs no `if __name__ == "__main__"`.

Each worker has a connection of its own, whose end nobody else holds: if the worker ends, the
connection does, even in the middle of an answer. All hold the reading end of a pipe of which this
process alone holds the writing end: they end with it, however it ends.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from pickle import dumps, loads
from queue import SimpleQueue
from threading import Thread
from traceback import format_exc
from types import ModuleType
from typing import Any, TypeVar

from tpusim.base.errors import TpusimError

CAN_FORK = sys.platform == "linux"
END_S = 5.0
"""Seconds in which workers end, which takes milliseconds unless they are stopped."""

Answer = TypeVar("Answer")


class WorkerEndedError(TpusimError):
    """A worker that ended, or did not start, although nobody here wanted it to."""


class WorkerTeam(ThreadPoolExecutor):
    """Worker processes; a thread of this process waits for each while it works."""

    def __init__(self, processes: int) -> None:
        super().__init__(processes)
        self._processes = processes
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._life: Connection | None = None
        self._started: list[BaseProcess] = []

    def submit(
        self, function: Callable[..., Answer], /, *given: Any, **named: Any
    ) -> Future[Answer]:
        """Have a worker call a function; the first call starts them."""
        if self._life is None:
            try:
                self._start()
            except OSError as error:
                raise WorkerEndedError(
                    "a worker process could not be started, or was ended from outside "
                    f"({error.strerror})"
                ) from error
        return super().submit(self._call, function, given, named)

    def end(self) -> None:
        """End all workers, whatever they do."""
        if self._life is not None:
            self._life.close()
        for process in self._started:
            process.join(END_S)

    def _start(self) -> None:
        life, self._life = Pipe(duplex=False)
        pairs = [Pipe() for _ in range(self._processes)]
        theirs = [their for _, their in pairs]
        for team in [theirs] if CAN_FORK else [[their] for their in theirs]:
            self._started.append(_spawned(team, life))
        for own, their in pairs:
            self._idle.put(own)
            their.close()
        life.close()

    def _call(
        self, function: Callable[..., Answer], given: Sequence[Any], named: Mapping[str, Any]
    ) -> Answer:
        worker = self._idle.get()
        try:
            worker.send_bytes(dumps((function, given, named)))
            answer, error = loads(worker.recv_bytes())
        except (EOFError, OSError) as lost:
            raise WorkerEndedError(
                "a worker process was ended from outside, perhaps for lack of memory"
            ) from lost
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error
        found: Answer = answer
        return found


def _spawned(team: Sequence[Connection], life: Connection) -> BaseProcess:
    """Return the process of the first worker of a team, started."""
    process = get_context("spawn").Process(target=_begin, args=(team, life))
    with _surroundings_of_workers():
        process.start()
    return process


@contextmanager
def _surroundings_of_workers() -> Iterator[None]:
    """Hide the caller's script and Ctrl-C from processes that start in the meantime.

    They inherit that a signal is blocked, and so have it from their first instruction on.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if CAN_FORK else ()
    try:
        yield
    finally:
        if CAN_FORK:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        sys.modules["__main__"] = script


def _begin(team: Sequence[Connection], life: Connection) -> None:
    """Be the first worker of a team: load what its work needs, start the others, and work.

    life: ends with the process that gives the work.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads
    own, *others = team
    try:
        call = own.recv_bytes()
    except (EOFError, OSError):
        return
    with suppress(Exception):  # that of the answer
        loads(call)
    forked = []
    for other in others:
        if len(os.listdir("/proc/self/task")) > 1:
            _spawned([other], life)
        elif child := os.fork():
            forked.append(child)
        else:
            own, call, forked = other, b"", []
            break
    for each in team:
        if each is not own:
            each.close()
    end = Thread(target=_end_with, args=(life, forked), daemon=True)
    end.start()
    with suppress(EOFError, OSError):  # the end of the process that gives the work
        while True:
            if call:
                own.send_bytes(_answer(call))
            call = own.recv_bytes()
    end.join()


def _end_with(life: Connection, forked: Sequence[int]) -> None:
    """End this process when `life` ends, after those that it forked."""
    wait([life])
    for child in forked:
        os.waitpid(child, 0)
    os._exit(0)


def _answer(call: bytes) -> bytes:
    """Return what a call returns, and None; or None, and what it raises."""
    try:
        function, given, named = loads(call)
        return dumps((function(*given, **named), None))
    except Exception as error:
        error.add_note(format_exc())
        return dumps((None, error))

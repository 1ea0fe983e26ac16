"""A line on standard error while something takes long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

FIRST = 1.0
"""Seconds after which the line appears; what is done by then says nothing."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say `what`... while the body runs, with the seconds on a terminal, and how long it took."""
    done, start = Event(), monotonic()
    thread = Thread(target=_tell, args=(what, done, start), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tell(what: str, done: Event, start: float) -> None:
    terminal = sys.stderr.isatty()
    if done.wait(FIRST):
        return
    if not terminal:
        print(f"{what}...", file=sys.stderr, flush=True)
    while not done.wait(1.0):
        if terminal:
            print(f"\r{what}... {monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)
    again = "\r" if terminal else ""
    print(f"{again}{what}... {monotonic() - start:.1f} s", file=sys.stderr, flush=True)

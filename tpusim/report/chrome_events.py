"""Events of the Chrome trace format: metadata and slices, their times, and their file.

Times are in microseconds, rounded so that the end of a slice is where the next begins.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from tpusim.base.plain_text import visible

Event: TypeAlias = dict[str, Any]

MICROSECOND = 10**6
"""Picoseconds per microsecond."""

TICKS = 2**23
"""Parts of a microsecond to which times are rounded, an eighth of a picosecond each. Sums of such
numbers are exact in steps of up to 1000 s, so neighbours never overlap by a rounding error."""

GZIP_LEVEL = 6
"""The compression level: the highest takes three times as long for 7 % less."""


def packed(trace: Mapping[str, Any]) -> bytes:
    """Return the content of a file of a trace: the same trace gives the same bytes."""
    written = json.dumps(trace, separators=(",", ":"), ensure_ascii=False)
    return gzip.compress(written.encode(), GZIP_LEVEL, mtime=0)


def named(process: int, thread: int, name: str) -> Iterator[Event]:
    """Yield the events that name a thread and fix its position."""
    yield metadata("thread_name", process, thread, name=name)
    yield metadata("thread_sort_index", process, thread, sort_index=thread)


def metadata(what: str, process: int, thread: int = 0, **args: str | int) -> Event:
    """Return an event that says something of a process or a thread."""
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def complete(process: int, thread: int, name: str, span_ps: tuple[int, int], args: Event) -> Event:
    """Return a slice from one time to another, in picoseconds."""
    start, end = map(microseconds, span_ps)
    when = {"ts": start, "dur": end - start}
    return {"ph": "X", "name": visible(name), "pid": process, "tid": thread, **when, "args": args}


def microseconds(picoseconds: float) -> float:
    """Return a time in microseconds, rounded to a whole number of `TICKS`."""
    return round(picoseconds * TICKS / MICROSECOND) / TICKS

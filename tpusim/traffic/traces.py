"""Traces of requests in files, whatever their format."""

from pathlib import Path

import numpy as np

from tpusim.base.errors import TrafficError, blame
from tpusim.base.text_files import blame_reading, check_readable
from tpusim.traffic.csv_traces import INSTEAD, read_csv_trace
from tpusim.traffic.json_traces import BLOCK, read_mooncake_trace, read_sharegpt
from tpusim.traffic.requests import Requests
from tpusim.traffic.trace_rows import TracePart, TraceRows, arrivals_of, window_of

LARGEST_BYTES = 2**33
"""Size of the largest trace that is read."""

MS_PER_S = 1000


def read_trace(path: Path, part: TracePart) -> tuple[Requests, str]:
    """Return the requests of a trace, and its format in words.

    The format is told by the beginning of the file: `{` is a Mooncake trace, `[` is ShareGPT, and
    all else a table with a header.

    Raise TrafficError for a trace that cannot be read, FileError for a file that cannot.
    """
    with blame(str(path)):
        check_readable(path, "a trace", INSTEAD, LARGEST_BYTES)
        with blame_reading(INSTEAD), path.open("rb") as file:
            begin = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if not begin:
            raise TrafficError(f"an empty file; give {INSTEAD}")
        if begin == b"{":
            return _mooncake(path, part)
        if begin == b"[":
            return _sharegpt(path, part)
        rows, kind, failed = read_csv_trace(path, part)
        skipped = f", failures left out: {failed:,}" if failed else ""
        return _requests(rows, kind.per_s, part), f"{kind.name} trace {path.name}{skipped}"


def _mooncake(path: Path, part: TracePart) -> tuple[Requests, str]:
    rows, prefixes = read_mooncake_trace(path, INSTEAD)
    kept = window_of(rows.times, rows.times[0], MS_PER_S, part)
    requests = _requests(rows.at(kept), MS_PER_S, part, prefixes[kept])
    return requests, f"Mooncake trace {path.name}"


def _sharegpt(path: Path, part: TracePart) -> tuple[Requests, str]:
    if part.window is not None:
        raise TrafficError("ShareGPT has no arrival times; leave out window")
    rows, short = read_sharegpt(path, INSTEAD)
    said = f", conversations of one turn left out: {short:,}" if short else ""
    return _requests(rows, 1, part), f"ShareGPT file {path.name}, all at once{said}"


def _requests(
    rows: TraceRows, per_s: int, part: TracePart, prefixes: tuple[tuple[int, ...], ...] = ()
) -> Requests:
    """Return the first of rows as requests, the first one at 0. Raise TrafficError if none is."""
    rows = rows.at(slice(part.requests))
    if not len(rows.times):
        where = f" in window={part.window}" if part.window else ""
        raise TrafficError(f"no requests{where}; give a trace that has some, or another window")
    prefixes = prefixes[: part.requests]
    return Requests(
        arrival_ps=arrivals_of(rows.times, per_s),
        prompt=rows.prompt.astype(np.int64),
        output=rows.output.astype(np.int64),
        prefixes=prefixes,
        block=BLOCK if prefixes else 0,
    )

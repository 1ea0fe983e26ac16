"""Traces with commas: Azure, BurstGPT, BLIS, Splitwise, and plain tables, told by their header."""

import csv
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tpusim.base.close_names import close_names, listed
from tpusim.base.errors import TrafficError
from tpusim.base.plain_text import plain
from tpusim.base.shown_value import cut, shown, with_article
from tpusim.base.text_files import blame_reading
from tpusim.traffic.checks import MOST_REQUESTS
from tpusim.traffic.trace_rows import Numbers, TracePart, TraceRows, fault_of, window_of

CHUNK = 250_000
"""Lines that are read at a time."""

INSTEAD = "a trace: a CSV table with a header, JSON Lines, or JSON"

LONGER = "has more cells than the header; put a cell that holds commas in double quotes"

TOKEN_IDS = r"\[(?:\s*\d+\s*,)*\s*\d+\s*\]"
"""A list of token ids, whose length is the count."""


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """A format of traces, known by three columns of its header.

    columns: of arrivals, prompts and outputs.
    per_s: units of arrivals in a second; dates are read as nanoseconds.
    dated: arrivals are dates, such as `2024-05-12 00:00:00.001163+00:00`.
    failures: rows without tokens are requests that failed.
    """

    name: str
    columns: tuple[str, str, str]
    per_s: int = 1
    dated: bool = False
    failures: bool = False


FORMATS = (
    CsvFormat("Azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), 10**9, dated=True),
    CsvFormat("BurstGPT", ("Timestamp", "Request tokens", "Response tokens"), failures=True),
    CsvFormat("BLIS", ("arrival_time", "prefill_tokens", "decode_tokens")),
    CsvFormat("Splitwise", ("arrival_timestamp", "prompt_size", "token_size")),
    CsvFormat("plain", ("arrival_s", "prompt", "output")),
)
"""Sources: AzureLLMInferenceDataset2023.md and 2024.md of github.com/Azure/AzurePublicDataset;
README.md of github.com/HPMLL/BurstGPT; the documentation of inference-sim (BLIS); the traces of
splitwise-sim."""


def read_csv_trace(path: Path, part: TracePart) -> tuple[TraceRows, CsvFormat, int]:
    """Return the rows of a trace in a window, its format, and the failed requests left out.

    Reading ends where the part ends; rows after it are not checked.

    Raise TrafficError for a table that is no trace, or has a line that cannot be read.
    """
    header, lines = _header(path)
    kind = _format(header)
    kept: list[TraceRows] = []
    failed = count = 0
    first: Any = None
    last: Any = -np.inf
    for frame in _frames(path, len(header), lines):
        rows, failures = _rows(frame, header, kind, last)
        failed += failures
        if not len(rows.times):
            continue
        first, last = rows.times[0] if first is None else first, rows.times[-1]
        kept.append(rows.at(window_of(rows.times, first, kind.per_s, part)))
        count += len(kept[-1].times)
        if count > MOST_REQUESTS:
            raise TrafficError(
                f"more than {MOST_REQUESTS:,} requests; take a part, such as requests=1_000_000"
            )
        past = part.window is not None and last - first >= part.window[1] * kind.per_s
        if past or (part.requests is not None and count >= part.requests):
            break
    if first is None:
        raise TrafficError("no requests below the header; give a trace that has some")
    return TraceRows(*map(np.concatenate, zip(*kept, strict=True))), kind, failed


def _header(path: Path) -> tuple[list[str], int]:
    """Return the names of the first line that is not empty, and the lines until its end."""
    with blame_reading(INSTEAD), path.open(encoding="utf-8-sig", newline="") as file:
        return _first_line(file)


def _first_line(file: TextIO) -> tuple[list[str], int]:
    reader = csv.reader(file)
    try:
        cells = next((line for line in reader if any(line)), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise TrafficError(f"not a table of comma-separated values: {error}") from error
    return [plain(cell.strip()) for cell in cells], reader.line_num


def _format(header: Sequence[str]) -> CsvFormat:
    """Return the format of a header. Raise TrafficError, with the nearest format, if none fits."""
    for kind in FORMATS:
        if set(kind.columns) <= set(header):
            return kind
    scores = [
        sum(2 if name in header else bool(close_names(name, header)) for name in kind.columns)
        for kind in FORMATS
    ]
    if not any(scores):
        known = "; ".join(",".join(kind.columns) for kind in FORMATS)
        raise TrafficError(
            f"no known trace has the header {cut(','.join(header))!r}; "
            f"write these columns of one: {known}"
        )
    like = FORMATS[scores.index(max(scores))]
    missing = next(name for name in like.columns if name not in header)
    close = close_names(missing, [name for name in header if name not in like.columns])
    advice = f"rename {close[0]!r} to it" if close else f"the header has {listed(header)}"
    raise TrafficError(
        f"no column {missing!r}, which {with_article(like.name)} trace has; {advice}"
    )


def _frames(path: Path, columns: int, lines: int) -> Iterator[pd.DataFrame]:
    """Yield the cells below the header, many rows at a time, with the numbers of the lines.

    A column after the last one has what a row has beyond the header.

    lines: of the header and before it.
    """
    try:
        with pd.read_csv(
            path,
            header=None,
            skiprows=lines,
            names=list(range(columns + 1)),
            index_col=False,
            skip_blank_lines=False,
            low_memory=False,
            encoding="utf-8-sig",
            compression=None,
            keep_default_na=False,
            na_values=[""],
            chunksize=CHUNK,
        ) as reader:
            while (frame := _next(reader)) is not None:
                frame.index += lines + 1
                yield frame.dropna(how="all")
    except pd.errors.EmptyDataError:
        return
    except pd.errors.ParserWarning as error:
        raise TrafficError(f"each line {LONGER}") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        said = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        if found := re.search(r"in line (\d+), saw", said):
            raise TrafficError(f"line {found[1]} {LONGER}") from error
        raise TrafficError(f"not a table of comma-separated values: {said}") from error


def _next(reader: Iterator[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the next frame, None at the end. Raise ParserWarning where pandas drops cells."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return next(reader, None)


def _rows(
    frame: pd.DataFrame, header: Sequence[str], kind: CsvFormat, before: Any
) -> tuple[TraceRows, int]:
    """Return the rows of a frame and the failures among them. Raise TrafficError for a bad one.

    before: time of the row before the frame.
    """
    if not (longer := frame[len(header)].dropna()).empty:
        raise TrafficError(f"line {longer.index[0]} {LONGER}")
    found = [frame[header.index(name)] for name in kind.columns]
    failed = np.zeros(len(frame), dtype=np.bool_)
    if kind.failures:
        for cells in found[1:]:
            failed |= cells.isna().to_numpy() | (_numbers(cells) == 0)
        found = [cells[~failed] for cells in found]
    times = _dates(found[0]) if kind.dated else _numbers(found[0])
    rows = TraceRows(times, _tokens(found[1]), _tokens(found[2]))
    if fault := fault_of(rows, kind.columns, before):
        cells = found[kind.columns.index(fault.column)]
        value = cells.iloc[fault.row]
        said = "empty" if pd.isna(value) else shown(value)
        line = cells.index[fault.row]
        raise TrafficError(f"line {line}: {fault.column} is {said}{fault.clause}")
    return rows, int(failed.sum())


def _numbers(cells: "pd.Series[Any]") -> Numbers:
    """Return cells as int64 or float64; NaN where there is no number."""
    if cells.dtype.kind == "b":
        return np.full(len(cells), np.nan)
    values: NDArray[Any] = pd.to_numeric(cells, errors="coerce").to_numpy()
    return values if values.dtype == np.int64 else values.astype(np.float64)


def _tokens(cells: "pd.Series[Any]") -> NDArray[np.float64]:
    """Return counts of tokens; a list of token ids, such as `[5, 7]`, is counted."""
    values = _numbers(cells).astype(np.float64)
    if cells.dtype.kind in "iufb" or not np.isnan(values).any():
        return values
    text = cells.astype(str)
    counts = np.where(text.str.fullmatch(TOKEN_IDS), text.str.count(",") + 1, np.nan)
    return np.where(np.isnan(values), counts, values)


def _dates(cells: "pd.Series[Any]") -> NDArray[np.int64]:
    """Return dates as nanoseconds since 1970; NO_DATE where there is none of 1700 to 2200."""
    dates = pd.to_datetime(cells.astype(str), format="ISO8601", utc=True, errors="coerce")
    known = dates.where(dates.dt.year.between(1700, 2200)).dt.tz_localize(None)
    return np.asarray(known.dt.as_unit("ns").to_numpy().astype(np.int64))

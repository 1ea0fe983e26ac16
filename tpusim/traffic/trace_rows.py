"""Rows of a trace, whatever its format: their checks, the part that is kept, and their times."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import TrafficError
from tpusim.base.shown_value import shown
from tpusim.traffic.checks import LAST_PS, MOST_REQUESTS, MOST_TOKENS, number, whole
from tpusim.traffic.requests import Column

Numbers: TypeAlias = NDArray[np.float64] | NDArray[np.int64]

PS_PER_S = 1_000_000_000_000

NO_DATE = np.iinfo(np.int64).min
"""The number of a date that cannot be read, in numpy's dates."""

LAST_TIME = 2**62
"""Times between its negative and itself differ by less than an int64 holds."""


class Fault(NamedTuple):
    """A row that cannot be read: its place, its column, and the end of a sentence about it."""

    row: int
    column: str
    clause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePart:
    """The part of a trace that is kept.

    requests: the first so many of the window; None for all.
    window: its start and end, in seconds after the first request of the trace, the end excluded;
        None for the whole trace.
    """

    requests: int | None = None
    window: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.requests is not None:
            whole("requests", self.requests, MOST_REQUESTS)
        if self.window is None:
            return
        if not isinstance(self.window, tuple | list) or len(self.window) != 2:
            raise TrafficError(
                f"window is {shown(self.window)}; write its start and end in seconds after the "
                "first request, such as (0, 600)"
            )
        start = number("start of the window", self.window[0], 0, LAST_TIME)
        end = number("end of the window", self.window[1], 0, LAST_TIME)
        if start >= end:
            raise TrafficError(f"window is from {start:g} to {end:g} s; write a later end")


class TraceRows(NamedTuple):
    """Rows in the order of the trace, one element of each column per request.

    times: arrivals, in a unit of the trace; NaN or NO_DATE where there is none.
    prompt, output: tokens; NaN where there is no number.
    """

    times: Numbers
    prompt: NDArray[np.float64]
    output: NDArray[np.float64]

    def at(self, kept: slice | NDArray[Any]) -> "TraceRows":
        """Return some of the rows."""
        return TraceRows(self.times[kept], self.prompt[kept], self.output[kept])


def fault_of(
    rows: TraceRows, names: tuple[str, str, str], before: float | np.int64 = -np.inf
) -> Fault | None:
    """Return what is wrong with rows: lengths, or times out of order; None if nothing is.

    names: the columns of arrivals, prompts and outputs, for the message.
    before: time of the row before the first one.
    """
    times = rows.times
    if (bad := _first(~((times > -LAST_TIME) & (times < LAST_TIME)))) is not None:
        return Fault(bad, names[0], "; write the time of the arrival")
    for column, name in zip(rows[1:], names[1:], strict=True):
        known = (column >= 1) & (column <= MOST_TOKENS)
        if (bad := _first(~known | (np.where(known, column, 0) % 1 != 0))) is not None:
            return Fault(bad, name, "; write a whole number of at least 1, or remove the line")
    earlier = np.concatenate((times[:1] < before, times[1:] < times[:-1]))
    if (bad := _first(earlier)) is not None:
        return Fault(
            bad, names[0], f", earlier than in the line above; sort the lines by {names[0]}"
        )
    return None


def _first(bad: NDArray[np.bool_]) -> int | None:
    return int(bad.argmax()) if bad.any() else None


def window_of(times: Numbers, first: Any, per_s: float, part: TracePart) -> slice:
    """Return which rows are in the window of a part; times are ascending.

    first: time of the first request of the trace.
    per_s: units of time in a second.
    """
    if part.window is None:
        return slice(None)
    start, end = np.searchsorted((times - first) / per_s, part.window)
    return slice(int(start), int(end))


def arrivals_of(times: Numbers, per_s: int) -> Column:
    """Return ascending times, in a unit of the trace, as picoseconds after the first of them."""
    ps = PS_PER_S // per_s
    after = times - times[0]
    span = float(after[-1]) * ps
    if span > LAST_PS:
        raise TrafficError(
            f"the requests span {span / PS_PER_S / 86400:,.0f} days, and 106 can be simulated; "
            "take a part, such as window=(0, 3600)"
        )
    whole_times = after.dtype == np.int64
    return np.asarray(after * ps if whole_times else np.rint(after * ps), dtype=np.int64)

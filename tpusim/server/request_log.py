"""What is written down about each request while the server runs."""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tpusim.server.peak_use import PeakUse
from tpusim.server.served import Begun, Column, Served
from tpusim.server.span_log import SpanLog, joined_spans
from tpusim.traffic import Requests

Cells: TypeAlias = "array[int]"

NEVER = -1
"""The time of what never happens to a request, such as one that is refused."""

LOST = -2
"""The time at which a request is scheduled again while it waits for that."""

GAP_BITS = 8
"""Leading bits of a gap that its histogram keeps."""


def cells(column: Column) -> Cells:
    """Return a column in which single values are read faster than in an array of numpy."""
    return array("q", np.ascontiguousarray(column, np.int64).tobytes())


class RequestLog:
    """Columns with one value per request, the number of requests over time, and gaps.

    present_ps: the integral of the requests in the server over time, once all are answered.
    peak: the most that a rank asks of its limits.
    """

    def __init__(self, requests: Requests) -> None:
        count = len(requests)
        self.arrival = cells(requests.arrival_ps)
        self.prompt = cells(requests.prompt)
        self.asked = cells(requests.output)
        never = np.full(count, NEVER)
        self.scheduled, self.first, self.last, self.resumed = (cells(never) for _ in range(4))
        self.output, self.cached, self.preemptions = (cells(0 * never) for _ in range(3))
        self.gaps: defaultdict[int, int] = defaultdict(int)
        self.present_ps = 0
        self.peak = PeakUse()

    def answer(self, request: int, now: int, missing: int) -> None:
        """Note that a request leaves. missing: tokens of its answer that were not generated."""
        self.last[request] = now
        self.output[request] = self.asked[request] - missing
        self.present_ps += now

    def lose(self, request: int) -> None:
        """Note that a request has lost its replica; it is retried if it had begun."""
        if self.scheduled[request] >= 0:
            self.resumed[request] = LOST

    def schedule(self, request: int, now: int, cached: int) -> None:
        """Note that a request is in a step that begins now.

        cached: tokens of its prompt that are in the cache.
        """
        if self.scheduled[request] < 0:
            self.scheduled[request] = now
            self.cached[request] = cached
        elif self.resumed[request] == LOST:
            self.resumed[request] = now

    def gap(self, picoseconds: int, count: int) -> None:
        """Count times between two tokens of a request."""
        shift = picoseconds.bit_length() - GAP_BITS
        if shift > 0:
            picoseconds = (picoseconds >> shift << shift) + (1 << shift - 1)
        self.gaps[picoseconds] += count

    def begun(self, sent: int, now: int) -> Begun:
        """Return the first requests, of which so many were sent up to now."""
        arrival, first, last = (
            _column(each)[:sent].copy() for each in (self.arrival, self.first, self.last)
        )
        return Begun(now, arrival, first, last, self.peak)

    def served(self, logs: Sequence[SpanLog]) -> Served:
        """Return all that was written down."""
        gaps = np.array(sorted(self.gaps.items()), np.int64).reshape(-1, 2).T
        return Served(
            arrival_ps=_column(self.arrival),
            scheduled_ps=_column(self.scheduled),
            first_ps=_column(self.first),
            last_ps=_column(self.last),
            prompt=_column(self.prompt),
            output=_column(self.output),
            cached=_column(self.cached),
            preemptions=_column(self.preemptions),
            resumed_ps=_column(self.resumed),
            spans=joined_spans(logs),
            gaps=(gaps[0], gaps[1]),
            present_ps=self.present_ps,
            peak=self.peak,
        )


def _column(values: Cells) -> Column:
    return np.frombuffer(values, np.int64)

"""What a replica does over time, in a bounded number of spans."""

from collections.abc import Sequence

import numpy as np

from tpusim.server.served import Spans

MOST_SPANS = 32_768
"""Spans of a server at most; with more, those of a replica that follow each other are merged."""


class SpanLog:
    """Spans of one replica, each at least `grain_ps` long once there are too many.

    A span is start, end, time in steps, steps, decodes x steps, prefills, pages, waiting.
    """

    __slots__ = ("grain_ps", "most", "spans")

    def __init__(self, most: int) -> None:
        self.most = max(2, most)
        self.grain_ps = 0
        self.spans: list[list[int]] = []

    def add(
        self,
        start: int,
        end: int,
        steps: int,
        decodes: int,
        prefills: int,
        pages: int,
        waiting: int,
    ) -> None:
        """Add a run of steps; decodes are those of each step, prefills those of all."""
        span = [start, end, end - start, steps, decodes * steps, prefills, pages, waiting]
        self._append(span)
        if len(self.spans) > self.most:
            self._merge()

    def _append(self, span: list[int]) -> None:
        spans = self.spans
        if self.grain_ps and spans:
            last = spans[-1]
            if last[1] - last[0] < self.grain_ps:
                last[1] = span[1]
                for column in (2, 3, 4, 5):
                    last[column] += span[column]
                last[6:] = span[6:]
                return
        spans.append(span)

    def _merge(self) -> None:
        """Merge spans until half of them are left."""
        spans = self.spans
        self.grain_ps = max(2 * self.grain_ps, 2 * (spans[-1][1] - spans[0][0]) // self.most)
        self.spans = []
        for span in spans:
            self._append(span)


def joined_spans(logs: Sequence[SpanLog]) -> Spans:
    """Return the spans of all replicas, in the order of their start."""
    rows = [(*span, number) for number, log in enumerate(logs) for span in log.spans]
    rows.sort(key=lambda row: (row[0], row[-1]))
    table = np.array(rows, np.int64).reshape(-1, 9).T
    start, end, busy, steps, decodes, prefills, pages, waiting, replica = table
    return Spans(
        start_ps=start,
        end_ps=end,
        busy_ps=busy,
        steps=steps,
        replica=replica,
        decodes=(decodes + steps // 2) // np.maximum(steps, 1),
        prefills=prefills,
        pages=pages,
        waiting=waiting,
    )

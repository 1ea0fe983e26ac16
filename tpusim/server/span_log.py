"""What a replica does over time, in a bounded number of spans."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tpusim.server.served import Spans

MOST_SPANS = 32_768
"""Spans of a server at most; with more, those of a replica that follow each other are merged."""

Span: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""Start, end, time in steps, steps, decodes of all steps, prefills, pages, and who waits."""


class SpanLog:
    """Spans of one replica, each at least `grain_ps` long once there are too many."""

    __slots__ = ("grain_ps", "most", "spans")

    def __init__(self, most: int) -> None:
        self.most = max(2, most)
        self.grain_ps = 0
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        """Add a run of steps."""
        spans = self.spans
        if self.grain_ps and spans:
            start, end, busy, steps, decodes, prefills, _, _ = spans[-1]
            if end - start < self.grain_ps:
                _, end, more_busy, more_steps, more_decodes, more_prefills, pages, waiting = span
                spans[-1] = (
                    start,
                    end,
                    busy + more_busy,
                    steps + more_steps,
                    decodes + more_decodes,
                    prefills + more_prefills,
                    pages,
                    waiting,
                )
                return
        spans.append(span)
        if len(spans) > self.most:
            self._merge()

    def _merge(self) -> None:
        """Merge spans until about half of them are left."""
        spans, self.spans = self.spans, []
        self.grain_ps = max(2 * self.grain_ps, 2 * (spans[-1][1] - spans[0][0]) // self.most)
        for span in spans:
            self.add(span)


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

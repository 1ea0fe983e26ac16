"""How far a training run is at a time of its timeline, whose repetitions are not walked through."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tpusim.engine.training_loop import Activity, ActivitySpan, TimedEntry, TrainingTimeline


class Reached(NamedTuple):
    """What a run has done by a time.

    steps: whole steps.
    written: steps of the latest checkpoint that is written; None before the first.
    copied: steps of the latest copy in memory whose exchange is over; None before the first.
    spent_ps: the time of each activity, that of a step that has begun included.
    """

    steps: int
    written: int | None
    copied: int | None
    spent_ps: Counter[Activity]


class Progress:
    """A timeline that can be asked what is done by a time.

    A question takes a bisection at each level of the timeline's repetitions.
    """

    def __init__(self, timeline: TrainingTimeline, step_ps: int, first: int = 0) -> None:
        """Index a timeline.

        first: steps that are done when it begins.
        """
        self.total_ps = timeline.total_ps
        self._step_ps = step_ps
        self._first = first
        self._entries = _Index(timeline.entries, lambda span: span.start_ps)
        self._writes = _Index(timeline.writes, lambda span: span.end_ps)
        self._copies = _Index(timeline.copies, lambda span: span.end_ps)

    def at(self, ps: int) -> Reached:
        """Return what is done by a time, from 0 to the end of the timeline."""
        spent: Counter[Activity] = Counter()
        steps = self._first
        span = self._entries.last(ps, spent)
        if span is not None:
            left = max(0, span.end_ps - ps)
            spent[span.activity] -= left
            steps = span.step
            if span.activity is Activity.STEPS:
                steps -= -(-left // self._step_ps)
        written, copied = self._writes.last(ps), self._copies.last(ps)
        return Reached(steps, written and written.step, copied and copied.step, spent)


class _Index:
    """Entries one after another, found by a time of their spans."""

    def __init__(self, entries: Sequence[TimedEntry], key: Callable[[ActivitySpan], int]) -> None:
        """Index entries; key: the start or the end of a span, by which it is found."""
        self.entries = entries
        self.inner = [
            None if isinstance(entry, ActivitySpan) else _Index(entry.entries, key)
            for entry in entries
        ]
        self.times: list[int] = []
        self.before: list[dict[Activity, int]] = []
        self.total: Counter[Activity] = Counter()
        for entry, inner in zip(entries, self.inner, strict=True):
            self.before.append(dict(self.total))
            if isinstance(entry, ActivitySpan):
                self.times.append(key(entry))
                self.total[entry.activity] += entry.end_ps - entry.start_ps
            elif inner is not None:
                self.times.append(inner.times[0])
                _add(self.total, inner.total, entry.repeats)

    def last(self, ps: int, spent: Counter[Activity] | None = None) -> ActivitySpan | None:
        """Return the last span whose time is not after `ps`; None if there is none.

        spent: takes the time of each activity up to the end of that span.
        """
        where = bisect_right(self.times, ps) - 1
        if where < 0:
            return None
        entry, inner = self.entries[where], self.inner[where]
        if spent is not None:
            _add(spent, self.before[where])
        if isinstance(entry, ActivitySpan):
            if spent is not None:
                spent[entry.activity] += entry.end_ps - entry.start_ps
            return entry
        assert inner is not None
        turn = min((ps - self.times[where]) // entry.period_ps, entry.repeats - 1)
        if turn and spent is not None:
            _add(spent, inner.total, turn)
        later = turn * entry.period_ps
        span = inner.last(ps - later, spent)
        assert span is not None
        return ActivitySpan(
            span.activity,
            span.start_ps + later,
            span.end_ps + later,
            span.step + turn * entry.period_steps,
        )


def _add(spent: Counter[Activity], more: Mapping[Activity, int], times: int = 1) -> None:
    for activity, length in more.items():
        spent[activity] += times * length

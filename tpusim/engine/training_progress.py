"""How far a training run is at a time of its timeline, whose repetitions are not walked through."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
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
        self._entries = _Level(timeline.entries)
        self._writes = _Ends(timeline.writes)
        self._copies = _Ends(timeline.copies)

    def at(self, ps: int) -> Reached:
        """Return what is done by a time, from 0 to the end of the timeline."""
        spent: Counter[Activity] = Counter()
        span, end = self._entries.at(ps, spent)
        steps = self._first
        if span is not None:
            left = max(0, end - ps) if span.activity is Activity.STEPS else 0
            steps = span.step - -(-left // self._step_ps)
        return Reached(steps, self._writes.before(ps), self._copies.before(ps), spent)


class _Level:
    """Entries one after another, with the time of each activity before each of them."""

    def __init__(self, entries: Sequence[TimedEntry]) -> None:
        self.entries = entries
        self.inner = [
            None if isinstance(entry, ActivitySpan) else _Level(entry.entries) for entry in entries
        ]
        self.starts = [_start(entry) for entry in entries]
        self.before: list[dict[Activity, int]] = []
        self.total: Counter[Activity] = Counter()
        for entry, inner in zip(entries, self.inner, strict=True):
            self.before.append(dict(self.total))
            if inner is None:
                assert isinstance(entry, ActivitySpan)
                self.total[entry.activity] += entry.end_ps - entry.start_ps
            else:
                assert not isinstance(entry, ActivitySpan)
                for activity, length in inner.total.items():
                    self.total[activity] += length * entry.repeats

    def at(self, ps: int, spent: Counter[Activity]) -> tuple[ActivitySpan | None, int]:
        """Return the span at a time, with its steps, and its end; add what came before to `spent`.

        None where there are no entries.
        """
        if not self.entries:
            return None, 0
        where = max(bisect_right(self.starts, ps) - 1, 0)
        _add(spent, self.before[where])
        entry, inner = self.entries[where], self.inner[where]
        if isinstance(entry, ActivitySpan):
            spent[entry.activity] += min(ps, entry.end_ps) - entry.start_ps
            return entry, entry.end_ps
        assert inner is not None
        turn = min((ps - self.starts[where]) // entry.period_ps, entry.repeats - 1)
        if turn:
            _add(spent, inner.total, turn)
        span, end = inner.at(ps - turn * entry.period_ps, spent)
        assert span is not None
        later = span._replace(step=span.step + turn * entry.period_steps)
        return later, end + turn * entry.period_ps


class _Ends:
    """The ends of spans, which are in order."""

    def __init__(self, entries: Sequence[TimedEntry]) -> None:
        self.entries = entries
        self.inner = [
            None if isinstance(entry, ActivitySpan) else _Ends(entry.entries) for entry in entries
        ]
        self.firsts: list[int] = [
            entry.end_ps if isinstance(entry, ActivitySpan) else _first_end(entry.entries)
            for entry in entries
        ]

    def before(self, ps: int) -> int | None:
        """Return the steps of the last span that is over by a time; None if there is none."""
        where = bisect_right(self.firsts, ps) - 1
        if where < 0:
            return None
        entry, inner = self.entries[where], self.inner[where]
        if isinstance(entry, ActivitySpan):
            return entry.step
        assert inner is not None
        turn = min((ps - self.firsts[where]) // entry.period_ps, entry.repeats - 1)
        steps = inner.before(ps - turn * entry.period_ps)
        assert steps is not None
        return steps + turn * entry.period_steps


def _start(entry: TimedEntry) -> int:
    return entry.start_ps if isinstance(entry, ActivitySpan) else _start(entry.entries[0])


def _first_end(entries: Sequence[TimedEntry]) -> int:
    first = entries[0]
    return first.end_ps if isinstance(first, ActivitySpan) else _first_end(first.entries)


def _add(spent: Counter[Activity], more: dict[Activity, int], times: int = 1) -> None:
    for activity, length in more.items():
        spent[activity] += times * length

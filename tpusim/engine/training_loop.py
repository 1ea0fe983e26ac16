"""A training run in time: the loop on the devices, and the writer of checkpoints beside it.

The steps between two evaluations or checkpoints are one span, however many they are. A run whose
state repeats (where it is between two of them, and how long the writer still needs) is periodic
from there on, and its periods are kept once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class Activity(StrEnum):
    """What a run does at a time."""

    INITIALIZATION = "initialization"
    PREPARATION = "preparation"
    COMPILATION = "compilation"
    WARM_UP = "warm-up"
    STEPS = "steps"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_WAIT = "wait for the writer"
    WRITE = "write beside the steps"
    MEMORY_COPY = "copy in host memory"
    EXCHANGE = "exchange of copies beside the steps"
    LOST_STEPS = "steps done again"
    DETECTION = "detection of a failure"
    REPLACEMENT = "replacement of what failed"
    RESTORE = "restore"
    RESHARD = "resharding over fewer slices"
    SCALE_UP = "resharding over more slices"
    SLICES_DOWN = "steps with fewer slices"
    DEGRADED = "steps on a broken torus"


class LoopTimes(NamedTuple):
    """The times of a training run, in picoseconds, and how often each comes.

    before: what comes before the first step, in its order.
    steps: of the whole run.
    step_ps: one step.
    evaluate_every: steps between evaluations; 0 for none.
    evaluation_ps: one evaluation.
    save_every: steps between checkpoints; 0 for none. The last step is saved too.
    stop_ps: the part of a checkpoint during which no step runs.
    write_ps: the rest, beside the steps. The next checkpoint waits until it is over, and so does
        the end of the run.
    copy_every: steps between copies in the hosts' memory, a divisor of `save_every`; 0 for none.
        A checkpoint leaves such a copy too.
    copy_ps: the part of such a copy during which no step runs.
    exchange_ps: the rest, until another host has the copy as well.
    """

    before: tuple[tuple[Activity, int], ...]
    steps: int
    step_ps: int
    evaluate_every: int = 0
    evaluation_ps: int = 0
    save_every: int = 0
    stop_ps: int = 0
    write_ps: int = 0
    copy_every: int = 0
    copy_ps: int = 0
    exchange_ps: int = 0


class ActivitySpan(NamedTuple):
    """A time in which a run does one thing, from `start_ps` to `end_ps`.

    step: steps that are done by its end.
    """

    activity: Activity
    start_ps: int
    end_ps: int
    step: int


class RepeatedSpans(NamedTuple):
    """Spans that follow each other `repeats` times, with the times and steps of the first."""

    entries: "tuple[TimedEntry, ...]"
    repeats: int
    period_ps: int
    period_steps: int


TimedEntry: TypeAlias = ActivitySpan | RepeatedSpans


class TrainingTimeline(NamedTuple):
    """What a run does, from 0 to its end without a gap.

    entries: spans one after another; those that repeat are there once.
    writes: the writes of checkpoints, alike: beside the steps, or without length where none is.
    copies: the exchanges of copies in the hosts' memory, alike.
    total_ps: the length of the run.
    """

    entries: tuple[TimedEntry, ...]
    writes: tuple[TimedEntry, ...]
    copies: tuple[TimedEntry, ...]
    total_ps: int

    @property
    def spans(self) -> tuple[ActivitySpan, ...]:
        """All spans, one after another."""
        return tuple(_flat(self.entries))

    @property
    def writes_ps(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each write of a checkpoint beside the steps."""
        spans = ((span.start_ps, span.end_ps) for span in _flat(self.writes))
        return tuple((start, end) for start, end in spans if end > start)

    @property
    def spent_ps(self) -> Mapping[Activity, int]:
        """The time of each activity of the loop."""
        return _spent(self.entries)

    def sampled(self, most: int) -> Iterator[ActivitySpan]:
        """Yield the spans; of repetitions some `most`, at equal distances, and the last."""
        return _flat(self.entries, most)


def _flat(
    entries: tuple[TimedEntry, ...], most: int | None = None, ps: int = 0, steps: int = 0
) -> Iterator[ActivitySpan]:
    """Yield spans, `ps` and `steps` later; `most` as of `TrainingTimeline.sampled`."""
    for entry in entries:
        if isinstance(entry, ActivitySpan):
            activity, start, end, step = entry
            yield ActivitySpan(activity, start + ps, end + ps, step + steps)
            continue
        every = 1 if most is None else entry.repeats // most + 1
        for turn in (*range(0, entry.repeats - 1, every), entry.repeats - 1):
            at = ps + turn * entry.period_ps, steps + turn * entry.period_steps
            yield from _flat(entry.entries, most, *at)


def _spent(entries: tuple[TimedEntry, ...]) -> Counter[Activity]:
    spent: Counter[Activity] = Counter()
    for entry in entries:
        if isinstance(entry, ActivitySpan):
            spent[entry.activity] += entry.end_ps - entry.start_ps
        else:
            for activity, length in _spent(entry.entries).items():
                spent[activity] += entry.repeats * length
    return spent


def run_training(times: LoopTimes, done: int = 0) -> TrainingTimeline:
    """Return the timeline of a training run that has done some of its steps when it begins."""
    loop = _Loop(times, done)
    loop.run()
    entries, writes, copies = map(tuple, (loop.entries, loop.writes, loop.copies))
    return TrainingTimeline(entries, writes, copies, loop.now)


class _Moment(NamedTuple):
    """A state of a run, with the lengths of its lists, its time and its steps."""

    state: tuple[int, ...]
    lengths: tuple[int, ...]
    now: int
    done: int


@dataclass(slots=True)
class _Watch:
    """A watch for a state of the run that was there before.

    What it compares with is renewed after 1, 2, 4, ... events, so a period of any length is found.

    evaluates, saves: whether these events may come meanwhile.
    """

    evaluates: bool
    saves: bool
    since: _Moment | None = None
    seen: int = 0
    renewed: int = 1

    def passes(self, now: _Moment) -> _Moment | None:
        """Take note of an event; return the moment before that had the same state."""
        if self.since is not None and self.since.state == now.state:
            return self.since
        self.seen += 1
        if self.since is None or self.seen == self.renewed:
            self.since, self.renewed = now, 2 * self.seen
        return None

    def begin(self) -> None:
        """Forget what was before."""
        self.since, self.seen, self.renewed = None, 0, 1


class _Loop:
    """A run up to a time: its writer goes on beside it until `written`, copies until `copied`."""

    def __init__(self, times: LoopTimes, done: int) -> None:
        self.times = times
        self.entries: list[TimedEntry] = []
        self.writes: list[TimedEntry] = []
        self.copies: list[TimedEntry] = []
        self.done = done
        self.now = self.written = self.copied = 0
        self.save_every = times.copy_every or times.save_every
        both = bool(times.evaluate_every and times.save_every)
        kinds = ((True, True), (True, False), (False, True)) if both else ((True, True),)
        self.watches = [_Watch(*kind) for kind in kinds]

    def run(self) -> None:
        times = self.times
        for activity, length in times.before:
            self._spend(activity, length)
        while self.done < times.steps:
            evaluation, save = self._next_events()
            count = min(times.steps, evaluation, save) - self.done
            self.done += count
            self._spend(Activity.STEPS, count * times.step_ps)
            if self.done == evaluation:
                self._spend(Activity.EVALUATION, times.evaluation_ps)
            if self.done == save or (times.save_every and self.done == times.steps):
                self._keep()
            self._skip(evaluates=self.done == evaluation, saves=self.done == save)
        self._spend(Activity.CHECKPOINT_WAIT, max(0, self.written - self.now))

    def _next_events(self) -> tuple[int, int]:
        """Return the steps after which the next evaluation and the next checkpoint come."""
        times, never = self.times, self.times.steps + 1
        return _after(self.done, times.evaluate_every, never), _after(
            self.done, self.save_every, never
        )

    def _spend(self, activity: Activity, length: int) -> None:
        if length:
            self.entries.append(ActivitySpan(activity, self.now, self.now + length, self.done))
            self.now += length

    def _keep(self) -> None:
        """Write a checkpoint, or, where one is not due, copy the state to the hosts' memory."""
        times = self.times
        if times.save_every and (not self.done % times.save_every or self.done == times.steps):
            free = max(self.written, self.copied)
            self._spend(Activity.CHECKPOINT_WAIT, max(0, free - self.now))
            self._spend(Activity.CHECKPOINT, times.stop_ps)
            self.written = self.now + times.write_ps
            self.writes.append(ActivitySpan(Activity.WRITE, self.now, self.written, self.done))
        else:
            self._spend(Activity.CHECKPOINT_WAIT, max(0, self.copied - self.now))
            self._spend(Activity.MEMORY_COPY, times.copy_ps)
        if times.copy_every:
            self.copied = self.now + times.exchange_ps
            self.copies.append(ActivitySpan(Activity.EXCHANGE, self.now, self.copied, self.done))

    def _skip(self, *, evaluates: bool, saves: bool) -> None:
        """Skip whole periods once the state after an event repeats, up to the next other event.

        The watch for both kinds of events notes the rarer kind alone: what it compares with is then
        in none of the periods of the other kind that are skipped.
        """
        rare = evaluates if self.times.evaluate_every > self.save_every else saves
        for watch in self.watches:
            if (evaluates and not watch.evaluates) or (saves and not watch.saves):
                watch.begin()
                continue
            if watch is self.watches[0] and not rare and len(self.watches) > 1:
                continue
            before = watch.passes(self._moment(watch))
            if before is not None and self._repeat(before, watch):
                for each in self.watches:
                    if each.since is not None and each.since.done > before.done:
                        each.begin()
                return

    def _moment(self, watch: _Watch) -> _Moment:
        times = self.times
        state = []
        if watch.evaluates and times.evaluate_every:
            state.append(self.done % times.evaluate_every)
        if watch.saves and self.save_every:
            state += [self.done % max(times.save_every, self.save_every)]
            state += [max(0, end - self.now) for end in (self.written, self.copied)]
        lengths = tuple(len(each) for each in (self.entries, self.writes, self.copies))
        return _Moment(tuple(state), lengths, self.now, self.done)

    def _repeat(self, before: _Moment, watch: _Watch) -> bool:
        """Book what came since a moment as often as it comes before the end or another event."""
        evaluation, save = self._next_events()
        ends = [self.times.steps, *([] if watch.evaluates else [evaluation])]
        ends += [] if watch.saves else [save]
        period, steps = self.now - before.now, self.done - before.done
        more = (min(ends) - 1 - self.done) // steps
        if more <= 0:
            return False
        lists = (self.entries, self.writes, self.copies)
        for entries, start in zip(lists, before.lengths, strict=True):
            if len(entries) > start:
                entries[start:] = [RepeatedSpans(tuple(entries[start:]), more + 1, period, steps)]
        self.now += more * period
        self.done += more * steps
        self.written += more * period * watch.saves
        self.copied += more * period * watch.saves
        return True


def _after(done: int, every: int, never: int) -> int:
    """Return the next multiple of `every` after `done`; `never` if there is none."""
    return (done // every + 1) * every if every else never

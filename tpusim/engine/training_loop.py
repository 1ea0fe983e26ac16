"""A training run in time: the loop on the devices, and the writer of checkpoints beside it.

The steps between two evaluations or checkpoints are one span, however many they are.
"""

from enum import StrEnum
from typing import NamedTuple


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
    """

    before: tuple[tuple[Activity, int], ...]
    steps: int
    step_ps: int
    evaluate_every: int = 0
    evaluation_ps: int = 0
    save_every: int = 0
    stop_ps: int = 0
    write_ps: int = 0


class ActivitySpan(NamedTuple):
    """A time in which a run does one thing, from `start_ps` to `end_ps`.

    step: steps that are done by its end.
    """

    activity: Activity
    start_ps: int
    end_ps: int
    step: int


class TrainingTimeline(NamedTuple):
    """What a run does, from 0 to its end without a gap.

    spans: one after another.
    writes_ps: start and end of each write of a checkpoint beside the steps.
    """

    spans: tuple[ActivitySpan, ...]
    writes_ps: tuple[tuple[int, int], ...]

    @property
    def total_ps(self) -> int:
        """The length of the run."""
        return self.spans[-1].end_ps if self.spans else 0


def run_training(times: LoopTimes) -> TrainingTimeline:
    """Return the timeline of a training run."""
    loop = _Loop(times)
    loop.run()
    return TrainingTimeline(tuple(loop.spans), tuple(loop.writes))


class _Loop:
    """A run up to a time: only its writer goes on beside it, from which it knows the end."""

    def __init__(self, times: LoopTimes) -> None:
        self.times = times
        self.spans: list[ActivitySpan] = []
        self.writes: list[tuple[int, int]] = []
        self.done = self.now = 0

    def run(self) -> None:
        times = self.times
        for activity, length in times.before:
            self._spend(activity, length)
        while self.done < times.steps:
            count = min(
                times.steps, _after(self.done, times.evaluate_every, times.steps),
                _after(self.done, times.save_every, times.steps),
            ) - self.done  # fmt: skip
            self.done += count
            self._spend(Activity.STEPS, count * times.step_ps)
            if times.evaluate_every and self.done % times.evaluate_every == 0:
                self._spend(Activity.EVALUATION, times.evaluation_ps)
            last = self.done == times.steps
            if times.save_every and (last or self.done % times.save_every == 0):
                self._save()
        self._await_writer()

    def _spend(self, activity: Activity, length: int) -> None:
        if length:
            self.spans.append(ActivitySpan(activity, self.now, self.now + length, self.done))
            self.now += length

    def _save(self) -> None:
        self._await_writer()
        self._spend(Activity.CHECKPOINT, self.times.stop_ps)
        if self.times.write_ps:
            self.writes.append((self.now, self.now + self.times.write_ps))

    def _await_writer(self) -> None:
        """Wait until the checkpoint before is written."""
        _, written = self.writes[-1] if self.writes else (0, 0)
        self._spend(Activity.CHECKPOINT_WAIT, max(0, written - self.now))


def _after(done: int, every: int, never: int) -> int:
    """Return the next multiple of `every` after `done`; `never` if there is none."""
    return (done // every + 1) * every if every else never

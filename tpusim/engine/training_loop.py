"""A training run as processes: the loop on the devices, and the writer of checkpoints beside it.

The steps between two evaluations or checkpoints are one event, so a run costs as many events as
it has of these, however many steps they are apart.
"""

from collections.abc import Callable, Generator
from enum import StrEnum
from typing import Any, NamedTuple

from simpy import Environment, Event

from tpusim.engine.event_loop import run_processes


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
    events: of the simulation.
    """

    spans: tuple[ActivitySpan, ...]
    writes_ps: tuple[tuple[int, int], ...]
    events: int

    @property
    def total_ps(self) -> int:
        """The length of the run."""
        return self.spans[-1].end_ps if self.spans else 0


def run_training(times: LoopTimes) -> TrainingTimeline:
    """Return the timeline of a training run."""
    env = Environment()
    loop = _Loop(env, times)
    events = run_processes(env, [loop])
    return TrainingTimeline(tuple(loop.spans), tuple(loop.writes), events)


class _Loop:
    """The process of a run."""

    def __init__(self, env: Environment, times: LoopTimes) -> None:
        self.env = env
        self.times = times
        self.spans: list[ActivitySpan] = []
        self.writes: list[tuple[int, int]] = []
        self.done = 0
        self.finished = False
        self.writing: Event | None = None

    def run(self) -> Generator[Event, Any, None]:
        times = self.times
        for activity, length in times.before:
            yield from self._spend(activity, length)
        while self.done < times.steps:
            count = min(
                times.steps, _after(self.done, times.evaluate_every, times.steps),
                _after(self.done, times.save_every, times.steps),
            ) - self.done  # fmt: skip
            self.done += count
            yield from self._spend(Activity.STEPS, count * times.step_ps)
            if times.evaluate_every and self.done % times.evaluate_every == 0:
                yield from self._spend(Activity.EVALUATION, times.evaluation_ps)
            last = self.done == times.steps
            if times.save_every and (last or self.done % times.save_every == 0):
                yield from self._save()
        yield from self._written()
        self.finished = True

    def status(self) -> str:
        return f"the run after step {self.done}"

    def _spend(self, activity: Activity, length: int) -> Generator[Event, Any, None]:
        if length:
            yield from self._wait(activity, lambda: self.env.timeout(length))

    def _save(self) -> Generator[Event, Any, None]:
        yield from self._written()
        yield from self._spend(Activity.CHECKPOINT, self.times.stop_ps)
        if self.times.write_ps:
            self.writing = self.env.process(self._write())

    def _written(self) -> Generator[Event, Any, None]:
        """Wait until the checkpoint before is written."""
        if self.writing is not None and not self.writing.processed:
            writing = self.writing
            yield from self._wait(Activity.CHECKPOINT_WAIT, lambda: writing)

    def _write(self) -> Generator[Event, Any, None]:
        start = int(self.env.now)
        yield self.env.timeout(self.times.write_ps)
        self.writes.append((start, int(self.env.now)))

    def _wait(self, activity: Activity, until: Callable[[], Event]) -> Generator[Event, Any, None]:
        start = int(self.env.now)
        yield until()
        end = int(self.env.now)
        if end > start:
            self.spans.append(ActivitySpan(activity, start, end, self.done))


def _after(done: int, every: int, never: int) -> int:
    """Return the next multiple of `every` after `done`; `never` if there is none."""
    return (done // every + 1) * every if every else never

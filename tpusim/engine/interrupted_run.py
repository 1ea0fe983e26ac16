"""A training run that fails: what was not kept is done again.

Failures come at random; between two of them the run is the loop of `training_loop`. A failure stops
the steps at once. The run is stopped until it is detected, until what failed is replaced, until the
processes have started again and the state is restored; a failure in that time begins it anew. What
a cube or a slice takes until it is repaired goes on beside the run.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from math import lcm
from typing import NamedTuple, TypeAlias

from tpusim.engine.failure_queue import Draws, FailureKind, FailureQueue, Loss
from tpusim.engine.training_loop import Activity, ActivitySpan, LoopTimes, run_training
from tpusim.engine.training_progress import Progress, Reached

Phase: TypeAlias = tuple[Activity, int]
"""What a run does without a step, and for how long."""

ENDLESS = 10**15
"""Steps of a loop that a failure ends."""

LONGEST_PERIOD = 50
"""Of the longest interval, up to which a loop is indexed as a whole."""


class Recovery(NamedTuple):
    """What follows a failure, in picoseconds.

    restart: phases until the processes run again, without the restore.
    reshard: phases in place of them where the run goes on with other slices; None if it cannot.
    replace_ps: until a spare unit is in the place of one that failed.
    restore_ps: reading a checkpoint from the storage.
    recall_ps: reading a copy in the hosts' memory.
    peer_ps: reading the copy of a unit that is gone from its peer; None without such a copy.
    spares: units in reserve; None for always enough.
    displaces: a unit of a smaller job takes the place of one that failed, if no spare is left.
    slices: slices that an elastic run can do without one after another; 1 otherwise.
    """

    restart: tuple[Phase, ...]
    reshard: tuple[Phase, ...] | None = None
    replace_ps: int = 0
    restore_ps: int = 0
    recall_ps: int = 0
    peer_ps: int | None = None
    spares: int | None = 0
    displaces: bool = False
    slices: int = 1

    @property
    def again(self) -> tuple[Phase, ...]:
        """Phases until steps run again, without the restore."""
        return self.restart if self.reshard is None else self.reshard


@dataclass(slots=True)
class Outcome:
    """A run as it went.

    total_ps: its length.
    spent_ps: the time of each activity; they sum to the length.
    failures: failures by the name of their kind.
    lost_ps: what each kind cost: steps done again, detection, replacement, restart, restore.
    displaced: smaller jobs that lost a unit to this one.
    most_away: units that were away at once, at most.
    lost_steps: steps that were done more than once.
    spans: what it did, in order; empty unless it was recorded.
    events: when it failed, and the kind of each failure; alike.
    """

    total_ps: int = 0
    spent_ps: Counter[Activity] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    lost_ps: Counter[str] = field(default_factory=Counter)
    displaced: int = 0
    most_away: int = 0
    lost_steps: int = 0
    spans: list[ActivitySpan] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)


class Loops:
    """The loop of a run from any kept step on, at any length of a step: each is indexed once."""

    def __init__(self, times: LoopTimes) -> None:
        self.times = times._replace(before=())
        self._endless: dict[tuple[int, int], Progress] = {}
        every = (times.evaluate_every, times.save_every, times.copy_every)
        self._period = lcm(*(each for each in every if each))
        self._long = self._period > LONGEST_PERIOD * max(*every, 1)

    def until(self, ps: int | None, done: int, step_ps: int) -> tuple[int, Reached]:
        """Return how long the loop goes on from a step, at most `ps`, and what is done by then.

        It is over before `ps`, which may be None for never, where all steps are done.
        """
        if ps is not None:
            reached = self._endless_at(ps, done, step_ps)
            if reached.steps < self.times.steps:
                return ps, reached
        times = self.times._replace(step_ps=step_ps)
        rest = Progress(run_training(times, done), step_ps, done)
        length = rest.total_ps if ps is None else min(ps, rest.total_ps)
        return length, rest.at(length)

    def _endless_at(self, ps: int, done: int, step_ps: int) -> Reached:
        """Return what is done by then in a loop that does not end before."""
        if self._long:
            steps = done + ps // step_ps + 2
            times = self.times._replace(steps=steps, step_ps=step_ps)
            return Progress(run_training(times, done), step_ps, done).at(ps)
        first = done % self._period
        key = first, step_ps
        if key not in self._endless:
            times = self.times._replace(steps=ENDLESS, step_ps=step_ps)
            self._endless[key] = Progress(run_training(times, first), step_ps, first)
        steps, written, copied, spent = self._endless[key].at(ps)
        added = done - first
        written = None if written is None else written + added
        copied = None if copied is None else copied + added
        return Reached(steps + added, written, copied, spent)


@dataclass(slots=True)
class InterruptedRun:
    """A run with one sequence of failures, up to a time: what is kept, what is away for repair.

    loops: its steps.
    kinds: of its failures.
    record: keep what it does, span by span.
    now: the time.
    done: steps that are done; of those, `written` are in a checkpoint, `copied` in memory.
    away: when each unit that failed is back, and the kind of its failure, a heap.
    slow: when each link that failed is back, and what a step takes longer until then.
    blamed: kind of the failure from which the run recovers; empty while it does steps.
    """

    loops: Loops
    kinds: InitVar[Sequence[FailureKind]]
    recovery: Recovery
    draws: Draws
    record: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    now: int = 0
    done: int = 0
    written: int = 0
    copied: int | None = None
    away: list[tuple[int, str]] = field(default_factory=list)
    slow: list[tuple[int, int]] = field(default_factory=list)
    blamed: str = ""
    failures: FailureQueue = field(init=False)

    def __post_init__(self, kinds: Sequence[FailureKind]) -> None:
        self.failures = FailureQueue(kinds, self.draws)

    def run(self, before: Sequence[Phase]) -> Outcome:
        """Return how the run goes; before: phases before its first step."""
        phases: Sequence[Phase] | None = before
        while phases is not None:
            failure = self._spend_phases(phases)
            phases = self._steps() if failure is None else self._recover(failure, self.done)
        self.outcome.total_ps = self.now
        return self.outcome

    def _spend_phases(self, phases: Sequence[Phase]) -> FailureKind | None:
        """Go through phases; return the failure that ends them."""
        for activity, length in phases:
            fails = self.failures.next_ps
            cut = fails is not None and fails < self.now + length
            spent = max(0, fails - self.now) if cut and fails is not None else length
            self.outcome.lost_ps[self.blamed] += spent
            self._spend(activity, spent)
            if cut:
                return self._next_failure()
        return None

    def _spend(self, activity: Activity, length: int) -> None:
        if length:
            self.outcome.spent_ps[activity] += length
            self._go(activity, length, self.done)

    def _go(self, activity: Activity, length: int, steps: int) -> None:
        if self.record:
            self.outcome.spans.append(ActivitySpan(activity, self.now, self.now + length, steps))
        self.now += length

    def _next_failure(self) -> FailureKind:
        failure = self.failures.take()
        self.outcome.failures[failure.name] += 1
        if self.record:
            self.outcome.events.append((self.now, failure.name))
        self.blamed = failure.name
        return failure

    def _steps(self) -> Sequence[Phase] | None:
        """Do steps until a failure, or until a slice is back; return the phases that follow.

        None once all steps are done.
        """
        self.blamed = ""
        self._mend()
        fails = self.failures.next_ps
        back = self.away[0][0] if self._missing() and self.recovery.reshard else None
        ends = [each for each in (fails, back) if each is not None]
        ps = max(0, min(ends) - self.now) if ends else None
        length, reached = self.loops.until(ps, self.done, self._step_ps())
        begun = self._book(reached)
        self._go(Activity.STEPS, length, reached.steps)
        self.written = reached.written or self.written
        self.copied = self.copied if reached.copied is None else reached.copied
        if length != ps:
            return None
        if fails is None or self.now < fails:
            self.done = reached.steps
            return ((Activity.SCALE_UP, sum(each for _, each in self.recovery.reshard or ())),)
        failure = self._next_failure()
        self.outcome.lost_ps[failure.name] += begun
        return self._recover(failure, reached.steps)

    def _book(self, reached: Reached) -> int:
        """Book what was done; return the time of the step that had begun."""
        spent, healthy = self.outcome.spent_ps, self.loops.times.step_ps
        steps = reached.steps - self.done
        slower = self._slower_ps()
        fewer = self._step_ps() - healthy - slower
        begun = reached.spent_ps.pop(Activity.STEPS, 0) - steps * self._step_ps()
        booked = {
            Activity.STEPS: steps * healthy,
            Activity.DEGRADED: steps * slower,
            Activity.SLICES_DOWN: steps * fewer,
            Activity.LOST_STEPS: begun,
        }
        for activity, length in (*booked.items(), *reached.spent_ps.items()):
            if length:
                spent[activity] += length
        return begun

    def _recover(self, failure: FailureKind, steps: int) -> Sequence[Phase]:
        """Return the phases after a failure, from which the run goes on with the steps it kept."""
        self._mend()
        loss = self._loss(failure)
        saved = self._noticed(failure, steps)
        source = self._go_back(failure, loss, steps)
        hangs = self.draws.hang() < failure.hang_share
        detection = failure.hang_ps if hangs else failure.detection_ps
        self._lose(failure, loss)
        return (
            *saved,
            (Activity.DETECTION, detection),
            *self._replacement(loss, self.now + detection),
            *self.recovery.again,
            (Activity.RESTORE, source),
        )

    def _loss(self, failure: FailureKind) -> Loss:
        """Return what a failure takes: a unit with a lost link is replaced if a spare is left."""
        spares = self.recovery.spares
        left = spares is None or len(self.away) < spares
        return Loss.UNIT if failure.replaced and left else failure.loss

    def _noticed(self, failure: FailureKind, steps: int) -> Sequence[Phase]:
        """Return the checkpoint that a notice leaves time for, which then has all steps."""
        times = self.loops.times
        needed = times.stop_ps + times.write_ps
        if not times.save_every or not 0 < needed <= failure.notice_ps or steps <= self.written:
            return ()
        self.written = steps
        return ((Activity.CHECKPOINT, needed),)

    def _go_back(self, failure: FailureKind, loss: Loss, steps: int) -> int:
        """Go back to the latest kept step; return how long it takes to read it."""
        recovery = self.recovery
        gone = loss is Loss.UNIT
        if gone and recovery.peer_ps is None:
            self.copied = None
        kept, source = self.written, recovery.restore_ps if self.written else 0
        if self.copied is not None and self.copied >= kept:
            copy = recovery.peer_ps if gone else recovery.recall_ps
            kept, source = self.copied, copy or 0
        lost = steps - kept
        length = lost * self.loops.times.step_ps
        self.outcome.lost_steps += lost
        self.outcome.spent_ps[Activity.STEPS] -= length
        self.outcome.spent_ps[Activity.LOST_STEPS] += length
        self.outcome.lost_ps[failure.name] += length
        self.done = kept
        return source

    def _lose(self, failure: FailureKind, loss: Loss) -> None:
        """Take what failed away until it is repaired."""
        if loss is Loss.PROCESS:
            return
        back = self.now + round(self.draws.repair() * failure.repair_ps)
        if loss is Loss.LINK:
            self.slow.append((back, failure.excess_ps))
            return
        heapq.heappush(self.away, (back, failure.name))
        self.outcome.most_away = max(self.outcome.most_away, len(self.away))
        if self.recovery.displaces and self._short():
            self.outcome.displaced += 1

    def _replacement(self, loss: Loss, now: int) -> Iterator[Phase]:
        """Yield the wait for units without which the run cannot go on, and their replacement."""
        without = self.recovery.slices - 1 if self.recovery.reshard else 0
        wanted = self._missing() - without
        if wanted > 0:
            back, self.blamed = sorted(self.away)[wanted - 1]
            yield Activity.REPLACEMENT, max(0, back - now)
        elif loss is Loss.UNIT and not self._missing():
            yield Activity.REPLACEMENT, self.recovery.replace_ps

    def _mend(self) -> None:
        """Take back what is repaired."""
        while self.away and self.away[0][0] <= self.now:
            heapq.heappop(self.away)
        if self.slow:
            self.slow = [(back, excess) for back, excess in self.slow if back > self.now]

    def _missing(self) -> int:
        """Return the units for which there is no other."""
        return 0 if self.recovery.displaces else self._short()

    def _short(self) -> int:
        """Return the units that are away beyond the spares."""
        spares = self.recovery.spares
        return 0 if spares is None else max(0, len(self.away) - spares)

    def _slower_ps(self) -> int:
        """Return what a step takes longer as links are broken."""
        return sum(excess for _, excess in self.slow)

    def _step_ps(self) -> int:
        """Return the length of a step's work: on a broken torus, on the slices that there are."""
        whole = self.loops.times.step_ps + self._slower_ps()
        slices = self.recovery.slices
        up = slices - min(self._missing(), slices - 1) if self.recovery.reshard else slices
        return -(-whole * slices // up)

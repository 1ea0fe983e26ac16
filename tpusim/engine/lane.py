"""One lane: an in-order core and the transfer streams beside it.

The core runs its instructions in order. A task of its own waits for its dependencies and then
occupies the core: the delay, then the flow. A task of another stream is issued in no time, and the
core goes on; the stream starts its tasks in the order of their issue, each when its dependencies
are complete. At most 16 issued tasks of a stream are incomplete (hardware semaphores bound them);
the core waits before it issues one more. At the end the core waits for the streams to drain, and
then for the host, so its tasks and its waits together cover the lane's time. The host's tasks share
nothing with the lane, and only the lane's end waits for them, so they need no events and no place
in the state: their end is known from the start.

All state is plain data: a cursor and trip counts, counts of issued and completed instances, a queue
per stream, timers and flows. The process keeps nothing but its loop.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from types import MethodType
from typing import NamedTuple, TypeAlias, cast

from simpy import Environment, Event
from simpy.core import EmptySchedule

from tpusim.engine.flows import Flow, FlowNetwork
from tpusim.engine.fold import FoldDetector
from tpusim.engine.hops import HopNetwork
from tpusim.engine.instructions import (
    ON_CORE,
    CompletionNeed,
    LaneCode,
    LoopEnd,
    LoopStart,
    MemoryDelta,
    TaskStep,
)
from tpusim.engine.journal import Journal, JournalEntry, TimedStep, flatten, repeat_count
from tpusim.engine.lane_clock import LaneClock, WaitEvents
from tpusim.engine.timeline import Stats

MAX_OPEN_TRANSFERS = 16

# An issued task that has not started, and the completions (step, how many) that it waits for.
QueuedStep: TypeAlias = tuple[TaskStep, tuple[tuple[int, int], ...]]


class StalledError(RuntimeError):
    """A lane waits for something that cannot happen.

    Within a lane it is a defect of the engine; between lanes it is a cycle of messages.
    """


class Race(NamedTuple):
    """The time of another run that a lane has to beat or equal, and that of its core's tasks."""

    best_ps: int
    core_ps: int


class Lane:
    """The state of one lane; `run` is its process."""

    def __init__(
        self,
        clock: LaneClock,
        network: FlowNetwork,
        code: LaneCode,
        folding: bool,
        hops: HopNetwork | None = None,
        race: "Race | None" = None,
    ) -> None:
        self.clock = clock
        self.code = code
        self.hops = hops
        self.journal = Journal()
        self.folder = FoldDetector(code.loops, folding)
        self.end_ps = 0
        self.events = 0
        self.finished = False
        self.trips = 0
        self._network = network
        self._folding = folding
        self._race = race
        self._cursor = 0
        self._trip = [0] * code.loops
        self._issued = [0] * len(code.steps)
        self._done = [0] * len(code.steps)
        self._streams: list[deque[QueuedStep]] = [deque() for _ in code.streams]
        self._incomplete = [0] * len(code.streams)
        self._timers: dict[int, tuple[TaskStep, int]] = {}
        # While the core waits on `_signal`: for how many completions of which step, or for any
        # completion in a stream, whose index is then inverted (~).
        self._awaited = (0, 0)
        self._signal: Event | None = None
        # When the core's task or wait began.
        self._since = 0

    def run(self) -> WaitEvents:
        """Run the code, then wait for the streams to drain and for the host."""
        instructions = self.code.instructions
        while self._cursor < len(instructions):
            op = instructions[self._cursor]
            if isinstance(op, LoopEnd):
                more = self._next_trip(op)
                self._cursor = op.body if more else self._cursor + 1
                if op.frees is not None and not more:
                    self._log(op.frees)
                if not self.clock.alone:
                    yield from self.clock.stand()
                if self._race is not None and self._lost(self._race):
                    return
                continue
            if isinstance(op, LoopStart):
                self._enter(op)
                continue
            if op.stream == ON_CORE:
                for need in op.needs:
                    yield from self._wait_for(need)
                if not self._executed(op):
                    yield from self._execute(op)
            else:
                yield from self._wait_for_capacity(op.stream, MAX_OPEN_TRANSFERS)
                self._issue(op)
            self._cursor += 1
        for stream in range(len(self._streams)):
            yield from self._wait_for_capacity(stream, 1)
        yield from self._wait_for_host()
        self.end_ps = self.clock.now + self.journal.booked_ps
        self.finished = True

    def _lost(self, race: "Race") -> bool:
        """End a lane that cannot win any more, with a lower bound as its end.

        Its core still has to run all of its tasks, and what it has waited comes on top.
        """
        waited = sum(
            (end - start) * repeat_count(levels)
            for (_, start, end), levels in flatten(self.journal.waits)
        )
        self.finished = race.core_ps + waited > race.best_ps
        if self.finished:
            self.end_ps = race.core_ps + waited
        return self.finished

    def status(self) -> str:
        """Return the position of the lane, for the message when it has stalled."""
        held = self._incomplete
        counts = [f"{n} of {name}" for name, n in zip(self.code.streams, held, strict=True) if n]
        open_ = ", ".join(counts) or "no transfer"
        return f"lane {self.code.name!r} is at instruction {self._cursor} with {open_} incomplete"

    def _enter(self, start: LoopStart) -> None:
        if start.takes is not None:
            self._log(start.takes)
        self._trip[start.loop] = -1
        self.folder.enter(start.loop, self._folding)
        self._cursor = start.end

    def _next_trip(self, loop: LoopEnd) -> bool:
        """Count an iteration and the periods skipped; return True if iterations are left."""
        trip = self._trip[loop.loop] + 1
        if trip < loop.trips and self.folder.wanted[loop.loop]:
            trip += self._skip(loop, trip)
        self._trip[loop.loop] = trip
        self.trips += trip < loop.trips
        return trip < loop.trips

    def _skip(self, loop: LoopEnd, trip: int) -> int:
        """Return the iterations to skip at the start of `trip`, if the lane has repeated itself."""
        state = self._state(min(trip, loop.reach))
        return self.folder.skip(loop, trip, state, [(self.clock, self.journal)], loop.trips - trip)

    def _state(self, reached: int) -> Hashable:
        """Return everything that the future depends on, relative to now (between two tasks)."""
        if not any(self._incomplete):
            return reached
        now, done = self.clock.now, self._done
        queues = tuple(
            tuple(
                (step, tuple((other, max(0, target - done[other])) for other, target in needs))
                for step, needs in queue
            )
            for queue in self._streams
        )
        timers = tuple((step, now - started) for step, started in self._timers.values())
        flows = tuple((f.step, now - f.started, f.left(now)) for f in self._network.flows)
        earlier = sum(number < self._network.wake for number in self._timers)
        return (reached, queues, timers, flows, earlier)

    def _executed(self, step: TaskStep) -> bool:
        """Run a task of the core at once, if no other lane sees the time and nothing is in flight.

        Return False if it has to be run in SimPy's time.
        """
        clock, journal = self.clock, self.journal
        if not clock.alone or any(self._incomplete):
            return False
        start = clock.now + journal.booked_ps
        end = start + step.alone_ps
        clock.go_ahead(step.alone_ps)
        if step.takes is not None:
            journal.changes.append((start, step.takes))
        if step.frees is not None:
            journal.changes.append((end, step.frees))
        journal.tasks.append((step, start, end))
        return True

    def _execute(self, step: TaskStep) -> WaitEvents:
        start = self._since = self.clock.now
        if step.takes is not None:
            self._log(step.takes)
        if step.messages is None and not (step.volume and any(self._incomplete)):
            # No link is shared: nothing is in flight, and nothing starts until the core goes on.
            if step.alone_ps:
                yield from self.clock.pause(step.alone_ps)
        else:
            yield from self._delay_and_move(step, start)
        self._end(step, start)

    def _delay_and_move(self, step: TaskStep, start: int) -> WaitEvents:
        """Hold the core for the delay of `step` and until its flow has ended."""
        if step.delay_ps:
            yield from self.clock.pause(step.delay_ps)
        ended = Event(self.clock.env)
        self._move(step, start, lambda _: ended.succeed())
        yield from self.clock.wait(ended)

    def _issue(self, step: TaskStep) -> None:
        """Hand `step` to its stream, which starts it now if nothing precedes it."""
        needs = [(need.step, self._target(need)) for need in step.needs]
        unmet = tuple((other, target) for other, target in needs if self._done[other] < target)
        self._issued[step.index] += 1
        self._incomplete[step.stream] += 1
        queue = self._streams[step.stream]
        if queue or not self._may_start((step, unmet)):
            queue.append((step, unmet))
        else:
            self._start(step)

    def _target(self, need: CompletionNeed) -> int:
        """Return the instances of `need.step` that must be complete."""
        if need.distance and self._trip[need.loop] < need.distance:
            return 0
        return self._issued[need.step] - need.lag

    def _start(self, step: TaskStep) -> None:
        if step.takes is not None:
            self._log(step.takes)
        self._transfer(step)

    def _transfer(self, step: TaskStep) -> None:
        now = self.clock.now
        if step.uses_network and not step.delay_ps:
            self._move(step, now, self._flow_ended)
            return
        number = next(self._network.numbers)
        self._timers[number] = (step, now)
        delay = step.delay_ps if step.uses_network else step.alone_ps
        self.clock.call_after(delay, number, self._timer_ended)

    def _timer_ended(self, event: Event) -> None:
        step, started = self._timers.pop(cast(int, event.value))
        if step.uses_network:
            self._move(step, started, self._flow_ended)
        else:
            self._transferred(step, started)

    def _move(self, step: TaskStep, started: int, finish: Callable[[Flow], object]) -> None:
        """Put the flow of `step` on its links, or its messages; `finish` is called at their end."""
        flow = Flow(step, started, self.clock.now, finish)
        if self.hops is None or step.messages is None:
            self._network.start(flow)
        else:
            self.hops.start(flow, step.messages)

    def _flow_ended(self, flow: Flow) -> None:
        self._transferred(flow.step, flow.started)

    def _transferred(self, step: TaskStep, started: int) -> None:
        """End a transfer whose bytes have all been moved."""
        self._complete(step, started)

    def _complete(self, step: TaskStep, started: int) -> None:
        """End a transfer, start those that waited for it, and wake the core if it did."""
        self._end(step, started)
        self._done[step.index] += 1
        self._incomplete[step.stream] -= 1
        self._start_ready()
        if self._signal is not None:
            awaited, target = self._awaited
            if awaited == ~step.stream or (awaited == step.index and self._done[awaited] >= target):
                signal, self._signal = self._signal, None
                signal.succeed(step)

    def _start_ready(self) -> None:
        """Start the tasks at the head of their streams that wait for nothing any more."""
        for queue in self._streams:
            while queue and self._may_start(queue[0]):
                self._start(queue.popleft()[0])

    def _may_start(self, queued: QueuedStep) -> bool:
        return all(self._done[other] >= target for other, target in queued[1])

    def _wait_for(self, need: CompletionNeed) -> WaitEvents:
        """Hold the core until `need` is met."""
        target = self._target(need)
        if self._done[need.step] < target:
            yield from self._wait(need.step, target)

    def _wait_for_capacity(self, stream: int, limit: int) -> WaitEvents:
        """Hold the core until fewer than `limit` tasks of `stream` are incomplete."""
        while self._incomplete[stream] >= limit:
            yield from self._wait(~stream, 0)

    def _wait(self, awaited: int, target: int) -> WaitEvents:
        start = self._since = self.clock.now
        self._awaited = (awaited, target)
        self._signal = Event(self.clock.env)
        step = yield from self.clock.wait(self._signal)
        self._note_wait(step, start)

    def _note_wait(self, step: TaskStep, start: int) -> None:
        """Note that the core has waited for `step` until now."""
        self._note(self.journal.waits, step, start)

    def _wait_for_host(self) -> WaitEvents:
        """Hold the core until the host has run its tasks, one after another from the start."""
        ended = 0
        for step in self.code.host:
            began, ended = ended, ended + step.alone_ps
            self.journal.tasks.append((step, began, ended))
            now = self.clock.now
            left = ended - now - self.journal.booked_ps
            if left > 0:
                yield from self.clock.pause(left)
                self._note(self.journal.waits, step, now)

    def _end(self, step: TaskStep, started: int) -> None:
        if step.frees is not None:
            self._log(step.frees)
        self._note(self.journal.tasks, step, started)

    def _note(self, spans: list[JournalEntry[TimedStep]], step: TaskStep, started: int) -> None:
        booked = self.journal.booked_ps
        spans.append((step, started + booked, self.clock.now + booked))

    def _log(self, change: MemoryDelta) -> None:
        self.journal.changes.append((self.clock.now + self.journal.booked_ps, change))


def run_processes(env: Environment, lanes: Sequence[Lane]) -> int:
    """Run all lanes to their ends and return the number of events.

    Raise StalledError, with the position of each lane, if no event is left before.
    """
    events, step = 0, env.step
    try:
        for process in [env.process(lane.run()) for lane in lanes]:
            while not process.processed:
                step()
                events += 1
    except EmptySchedule:
        waiting = "; ".join(lane.status() for lane in lanes if not lane.finished)
        raise StalledError(f"nothing is left to happen, but {waiting}") from None
    finally:
        for name in [name for name, each in vars(env).items() if isinstance(each, MethodType)]:
            delattr(env, name)  # a method bound to its own object is a cycle
    return events


def lane_stats(lanes: Sequence[Lane], events: int, began_s: float) -> Stats:
    """Return the cost of a run of lanes that began at a time of `perf_counter`."""
    return Stats(
        events=events,
        trips_simulated=sum(lane.trips for lane in lanes),
        trips=sum(lane.code.trips for lane in lanes),
        folds=tuple(fold for lane in lanes for fold in lane.folder.folds),
        seconds=perf_counter() - began_s,
    )

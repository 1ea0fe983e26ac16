"""A lane that meets others in its collectives (see `meeting`).

A collective of the core holds it until the whole group has arrived; one of a stream holds the
stream, and the tasks behind it. From there on it is a transfer like any other on the lane's own
links, but it is complete only when those of all lanes of the group are. The time in which a lane
waits for others to arrive is noted as such, with the last of them.

Lanes fold together (see `fold`). A lane depends on those that it meets, directly or through others,
in a loop or in the loops within it; if the state of all of these recurs, so does all that they do,
until one of them is in its last iterations. They then stand still for the booked time. Each loop
has its own such sets of lanes: replicas that meet nobody inside a loop fold alone there.
"""

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tpusim.costs import STRAGGLERS
from tpusim.engine.flows import FlowNetwork
from tpusim.engine.instructions import LaneCode, LoopEnd, TaskStep
from tpusim.engine.lane import Lane, QueuedStep
from tpusim.engine.lane_clock import LaneClock, WaitEvents
from tpusim.engine.meeting import Gathering, Meeting


class Attendance(NamedTuple):
    """When a lane arrived at a collective and when it began, on its own clock."""

    gathering: Gathering
    arrived: int
    began: int


class CoupledLane(Lane):
    """The state of a lane among others; `run` is its process.

    meetings: those of its steps, by index.
    peers: for each loop the lanes that it folds with, itself included, in order of their numbers.
    """

    def __init__(
        self,
        clock: LaneClock,
        network: FlowNetwork,
        code: LaneCode,
        folding: bool,
        number: int,
        meetings: Mapping[int, Meeting],
    ) -> None:
        super().__init__(clock, network, code, folding)
        self.number = number
        self.peers: Sequence[Sequence[CoupledLane]] = [(self,)] * code.loops
        self._meetings = meetings
        self._names: Sequence[str] = ()
        # What the core does: it works, waits, has arrived at a collective, or moves its part.
        self._doing = ""
        # Of each stream that has arrived at a collective which has not begun: the task and since.
        self._arrived: dict[int, tuple[TaskStep, int]] = {}
        # Transfers under way, in their order, and those that wait for the other lanes to end.
        self._attended: dict[int, deque[Attendance]] = {}
        self._moved: dict[int, tuple[TaskStep, int]] = {}
        # Of the transfer for which the core waits, once it is complete.
        self._awaited_meeting: Attendance | None = None
        self._stragglers: dict[tuple[int, int], TaskStep] = {}

    def join(
        self, lanes: "Sequence[CoupledLane]", peers: "Sequence[Sequence[CoupledLane]]"
    ) -> None:
        """Make known all lanes, and for each loop those that this one folds with."""
        self._names = [lane.code.name for lane in lanes]
        self.peers = peers

    def _execute(self, step: TaskStep) -> WaitEvents:
        meeting = self._meetings.get(step.index)
        if meeting is None:
            self._doing = "work"
            yield from super()._execute(step)
            return
        arrived = self._since = self.clock.now
        if step.takes is not None:
            self._log(step.takes)
        gathering = meeting.arrive(self.number)
        self._doing = "arrive"
        yield from self.clock.wait(gathering.begun)
        began = self._since = self.clock.now
        self._note_stragglers(step, gathering, arrived, began)
        self._doing = "move"
        if step.volume:
            yield from self._delay_and_move(step, began)
        elif step.alone_ps:
            yield from self.clock.pause(step.alone_ps)
        gathering.end()
        yield from self.clock.wait(gathering.ended)
        self._end(step, began)

    def _may_start(self, queued: QueuedStep) -> bool:
        return queued[0].stream not in self._arrived and super()._may_start(queued)

    def _start(self, step: TaskStep) -> None:
        meeting = self._meetings.get(step.index)
        if meeting is None:
            super()._start(step)
            return
        if step.takes is not None:
            self._log(step.takes)
        gathering, arrived = meeting.arrive(self.number), self.clock.now
        self._arrived[step.stream] = step, arrived
        self.clock.on(gathering.begun, lambda: self._begin(step, gathering))

    def _begin(self, step: TaskStep, gathering: Gathering) -> None:
        """Begin a collective at which all lanes have arrived, and let the stream go on."""
        _, arrived = self._arrived.pop(step.stream)
        attendance = Attendance(gathering, arrived, self.clock.now)
        self._attended.setdefault(step.index, deque()).append(attendance)
        self._transfer(step)
        self._start_ready()

    def _transferred(self, step: TaskStep, started: int) -> None:
        attended = self._attended.get(step.index)
        if not attended:
            self._complete(step, started)
            return
        attendance = attended.popleft()
        number = next(self._network.numbers)
        self._moved[number] = step, started
        self.clock.on(attendance.gathering.ended, lambda: self._all_moved(number, attendance))
        attendance.gathering.end()

    def _all_moved(self, number: int, attendance: Attendance) -> None:
        """Complete a collective that has ended for all lanes."""
        step, started = self._moved.pop(number)
        awaited = self._signal
        self._complete(step, started)
        if awaited is not None and self._signal is None:
            self._awaited_meeting = attendance

    def _wait(self, awaited: int, target: int) -> WaitEvents:
        self._doing = "wait"
        yield from super()._wait(awaited, target)
        self._awaited_meeting = None

    def _note_wait(self, step: TaskStep, start: int) -> None:
        """Note a wait in three parts: before the lane arrived, for the others, and from then on."""
        met, now = self._awaited_meeting, self.clock.now
        if met is None or max(start, met.arrived) >= met.began:
            super()._note_wait(step, start)
            return
        arrived, began = max(start, met.arrived), met.began
        waits, booked = self.journal.waits, self.journal.booked_ps
        if start < arrived:
            waits.append((step, start + booked, arrived + booked))
        self._note_stragglers(step, met.gathering, arrived, began)
        if began < now:
            waits.append((step, began + booked, now + booked))

    def _note_stragglers(
        self, step: TaskStep, gathering: Gathering, arrived: int, began: int
    ) -> None:
        """Note the core's wait for the lanes that have not arrived."""
        if arrived < began:
            key = step.index, gathering.latest
            found = self._stragglers.get(key)
            if found is None:
                late = self._names[gathering.latest]
                task = replace(step.task, label=STRAGGLERS, stream=late)
                found = self._stragglers[key] = replace(step, task=task)
            booked = self.journal.booked_ps
            self.journal.waits.append((found, arrived + booked, began + booked))

    def _skip(self, loop: LoopEnd, trip: int) -> int:
        """Return the iterations to skip, if the first of its peers finds that all have repeated."""
        peers = self.peers[loop.loop]
        if peers[0] is not self:
            return 0
        state = tuple(peer.relative_state(loop, trip) for peer in peers)
        others = (loop.trips - 1 - peer.trip(loop) for peer in peers[1:])
        left = min(loop.trips - trip, *others) if len(peers) > 1 else loop.trips - trip
        before = self.journal.booked_ps
        times = [(peer.clock, peer.journal) for peer in peers]
        skipped = self.folder.skip(loop, trip, state, times, left)
        if skipped:
            for peer in peers:
                peer.clock.stand_still(self.journal.booked_ps - before)
                if peer is not self:
                    peer.go_ahead(loop, skipped)
        return skipped

    def trip(self, loop: LoopEnd) -> int:
        """Return the iteration of a loop that the lane is in."""
        return self._trip[loop.loop]

    def go_ahead(self, loop: LoopEnd, trips: int) -> None:
        """Take booked iterations off those that are left of a loop."""
        self._trip[loop.loop] += trips

    def relative_state(self, loop: LoopEnd, trip: int) -> Hashable:
        """Return everything that the lane's future depends on, relative to now.

        loop: the loop that is to fold.
        trip: the iteration of it that another lane is about to begin.
        """
        now, at = self.clock.now, self._trip[loop.loop]
        step, target = self._awaited
        waiting = self._signal is not None
        met = self._awaited_meeting
        return (
            (self._cursor, self.finished, self._doing, now - self._since, self.clock.frozen_ps),
            (at - trip, *(each for other, each in enumerate(self._trip) if other != loop.loop)),
            self._state(min(at, loop.reach)),
            (step, target - self._done[step] if step >= 0 else 0) if waiting else (),
            met and (met.gathering.latest, now - met.arrived, now - met.began),
            tuple((stream, step, now - since) for stream, (step, since) in self._arrived.items()),
            tuple((step, now - started) for step, started in self._moved.values()),
            tuple(
                (index, tuple((now - each.arrived, now - each.began) for each in under_way))
                for index, under_way in self._attended.items()
                if under_way
            ),
        )

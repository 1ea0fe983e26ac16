"""Exact folding in time: a loop whose state repeats is periodic from there on.

At the start of each iteration the lane's state is taken relative to now: the iterations that
dependencies can reach back to, the queue of each stream with its unmet dependencies, and for each
open transfer its time since the start and the bytes that it has left, in the order that decides
ties. The engine is a function of this state (nothing depends on absolute time), so when a state
recurs, everything since its first occurrence recurs too, for as long as iterations are left. Whole
periods are then taken off the iterations left, and their time is booked: the clock does not jump,
and transfers in flight stay as they are. Only equal state counts: two iterations of equal length
prove nothing.

A transfer of an outer body that is in flight differs in its time since the start, so nothing is
folded before it has ended. Memory does not steer the engine, so its level is not in the state.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tpusim.engine.instructions import LoopEnd
from tpusim.engine.journal import Journal, JournalMark
from tpusim.engine.lane_clock import LaneClock


class Fold(NamedTuple):
    """A periodic loop: `repeats` periods of `trips` iterations were booked, not simulated."""

    loop: str
    trips: int
    repeats: int
    period_ps: int


class FoldDetector:
    """The states seen at iterations of the loops that a lane is in, one table per loop entered.

    `wanted[loop]` is false once the loop has been folded: less than a period is left.
    """

    __slots__ = ("_seen", "folds", "wanted")

    def __init__(self, loops: int, folding: bool) -> None:
        self._seen: list[dict[Hashable, tuple[int, list[JournalMark]]]] = [{} for _ in range(loops)]
        self.wanted = [folding] * loops
        self.folds: list[Fold] = []

    def enter(self, loop: int, folding: bool) -> None:
        """Forget the states of an earlier run of the loop."""
        self._seen[loop] = {}
        self.wanted[loop] = folding

    def skip(
        self,
        loop: LoopEnd,
        trip: int,
        state: Hashable,
        lanes: Sequence[tuple[LaneClock, Journal]],
        left: int,
    ) -> int:
        """Return the iterations to skip at the start of `trip`; book their time and records.

        lanes: clock and journal of those whose state it is.
        left: iterations that may be skipped.
        """
        seen = self._seen[loop.loop]
        if state not in seen:
            seen[state] = (trip, [journal.mark(clock.now) for clock, journal in lanes])
            return 0
        first, marks = seen[state]
        self.wanted[loop.loop] = False
        repeats = left // (trip - first)
        if repeats:
            for (clock, journal), mark in zip(lanes, marks, strict=True):
                period = journal.repeat(mark, repeats, clock.now)
            self.folds.append(Fold(loop.name, trip - first, repeats, period))
        return repeats * (trip - first)

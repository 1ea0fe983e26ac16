"""Exact folding in time: a loop whose state repeats is periodic from there on.

At the start of each trip the lane's state is taken relative to now: how far the dependencies that
reach back can see, what each stream has yet to start and what that still waits for, and for each
open transfer its time since the start and the bytes that it has left, in the order that decides
ties. The engine is a function of this state (nothing depends on absolute time), so when a state
comes back, all that lay between comes back too, for as long as trips are left. Whole periods are
then taken off the trips left, and their time is booked: the clock does not jump, and what is in
flight stays as it is. Only equal state counts: two trips of equal length prove nothing.

A transfer of an outer body that is in flight differs in its time since the start, so nothing is
folded before it has ended. Memory does not steer the engine, so its level is not in the state.
"""

from collections.abc import Hashable
from typing import NamedTuple

from tpusim.engine.code import LoopEnd
from tpusim.engine.journal import Journal, Mark


class Fold(NamedTuple):
    """A loop was found periodic: `repeats` periods of `trips` trips were booked, not simulated."""

    loop: str
    trips: int
    repeats: int
    period_ps: int


class Folder:
    """The states seen at the trips of the loops that a lane is in, one table a loop entered.

    `wanted[loop]` is false once the loop has been folded: fewer trips than a period are left.
    """

    __slots__ = ("_journal", "_seen", "folds", "wanted")

    def __init__(self, journal: Journal, loops: int, folding: bool) -> None:
        self._journal = journal
        self._seen: list[dict[Hashable, tuple[int, Mark]]] = [{} for _ in range(loops)]
        self.wanted = [folding] * loops
        self.folds: list[Fold] = []

    def enter(self, loop: int, folding: bool) -> None:
        """Forget what was seen in an earlier run of the loop."""
        self._seen[loop] = {}
        self.wanted[loop] = folding

    def skip(self, loop: LoopEnd, trip: int, state: Hashable, clock_ps: int) -> int:
        """How many trips to leave out at the start of `trip`; their time and records are booked."""
        seen = self._seen[loop.loop]
        if state not in seen:
            seen[state] = (trip, self._journal.mark(clock_ps))
            return 0
        first, mark = seen[state]
        self.wanted[loop.loop] = False
        repeats = (loop.trips - trip) // (trip - first)
        if repeats:
            period = self._journal.repeat(mark, repeats, clock_ps)
            self.folds.append(Fold(loop.name, trip - first, repeats, period))
        return repeats * (trip - first)

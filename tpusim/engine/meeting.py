"""Collectives as rendezvous of lanes.

The lanes of a group begin a collective together, when the last of them has arrived, and end it
together, when the last has ended. Each comes to the collectives of its group in the order of the
program, so the n-th arrival of every lane at a step is for one and the same collective.
"""

from simpy import Environment, Event


class Gathering:
    """One collective of one group.

    begun, ended: events, once all lanes have arrived, and once all have ended.
    latest: the last lane to arrive, by number; of several at one time the first.
    """

    __slots__ = ("_arrived_ps", "_env", "_missing", "_moving", "begun", "ended", "latest")

    def __init__(self, env: Environment, lanes: int) -> None:
        self.begun = Event(env)
        self.ended = Event(env)
        self.latest = -1
        self._env = env
        self._arrived_ps = -1
        self._missing = self._moving = lanes

    def arrive(self, lane: int) -> bool:
        """Note that a lane has arrived; return True if it was the last."""
        now = int(self._env.now)
        if now > self._arrived_ps or lane < self.latest:
            self._arrived_ps, self.latest = now, lane
        self._missing -= 1
        if not self._missing:
            self.begun.succeed()
        return not self._missing

    def end(self) -> None:
        """Note that a lane's part of the transfer has ended."""
        self._moving -= 1
        if not self._moving:
            self.ended.succeed()


class Meeting:
    """The collectives of one step and one group of lanes, one after another."""

    __slots__ = ("_env", "_next", "lanes")

    def __init__(self, env: Environment, lanes: tuple[int, ...]) -> None:
        self.lanes = lanes
        self._env = env
        self._next: Gathering | None = None

    def arrive(self, lane: int) -> Gathering:
        """Return the collective that a lane has arrived at."""
        gathering = self._next or Gathering(self._env, len(self.lanes))
        self._next = None if gathering.arrive(lane) else gathering
        return gathering

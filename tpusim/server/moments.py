"""Events at a time, in an order that does not depend on when they were planned."""

from collections.abc import Callable

from simpy import Environment, Event
from simpy.events import EventPriority

DOWN, END, UP, ARRIVAL, BEGIN = (part * 1_000_000 for part in range(1, 6))
"""What comes first of all that happens in the same picosecond.

Steps end, then requests arrive and are routed, then steps begin. To DOWN, END and BEGIN the number
of the replica is added.
"""


class Picoseconds(Environment):
    """SimPy's environment with a clock of whole picoseconds."""

    _now: int

    @property
    def now(self) -> int:
        """The present time."""
        return self._now

    @property
    def busy(self) -> bool:
        """Something else happens in the present picosecond."""
        return bool(self._queue) and self._queue[0][0] <= self._now

    @property
    def next_ps(self) -> int | None:
        """The time at which something happens next; None if nothing does."""
        return int(self._queue[0][0]) if self._queue else None

    def advance(self, delay: int) -> bool:
        """Go on by `delay` picoseconds if nothing happens until then; return whether it is so."""
        later = self._now + delay
        if self._queue and self._queue[0][0] <= later:
            return False
        self._now = later
        return True


class Moment(Event):
    """An event that calls a function after `delay` picoseconds."""

    _ok = True
    _value = None

    def __init__(
        self, env: Picoseconds, delay: int, order: int, call: Callable[[Event], None]
    ) -> None:
        self.env = env
        self.callbacks = [call]
        env.schedule(self, EventPriority(order), delay)

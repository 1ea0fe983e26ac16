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

    @property
    def now(self) -> int:
        """The present time."""
        return int(self._now)


class Moment(Event):
    """An event that calls a function after `delay` picoseconds."""

    def __init__(
        self, env: Picoseconds, delay: int, order: int, call: Callable[[Event], None]
    ) -> None:
        self.env = env
        self.callbacks = [call]
        self._ok = True
        self._value = None
        env.schedule(self, EventPriority(order), delay)

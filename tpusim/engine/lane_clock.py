"""The clock of a lane, which can stand still.

Several lanes run in one SimPy environment, whose clock never jumps. When some of them have repeated
themselves and book whole periods (see `fold`), they stand still for the booked time, while the
others go on: their own clock shows what it showed before, and everything that they have scheduled
comes so much later. A lane alone has nobody to wait for it, so its clock never stands still.
Instead, while it has nothing in flight, its clock goes ahead of SimPy's, which spares an event.
"""

from collections.abc import Callable, Generator
from typing import Any

from simpy import Environment, Event
from simpy.events import Timeout

WaitEvents = Generator[Event, Any, Any]


class LaneClock:
    """The time of a lane in picoseconds.

    alone: True if no other lane has this environment.
    stood_ps: the time that it has stood still, or will have when it goes on at `frozen_until`;
        below 0 if it has gone ahead.
    skipped: the number of times that it has gone ahead.
    """

    __slots__ = ("alone", "env", "frozen_until", "skipped", "stood_ps")

    def __init__(self, env: Environment, alone: bool = False) -> None:
        self.env = env
        self.alone = alone
        self.skipped = 0
        self.stood_ps = 0
        self.frozen_until = 0

    @property
    def now(self) -> int:
        """The time that the clock shows, once it goes on."""
        return int(self.env.now) - self.stood_ps

    def go_ahead(self, picoseconds: int) -> None:
        """Go ahead of SimPy's clock, for a lane alone that has nothing in flight."""
        self.stood_ps -= picoseconds
        self.skipped += picoseconds > 0

    def stand_still(self, picoseconds: int) -> None:
        """Stand still from now, or from the time at which it would have gone on."""
        self.stood_ps += picoseconds
        self.frozen_until = max(self.frozen_until, int(self.env.now)) + picoseconds

    @property
    def frozen_ps(self) -> int:
        """The time until it goes on."""
        return max(0, self.frozen_until - int(self.env.now))

    def stand(self) -> WaitEvents:
        """Wait until it goes on, if it stands still."""
        while self.frozen_until > self.env.now:
            yield Timeout(self.env, self.frozen_ps)

    def pause(self, picoseconds: int) -> WaitEvents:
        """Wait for a time on this clock."""
        stood = self.stood_ps
        yield Timeout(self.env, picoseconds)
        while self.stood_ps != stood:
            late, stood = self.stood_ps - stood, self.stood_ps
            yield Timeout(self.env, late)

    def call_after(self, delay: int, number: int, callback: Callable[[Event], None]) -> None:
        """Call `callback` once, after a time on this clock, with an event of value `number`."""
        stood = self.stood_ps

        def ended(event: Event) -> None:
            late = self.stood_ps - stood
            if late > 0:
                self.call_after(late, number, callback)
            else:
                callback(event)

        Timeout(self.env, delay, number).callbacks.append(ended)

    def wait(self, event: Event) -> WaitEvents:
        """Wait for something that happens, and until the clock goes on; return the event's value.

        What happens to a lane that stands still was about to happen when it stopped.
        """
        value = yield event
        yield from self.stand()
        return value

    def on(self, event: Event, callback: Callable[[], None]) -> None:
        """Call `callback` once something has happened, and the clock goes on."""

        def happened(_: Event) -> None:
            if self.frozen_ps:
                Timeout(self.env, self.frozen_ps).callbacks.append(happened)
            else:
                callback()

        event.callbacks.append(happened)

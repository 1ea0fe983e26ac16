"""When the steps of a replica begin and end, whatever they compute."""

from abc import ABC, abstractmethod

from simpy import Event

from tpusim.server.decode_run import DecodeRun
from tpusim.server.moments import BEGIN, END, Moment, Picoseconds
from tpusim.server.sequence import Sequence


class SteppedReplica(ABC):
    """A replica in time: its steps, one after another.

    A step is planned when it begins and takes effect when it ends. Decode steps in a row are one
    run, which ends with the first sequence that is complete or finds no page, or with the step in
    which a request arrives that may be admitted. A step that ends before anything else happens
    needs no event.

    up: whether it serves; it is set from outside.
    ending: the end of the present steps; None while it is idle.
    run: the present steps, if they decode alone.
    start, steps, duration: of the present steps.
    """

    def __init__(self, env: Picoseconds, number: int) -> None:
        self.env = env
        self.number = number
        self.up = True
        self.asked = False
        self.ending: Moment | None = None
        self.run: DecodeRun | None = None
        self.start = self.steps = self.duration = 0

    @property
    @abstractmethod
    def present(self) -> int:
        """Sequences that are here."""

    @abstractmethod
    def arrive(self, sequence: Sequence) -> None:
        """Take a sequence that arrives now."""

    @abstractmethod
    def cached(self, sequence: Sequence) -> int:
        """Return the tokens of a prompt that are cached."""

    @abstractmethod
    def _next(self, now: int) -> bool:
        """Plan the next steps, if there is something to do; return whether there is."""

    @abstractmethod
    def _take_effect(self, now: int, steps: int) -> None:
        """Let the sequences have what was computed in steps that end now."""

    def _goes_on(self) -> bool:
        """Return whether the present run is longer than it was planned, now that this has ended."""
        return False

    def wake(self) -> None:
        """Begin a step once all has happened that happens now, if there is none."""
        if self.ending is None and not self.asked and self.up:
            self.asked = True
            Moment(self.env, 0, BEGIN + self.number, self._begin)

    def _begin(self, _: Event) -> None:
        self.asked = False
        if self.ending is None and self.up:
            self._go_on(self.env.now)

    def _go_on(self, now: int) -> None:
        """Run steps until something else happens."""
        env = self.env
        while self._next(now):
            if not env.advance(self.duration):
                self.ending = Moment(env, self.duration, END + self.number, self._end)
                return
            now += self.duration
            self._take_effect(now, self.steps)
            if env.busy:
                self.wake()
                return

    def _end(self, event: Event) -> None:
        if event is not self.ending:  # the run was cut short, or lost
            return
        now = self.env.now
        if self._goes_on():
            left = self.start + self.duration - now
            self.ending = Moment(self.env, left, END + self.number, self._end)
            return
        self.ending = None
        self._take_effect(now, self.steps)
        if self.env.busy:
            self.wake()
        else:
            self._go_on(now)

    def _cut_short(self) -> None:
        """End a run with the step in which something has happened now."""
        if self.run is None or self.steps == 1:
            return
        elapsed = self.env.now - self.start
        steps, duration = self.run.first_by(elapsed, self.steps, self.duration)
        if steps < self.steps:
            self.steps, self.duration = steps, duration
            self.ending = Moment(self.env, duration - elapsed, END + self.number, self._end)

    def _steps_done(self) -> int:
        """Return how many steps of the present run have ended before now."""
        if self.run is None or self.steps == 1:
            return 0
        return self.run.first_by(self.env.now - self.start, self.steps, self.duration)[0] - 1

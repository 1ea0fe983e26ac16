"""Decode steps of the same sequences in a row, and how long they take."""

from bisect import bisect_left

from tpusim.server.step_load import StepCosts


class DecodeRun:
    """Decode steps in a row, in which each sequence grows and none comes or goes.

    decodes, context, growth: of the first step, as `StepCosts.decode_ps` takes them.
    host_ps: time of the host before each step.
    least_ps: the least time of a step, the host included.
    """

    __slots__ = ("context", "costs", "decodes", "growth", "host_ps", "least_ps", "looked", "short")

    def __init__(
        self,
        costs: StepCosts,
        decodes: int,
        context: int,
        growth: int,
        host_ps: int = 0,
        least_ps: int = 0,
    ) -> None:
        self.costs = costs
        self.decodes = decodes
        self.context = context
        self.growth = growth
        self.host_ps = host_ps
        self.least_ps = least_ps
        self.looked = self.short = 0

    def ps(self, steps: int) -> int:
        """Return the time of the first steps, the host included."""
        if not self.least_ps:
            time = self.costs.decode_ps(self.decodes, self.context, steps, self.growth)
            return time + steps * self.host_ps
        short = self._short(steps)
        if short == steps:
            return steps * self.least_ps
        return short * self.least_ps + self._devices_ps(short, steps - short)

    def _devices_ps(self, first: int, steps: int) -> int:
        """Return the time of steps from one on, each as long as the devices and `host_ps`."""
        context = self.context + first * self.growth
        time = self.costs.decode_ps(self.decodes, context, steps, self.growth)
        return time + steps * self.host_ps

    def _short(self, steps: int) -> int:
        """Return how many of the first steps take the least time, as the devices take less."""
        if steps > self.looked and self.short == self.looked:
            every = range(self.looked, steps)
            least = self.least_ps
            self.short += bisect_left(every, least, key=lambda step: self._devices_ps(step, 1))
            self.looked = steps
        return min(self.short, steps)

    def foreseen(self, elapsed: int, steps: int) -> tuple[int, int]:
        """Return which of `steps` steps ends first more than `elapsed` after the start, and when.

        No step is shorter than the first, so it is one of the first `elapsed / first + 1`. Return
        (0, 0) unless it is the last of these: all of the run, or a search, tells it then.
        """
        most = elapsed // self.ps(1) + 1
        if most >= steps:
            return 0, 0
        time = self.ps(most)
        if elapsed < time and (time - elapsed) * most < time:
            return most, time
        return 0, 0

    def first_by(self, elapsed: int, steps: int, total: int) -> tuple[int, int]:
        """Return which of `steps` steps ends first `elapsed` after the start or later, and when.

        total: the time of all steps, at least `elapsed`.

        No step is longer than a later one. So the last of some steps takes their mean or more, and
        a step that ends less than that after `elapsed` is the first.
        """
        low, low_ps, high, high_ps = 0, 0, steps, total
        while high - low > 1:
            guess = low + -(-(elapsed - low_ps) * (high - low) // ((high_ps - low_ps) or 1))
            if not low < guess < high:
                guess = low + 1 if guess <= low else high - 1
            time = self.ps(guess)
            if time >= elapsed:
                if (time - elapsed) * (guess - low) < time - low_ps:
                    return guess, time
                high, high_ps = guess, time
            else:
                low, low_ps = guess, time
        return high, high_ps

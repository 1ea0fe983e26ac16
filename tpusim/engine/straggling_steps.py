"""Steps of a run that meet stragglers, event by event, in picoseconds.

Steps that are alike are one span: an event is a step that a pause delays, or a change between times
with and without a slow chip. A step keeps the state in which it begins.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, log1p
from typing import NamedTuple

Draw = Callable[[], float]
"""Draws a random number."""

ALWAYS = 20.0
"""Slow chips in the mean, from which there is always one."""


class StepState(NamedTuple):
    """Steps with or without a slow chip.

    step_ps: of a step that no pause delays.
    delayed_ps: lengths of the others.
    below: chance that a delayed step has one of the lengths up to each, increasing to 1.
    chance: that a step is delayed.
    """

    step_ps: int
    delayed_ps: tuple[int, ...] = ()
    below: tuple[float, ...] = ()
    chance: float = 0.0


def slow_times(
    mean_slow: float, duration_ps: float, exponential: Draw
) -> Iterator[tuple[bool, float]]:
    """Yield whether a chip is slow, and until when, from 0 on without a gap.

    mean_slow: slow chips at a time, in the mean (an M/G/infinity queue with exponential durations).
    duration_ps: for which a chip is slow, in the mean.
    exponential: draws a number with an exponential distribution of mean 1.
    """
    if not mean_slow or mean_slow > ALWAYS:
        yield mean_slow > ALWAYS, inf
        return
    between = duration_ps / mean_slow
    until, count = 0.0, exponential()
    while count < mean_slow:  # those that are slow at first
        until = max(until, duration_ps * exponential())
        count += exponential()
    arrival = between * exponential()
    while True:
        while arrival <= until:
            until = max(until, arrival + duration_ps * exponential())
            arrival += between * exponential()
        yield True, until
        yield False, arrival
        until = arrival


def run_steps(
    states: Sequence[StepState], times: Iterator[tuple[bool, float]], steps: int, uniform: Draw
) -> Mapping[int, int]:
    """Return how many steps of a run have each length.

    states: without and with a slow chip.
    times: as of `slow_times`.
    uniform: draws a number from 0 up to 1.
    """
    found: Counter[int] = Counter()
    now = 0
    for slow, until in times:
        state = states[slow]
        while now < until and steps:
            plain, hit = _next_delay(state, until - now, steps, uniform)
            found[state.step_ps] += plain
            now += plain * state.step_ps
            if hit:
                length = state.delayed_ps[bisect(state.below, uniform())]
                found[length] += 1
                now += length
            steps -= plain + hit
        if not steps:
            break
    return +found


def _next_delay(state: StepState, left: float, steps: int, uniform: Draw) -> tuple[int, bool]:
    """Return the steps until one is delayed, and whether one is, before the state or run ends."""
    fitting = steps if left == inf else min(steps, int(-(-left // state.step_ps)))
    if not state.chance:
        return fitting, False
    before = 0 if state.chance >= 1 else int(log1p(-uniform()) / log1p(-state.chance))
    return (before, True) if before < fitting else (fitting, False)

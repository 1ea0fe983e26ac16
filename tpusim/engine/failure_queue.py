"""Failures of a training run as they come, each of a kind."""

import heapq
from collections.abc import Callable, Sequence
from enum import StrEnum
from math import gamma
from typing import NamedTuple


class Loss(StrEnum):
    """What a failure takes."""

    UNIT = "unit"
    LINK = "link"
    PROCESS = "process"


class FailureKind(NamedTuple):
    """Failures of one cause, in picoseconds.

    between_ps: mean time between two of them, of the whole run.
    shape: of the Weibull distribution of that time; 1 is exponential.
    loss: what they take.
    detection_ps: until one is known.
    hang_share, hang_ps: the share that is known only after a time limit, and that limit.
    repair_ps: mean time, exponentially distributed, until what failed is back.
    notice_ps: time of notice before one.
    excess_ps: of a lost link, what a step takes longer until it is repaired.
    replaced: a spare unit takes the place of the one with a lost link, if there is one.
    """

    name: str
    between_ps: float
    shape: float
    loss: Loss
    detection_ps: int
    hang_share: float
    hang_ps: int
    repair_ps: float
    notice_ps: int = 0
    excess_ps: int = 0
    replaced: bool = False

    @property
    def swaps(self) -> bool:
        """A unit leaves the run: it failed, or a spare takes the place of one with a lost link."""
        return self.loss is Loss.UNIT or self.replaced


class Draws(NamedTuple):
    """Sources of random numbers: one a question, so that two plans meet the same failures.

    between: for the time between two failures, exponential of mean 1.
    kind: for the kind of a failure, from 0 to below 1.
    hang: for how it is detected, from 0 to below 1.
    repair: for the time of its repair, exponential of mean 1.
    """

    between: Callable[[], float]
    kind: Callable[[], float]
    hang: Callable[[], float]
    repair: Callable[[], float]


class FailureQueue:
    """The next failures: all exponential kinds are one stream, each other kind has its own."""

    def __init__(self, kinds: Sequence[FailureKind], draws: Draws) -> None:
        self._draws = draws
        self._even = [kind for kind in kinds if kind.shape == 1.0]
        self._rate = sum(1 / kind.between_ps for kind in self._even)
        self._queue: list[tuple[int, int]] = []
        self._others = [kind for kind in kinds if kind.shape != 1.0]
        for number in range(-1 if self._even else 0, len(self._others)):
            self._plan(number, 0)

    @property
    def next_ps(self) -> int | None:
        """The time of the next failure; None if none comes."""
        return self._queue[0][0] if self._queue else None

    def take(self) -> FailureKind:
        """Return the next failure, and plan the one after it."""
        now, number = heapq.heappop(self._queue)
        self._plan(number, now)
        return self._others[number] if number >= 0 else self._any_even()

    def _plan(self, number: int, now: int) -> None:
        drawn = self._draws.between()
        if number < 0:
            wait = drawn / self._rate
        else:
            kind = self._others[number]
            wait = kind.between_ps / gamma(1 + 1 / kind.shape) * drawn ** (1 / kind.shape)
        heapq.heappush(self._queue, (now + max(1, round(wait)), number))

    def _any_even(self) -> FailureKind:
        if len(self._even) == 1:
            return self._even[0]
        left = self._draws.kind() * self._rate
        for kind in self._even:
            left -= 1 / kind.between_ps
            if left < 0:
                return kind
        return self._even[-1]

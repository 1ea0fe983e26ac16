"""The climb from a plan to a faster one: choices that help are taken one after the other.

Gains do not add up, so each choice is simulated on top of those that were taken. The gain that it
had before says when it is worth that: after the first round, choices are tried in the order of
their last gains, and the first that keeps its place is taken (lazy greedy evaluation, Minoux 1978).
What would be faster but does not fit is tried with what frees memory. At the end all choices are
tried once more.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TypeAlias

from tpusim.results.proposal import Effort
from tpusim.simulation.advice.decisions import Choice, Decisions
from tpusim.simulation.advice.trials import Candidate, Trials

LEAST = 0.0005
"""The smallest fraction of the step that a choice has to save."""

KEEPS = 0.9
"""A choice is taken if its gain is at least so much of the next one's last gain."""

MOST_PAIRS = 8
"""Faster trials that do not fit that are simulated with something that frees memory, at a time."""

ROOMY = 0.95
"""The fraction of HBM that a plan needs which fits for sure, about."""

LITTLE_TIME = 0.02
"""The fraction of a step that anything which frees memory counts as taking."""

LEAST_FREED = 0.5
"""The smallest gain of a choice that frees memory: a hundredth of what is too much."""

Key: TypeAlias = tuple[str, str]
"""A choice: its decision and its words."""

MoreChoices: TypeAlias = Callable[[Candidate], Iterable[Choice]]
"""Choices of a candidate's plan, besides those of its decisions."""


@dataclass
class Climb:
    """The state of a climb.

    trials: what was simulated.
    most: the effort that choices may take.
    more: further choices of a plan, besides those of its decisions.
    gains: the last gain of each choice, as a fraction of the step.
    needs: the last bytes of HBM that each choice needed more.
    wanted: candidates that are faster than what was reached, and do not fit.
    """

    trials: Trials
    most: Effort
    more: MoreChoices = lambda candidate: ()
    gains: dict[Key, float] = field(default_factory=dict)
    needs: dict[Key, float] = field(default_factory=dict)
    wanted: list[Candidate] = field(default_factory=list)

    def top(self, start: Candidate) -> Candidate:
        """Return the best candidate that is reached from one, by the gains that are known."""
        best = start
        while (found := self._next(best) or self._with_room(best)) is not None:
            best = found
        return best

    def once_more(self, top: Candidate) -> Candidate:
        """Return the best candidate from a top, when all choices are tried anew."""
        while True:
            self.gains.clear()
            found = self.top(top)
            if found is top:
                return top
            top = found

    def _next(self, best: Candidate) -> Candidate | None:
        """Return the first choice that keeps its place, or the best of all; None if none helps."""
        last = [(self.gains.get(_key(one), inf), one) for one in self._choices(best)]
        last.sort(key=lambda pair: -pair[0])
        leader: Candidate | None = None
        for (gain, choice), (after, _) in pairwise([*last, (0.0, None)]):
            if choice is None or gain < LEAST:
                break
            tried = self._tried(best, choice)
            if tried is not None and _helps(tried, best):
                leader = tried if leader is None else max(leader, tried, key=gain_from(best))
            if leader is not None and gain_from(best)(leader) >= KEEPS * after:
                return leader
        return leader

    def _tried(self, best: Candidate, choice: Choice) -> Candidate | None:
        """Simulate a choice on top of a candidate, and remember what it gains and needs."""
        tried = self.trials.of(best.taking(choice))
        self.gains[_key(choice)] = -1.0 if tried is None else gain_from(best)(tried)
        if tried is not None:
            self.needs[_key(choice)] = tried.need - best.need
            if not tried.fits and tried.per_example < best.per_example * (1 - LEAST):
                self.wanted.append(tried)
        return tried

    def _with_room(self, best: Candidate) -> Candidate | None:
        """Return the best of the faster candidates with a choice that makes it fit; None if none.

        Pairs are tried in the order of the time that the last gains promise, as long as they
        promise to fit.
        """
        promised = sorted(self._promised(best), key=lambda pair: pair[0])
        leader: Candidate | None = None
        for time, choices in promised[:MOST_PAIRS]:
            if time >= (leader or best).per_example:
                break
            tried = self.trials.of(choices)
            if tried is not None and _helps(tried, leader or best):
                leader = tried
        self.wanted.clear()
        return leader

    def _promised(self, best: Candidate) -> Iterator[tuple[float, tuple[Choice, ...]]]:
        """Yield faster candidates with a choice that may make each fit, and the promised times.

        Choices are promised to gain and to free what they last did.
        """
        for one in self.wanted:
            room = ROOMY * one.result.hbm_bytes
            for choice in self._choices(one):
                need = one.need + self.needs.get(_key(choice), 0.0)
                gain = self.gains.get(_key(choice), 0.0)
                time = one.per_example * (1 - min(gain, 0.0))
                if need <= room and time < best.per_example:
                    yield time, one.taking(choice)

    def _choices(self, candidate: Candidate) -> Iterator[Choice]:
        plan = candidate.result.plan
        yield from Decisions(candidate.result.model, plan).of(self.most)
        yield from self.more(candidate)


def _key(choice: Choice) -> Key:
    return choice.decision, choice.what


def gain_from(before: Candidate) -> Callable[[Candidate], float]:
    """Return the gain of candidates on top of another one.

    It is the fraction of the time that a candidate saves, where the one before fits; otherwise the
    fraction of what is too much that it frees, over the time that this takes.
    """
    have = before.result.hbm_bytes
    excess = max(before.need - ROOMY * have, (1 - ROOMY) * have)

    def gain(candidate: Candidate) -> float:
        saves = 1 - candidate.per_example / before.per_example
        if before.fits:
            return saves
        freed = min((before.need - candidate.need) / excess, 1.0)
        return (freed + candidate.fits) / (max(-saves, 0.0) + LITTLE_TIME)

    return gain


def _helps(candidate: Candidate, best: Candidate) -> bool:
    """Return True for a candidate that fits and the best does not, or that is better by enough."""
    if candidate.fits != best.fits:
        return candidate.fits
    return gain_from(best)(candidate) > (LEAST if best.fits else LEAST_FREED)

"""Trials of a search for faster plans: choices that were taken together, simulated once each."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from tpusim.base.errors import TpusimError
from tpusim.base.hashable import hashable
from tpusim.hardware import candidates
from tpusim.results import Fit, PlanResult
from tpusim.simulation.advice.decisions import Choice
from tpusim.simulation.changed_run import run_changed

MOST_TRIALS = 400
"""Plans that one search simulates."""


class Candidate(NamedTuple):
    """Choices that were taken together, and the step with them.

    choices: one for each decision that was changed.
    per_example: seconds of the step over those of the base, for as many examples.
    """

    choices: tuple[Choice, ...]
    result: PlanResult
    per_example: float

    @property
    def fits(self) -> bool:
        """True if it fits for sure, on its hosts too."""
        have = self.result.pod.chip.host_bytes
        on_host = have is None or self.result.host_need_bytes <= have
        return on_host and self.result.fit is Fit.FITS

    @property
    def need(self) -> float:
        """Bytes of HBM at the peak."""
        return self.result.hbm_peak_bytes

    @property
    def rank(self) -> tuple[bool, float]:
        """What trials are ordered by: those that fit by their time, the others by their need."""
        return (not self.fits, self.per_example if self.fits else self.need)

    def taking(self, choice: Choice) -> tuple[Choice, ...]:
        """Return the choices with another one, in place of the one of the same decision."""
        others = (one for one in self.choices if one.decision != choice.decision)
        return (*others, choice)

    def without(self, choice: Choice) -> tuple[Choice, ...]:
        """Return the choices but one."""
        return tuple(one for one in self.choices if one is not choice)


@dataclass
class Trials:
    """Plans that were simulated in the place of a run.

    base: the run.
    known: results by their keys; None for plans that are refused.
    most: plans that may be simulated.
    wanted: the fastest of those that do not fit.
    """

    base: PlanResult
    known: dict[Hashable, PlanResult | None] = field(default_factory=dict)
    most: int = MOST_TRIALS
    wanted: Candidate | None = None

    @property
    def start(self) -> Candidate:
        """The run as it is."""
        return Candidate((), self.base, 1.0)

    @property
    def over(self) -> bool:
        """True if no more plans may be simulated."""
        return len(self.known) >= self.most

    def of(self, choices: tuple[Choice, ...]) -> Candidate | None:
        """Return the candidate of choices; None if it is refused, or nothing more is tried."""
        if not choices:
            return self.start
        keys = keys_of(choices)
        key = key_of(keys)
        if key not in self.known:
            if self.over:
                return None
            self.known[key] = self._run(keys)
        result = self.known[key]
        if result is None:
            return None
        made = Candidate(choices, result, per_example(self.base, result))
        if not made.fits and (self.wanted is None or made.per_example < self.wanted.per_example):
            self.wanted = made
        return made

    def _run(self, keys: Mapping[str, Any]) -> PlanResult | None:
        """Simulate changed keys in the place of the run, another mesh in its first place."""
        base = self.base
        try:
            plan = base.plan.replace(**keys).replace(placement=None)
            moved = plan.mesh != base.plan.mesh
            among = candidates(base.pod, plan.mesh)[:1] if moved else [base.placement]
            return run_changed(base, plan, base.pod, None, among=among)
        except TpusimError:
            return None


def key_of(keys: Mapping[str, Any]) -> Hashable:
    """Return the same for the same keys and values, in whatever order they were chosen."""
    return hashable(dict(sorted(keys.items())))


def keys_of(choices: Iterable[Choice]) -> dict[str, Any]:
    """Return the keys of all choices."""
    return dict(chain.from_iterable(choice.keys.items() for choice in choices))


def per_example(base: PlanResult, result: PlanResult) -> float:
    """Return the step of a result over that of a base, for as many examples."""
    examples = result.plan.global_batch / base.plan.global_batch
    return result.step_time_s / examples / base.step_time_s

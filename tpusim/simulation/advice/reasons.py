"""Why a step takes as long as it does, with changes that were simulated on the run's placement."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.base.hashable import hashable
from tpusim.base.same import Same
from tpusim.results import Fit, PlanResult, Reason, Result
from tpusim.results.reasons import found_reasons
from tpusim.results.settings import settings_of
from tpusim.simulation.advice.reason_changes import Remedy, remedies
from tpusim.simulation.changed_run import run_changed

MOST_SIMULATIONS = 6
"""Changes that are simulated for the reasons of one step, at most."""

LEAST_SAVED = 5e-3
"""The fraction of the step from which a change is said to save something."""


def plan_reasons(result: PlanResult) -> tuple[Reason, ...]:
    """Return why the step of a plan takes as long as it does, with changes that save time."""
    return _plan_reasons(Same((result,)))


@lru_cache(maxsize=4)
def _plan_reasons(key: Same) -> tuple[Reason, ...]:
    result: Any = key.objects[0]
    found = found_reasons(result)
    trials = _Trials(result)
    trials.spend([list(remedies(reason, result)) for reason in found])
    return tuple(trials.answered(at, reason) for at, reason in enumerate(found))


def replay_reasons(result: Result) -> tuple[Reason, ...]:
    """Return why the step of a compiled program takes as long as it does, without changes."""
    return _replay_reasons(Same((result,)))


@lru_cache(maxsize=4)
def _replay_reasons(key: Same) -> tuple[Reason, ...]:
    result: Any = key.objects[0]
    return found_reasons(result)


@dataclass(slots=True)
class _Trials:
    """The changes that were simulated for the reasons of one run.

    known: results by the change; None for those that cannot be.
    tried: the changes that were simulated, by the number of the reason.
    """

    base: PlanResult
    known: dict[Any, PlanResult | None] = field(default_factory=dict)
    tried: dict[int, list[tuple[Remedy, PlanResult]]] = field(default_factory=dict)

    def spend(self, wanted: Sequence[Sequence[Remedy]]) -> None:
        """Simulate changes within the budget: the first of each reason, then the second ones."""
        for place in range(max(map(len, wanted), default=0)):
            for at, each in enumerate(wanted):
                if place < len(each):
                    self._try(at, each[place])

    def _try(self, at: int, remedy: Remedy) -> None:
        key = hashable((remedy.keys, remedy.input_keys, str(remedy.pod)))
        if key not in self.known:
            if len(self.known) == MOST_SIMULATIONS:
                return
            self.known[key] = self._simulated(remedy)
        if (found := self.known[key]) is not None:
            self.tried.setdefault(at, []).append((remedy, found))

    def _simulated(self, remedy: Remedy) -> PlanResult | None:
        base = self.base
        given = None if base.input is None else base.input.given
        try:
            if given is not None and remedy.input_keys:
                given = given.replace(**remedy.input_keys)
            plan = base.plan.replace(**remedy.keys)
            pod, placement = remedy.pod or base.pod, remedy.placement or base.placement
            return run_changed(base, plan, pod, placement, given)
        except TpusimError:
            return None

    def answered(self, at: int, reason: Reason) -> Reason:
        """Return a reason with the change that saves most, of those that fit."""
        able = [each for each in self.tried.get(at, ()) if self._fits(each[1])]
        best = max(able, key=lambda each: self._saves(each[1]), default=None)
        if best is None or self._saves(best[1]) < LEAST_SAVED:
            return reason
        remedy, result = best
        return replace(
            reason,
            change=remedy.what,
            settings=_settings(remedy),
            step_time_s=result.step_time_s,
            saves=self._saves(result),
        )

    def _saves(self, result: PlanResult) -> float:
        return 1 - result.step_time_s / self.base.step_time_s

    def _fits(self, result: PlanResult) -> bool:
        """Return True for a result as sure to fit; if neither fits, one that needs no more HBM."""
        worse = result.fit is Fit.TOO_LARGE and result.hbm_peak_bytes > self.base.hbm_peak_bytes
        return result.fit.order <= self.base.fit.order and not worse


def _settings(remedy: Remedy) -> tuple[str, ...]:
    """Return a change for `--set`, a text for each key."""
    given = {key: value for key, value in remedy.input_keys.items() if value is not None}
    return settings_of(remedy.keys) + settings_of(given, "input")

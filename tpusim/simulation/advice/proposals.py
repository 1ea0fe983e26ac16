"""Proposals from a search: each is simulated as the run file with its settings would be."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.hardware import Placement
from tpusim.results import PlanResult
from tpusim.results.proposal import Part, Proposal
from tpusim.results.settings import settings_of
from tpusim.simulation.advice.decisions import Choice, changed_keys, other_remat
from tpusim.simulation.advice.search import Search
from tpusim.simulation.advice.trials import Candidate, Trials, key_of, keys_of, per_example
from tpusim.simulation.changed_run import run_changed


def proposals(base: PlanResult) -> tuple[Proposal, ...]:
    """Return the best combined changes of a run, those that take least effort first."""
    made = _Proposals(base)
    found = (made.proposal(candidate) for candidate in Search(Trials(base)).found())
    return tuple(each for each in found if each is not None)


@dataclass(frozen=True)
class _Proposals:
    """What makes proposals of candidates.

    base: the run as it is.
    known: results where they are placed, by the keys that are changed.
    """

    base: PlanResult
    known: dict[Hashable, PlanResult | None] = field(default_factory=dict)

    def proposal(self, candidate: Candidate) -> Proposal | None:
        """Return the proposal of a candidate; None if its own placements refuse it."""
        choices = sorted(map(self._named, candidate.choices), key=self._gain)
        parts, before = list[Part](), self.base
        for count, choice in enumerate(choices, 1):
            found = self._placed(keys_of(choices[:count]))
            parts.append(self._part(choice, before, found or before))
            before = found or before
        found = self._placed(keys_of(choices))
        if found is None:
            return None
        result, keys = found, self._written(found, keys_of(choices))
        plan = self.base.plan.replace(**keys)
        return Proposal(
            parts=tuple(parts),
            settings=settings_of(keys),
            plan=plan,
            pod=result.pod,
            placement=self._given(keys),
            before_s=self.base.step_time_s,
            step_time_s=result.step_time_s,
            saves=1 - per_example(self.base, result),
            hbm_peak_bytes=result.hbm_peak_bytes,
            hbm_bytes=result.hbm_bytes,
            fit=result.fit,
            odds=result.hbm_odds,
        )

    def _named(self, choice: Choice) -> Choice:
        """Return a choice in words by what it changes of the run, without keys that stay."""
        if choice.decision == "remat":
            now = self.base.plan.remat
            policy, save, offload = (choice.keys[key] for key in ("remat", "save", "offload"))
            choice = other_remat(now, replace(now, policy=policy, save=save, offload=offload))
        return choice._replace(keys=changed_keys(self.base.plan, choice.keys))

    def _gain(self, choice: Choice) -> tuple[int, float]:
        """Return what parts are ordered by: what is needed for room last, then the largest gain."""
        found = self._placed(choice.keys)
        if found is None:
            return 1, 0.0
        time = per_example(self.base, found)
        return int(time >= 1.0), time

    def _part(self, choice: Choice, before: PlanResult, after: PlanResult) -> Part:
        gains = per_example(self.base, before) - per_example(self.base, after)
        return Part(
            what=choice.what,
            settings=settings_of(choice.keys),
            effort=choice.effort,
            adds=gains,
            frees_bytes=before.hbm_peak_bytes - after.hbm_peak_bytes,
        )

    def _placed(self, keys: Mapping[str, Any]) -> PlanResult | None:
        """Return the result of changed keys where the run file with them would be placed."""
        key = key_of(keys)
        if key not in self.known:
            self.known[key] = self._simulated(keys)
        return self.known[key]

    def _simulated(self, keys: Mapping[str, Any]) -> PlanResult | None:
        base = self.base
        try:
            plan = base.plan.replace(**keys)
            if "mesh" in keys:
                plan = plan.replace(placement=None)
            return run_changed(base, plan, base.pod, self._given(keys))
        except TpusimError:
            return None

    def _given(self, keys: Mapping[str, Any]) -> Placement | None:
        """Return the placement that the run was given, unless the mesh is another."""
        fixed = self.base.placement_given and "mesh" not in keys
        return self.base.placement if fixed else None

    def _written(self, result: PlanResult, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return keys with the placement of another mesh, where the plan gives one of the old."""
        if "mesh" in keys and self.base.plan.placement is not None:
            return {**keys, "placement": result.placement.written}
        return dict(keys)

"""Advice by simulating again: each change of a run is tried, and says what it saves."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tpusim.base.errors import TpusimError
from tpusim.costs import cost_program
from tpusim.engine import run
from tpusim.hardware import Placement, Slice
from tpusim.plan import Input, Plan
from tpusim.results import (
    PICO,
    Advice,
    Change,
    ChangeKind,
    Limit,
    PlanResult,
    ReplayResult,
    Result,
    limits,
)
from tpusim.results.settings import settings_of
from tpusim.simulation.advice.machine_changes import machine_changes
from tpusim.simulation.advice.plan_changes import PlanChange, input_changes, plan_changes
from tpusim.simulation.advice.proposals import proposals
from tpusim.simulation.advice.trials import per_example
from tpusim.simulation.changed_run import run_changed

NO_PLAN = (
    "a compiled program has no plan, so only faster machines are tried: what the compiler would "
    "make of another plan, only the compiler can say"
)
COMPILER_CYCLES = (
    "the core's seconds are the compiler's cycles, which say nothing of another matrix unit or "
    "HBM; simulate with costs='model' to try these"
)


def plan_advice(result: PlanResult, *, quick: bool = False) -> Advice:
    """Return the advice on a plan: what bounds it, and what changes of plan and machine save.

    quick: try single changes only, and none together.
    """
    trials, found = _PlanTrials(result), limits(result)
    for change in plan_changes(result):
        trials.try_plan(change)
    if result.input is not None:
        for other in input_changes(result.input.given):
            trials.try_input(other, result.input.given)
    for what, pod in machine_changes(result, found):
        trials.try_machine(what, pod)
    made = () if quick else proposals(result)
    return replace(_advice(result, found, trials.changes, trials.refused), proposals=made)


def step_time_of(result: PlanResult, plan: Plan) -> float | None:
    """Return the seconds of a step of another plan in the place of a result's; None if refused."""
    moves = plan.mesh != result.plan.mesh
    placement = None if moves else _PlanTrials(result).given
    try:
        found = run_changed(result, plan.replace(placement=None), result.pod, placement)
    except TpusimError:
        return None
    return found.step_time_s


def replay_advice(result: ReplayResult, *, quick: bool = False) -> Advice:
    """Return the advice on a compiled program: what bounds it, and what faster machines save.

    quick: of no effect, as nothing is tried together.
    """
    modelled, found = result.costs == "model", limits(result)
    changes = []
    for what, pod in machine_changes(result, found, work=modelled):
        timeline = run([cost_program(result.program, pod, result.placement)])
        step_s = timeline.total_ps * PICO
        changes.append(
            Change(
                kind=ChangeKind.MACHINE,
                what=what,
                settings=(),
                plan=None,
                pod=pod,
                placement=result.placement,
                step_time_s=step_s,
                saves=1 - step_s / result.step_time_s,
                hbm_peak_bytes=result.hbm_peak_bytes,
                hbm_bytes=result.hbm_bytes,
                fit=result.fit,
            )
        )
    notes = (NO_PLAN,) if modelled else (NO_PLAN, COMPILER_CYCLES)
    return _advice(result, found, changes, (), notes)


def _advice(
    result: Result,
    found: tuple[Limit, ...],
    changes: Iterable[Change],
    refused: Iterable[tuple[str, str]],
    notes: tuple[str, ...] = (),
) -> Advice:
    ranked = sorted(changes, key=lambda each: (each.fit.order, -each.saves))
    return Advice(
        title=result.title,
        step_time_s=result.step_time_s,
        limits=found,
        changes=tuple(ranked),
        refused=tuple(refused),
        notes=notes,
        to_fit=result.ways_to_fit(),
        reasons=result.reasons(),
    )


@dataclass(slots=True)
class _PlanTrials:
    """The changes of one run that were simulated, and those that cannot be."""

    base: PlanResult
    changes: list[Change] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def given(self) -> Placement | None:
        """The placement that the run was given, if any."""
        return self.base.placement if self.base.placement_given else None

    def try_plan(self, change: PlanChange) -> None:
        """Simulate a change of the plan."""
        base, keys = self.base, dict(change.keys)
        placement = change.placement or (None if change.moves else self.given)
        replaces = change.moves and base.plan.placement is not None
        try:
            plan = base.plan.replace(**keys, **({"placement": None} if replaces else {}))
            result = run_changed(base, plan, base.pod, placement)
        except TpusimError as error:
            self.refused.append((change.what, str(error)))
            return
        if replaces:
            keys["placement"] = result.placement.written
            result = replace(result, plan=plan.replace(placement=result.placement.written))
        self._add(change.kind, change.what, settings_of(keys), result, placement)

    def try_input(self, change: PlanChange, given: Input) -> None:
        """Simulate the same plan in the same place with another input pipeline."""
        base, placement = self.base, self.base.placement
        try:
            result = run_changed(base, base.plan, base.pod, placement, given.replace(**change.keys))
        except TpusimError as error:
            self.refused.append((change.what, str(error)))
            return
        written = {key: value for key, value in change.keys.items() if value is not None}
        self._add(ChangeKind.PLAN, change.what, settings_of(written, "input"), result, placement)

    def try_machine(self, what: str, pod: Slice) -> None:
        """Simulate the same plan in the same place on another machine."""
        placement = self.base.placement
        result = run_changed(self.base, self.base.plan, pod, placement)
        self._add(ChangeKind.MACHINE, what, (), result, placement)

    def _add(
        self,
        kind: ChangeKind,
        what: str,
        settings: tuple[str, ...],
        result: PlanResult,
        placement: Placement | None,
    ) -> None:
        self.changes.append(
            Change(
                kind=kind,
                what=what,
                settings=settings,
                plan=result.plan,
                pod=result.pod,
                placement=placement,
                step_time_s=result.step_time_s,
                saves=1 - per_example(self.base, result),
                hbm_peak_bytes=result.hbm_peak_bytes,
                hbm_bytes=result.hbm_bytes,
                fit=result.fit,
                fit_odds=None if result.hbm_odds is None else result.hbm_odds.fits,
            )
        )

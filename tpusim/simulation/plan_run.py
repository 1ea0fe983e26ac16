"""One run of a plan: its programs on the given or the fastest placement."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tpusim.base.collection import garbage_collector_off
from tpusim.base.errors import PlanError
from tpusim.base.lazy import LazyTuple
from tpusim.costs import cost_classes
from tpusim.engine import run
from tpusim.hardware import Placement, Slice, candidates, placement_from
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import PlannedStep, planned_step
from tpusim.plan import Plan
from tpusim.results import PlanResult, Verdicts, make_result, step_contents
from tpusim.simulation.placement_search import (
    Engine,
    PlacedRun,
    fastest_placement,
    placement_bounds,
    run_on,
)
from tpusim.simulation.recorded_runs import RECORDED, NumbersRun
from tpusim.simulation.unread_names import unread_names


def run_plan(
    model: Architecture,
    plan: Plan,
    pod: Slice,
    *,
    fold: bool,
    placement: Placement | None,
    among: Sequence[Placement] | None,
    network: str,
) -> PlanResult:
    """Simulate one training step; see `simulate`."""
    given = placement is not None or plan.placement is not None
    if network == "flows" and not pod.slow:
        places = partial(_placements, plan, pod, placement, among)
        known = RECORDED.fastest(model, plan, pod, places, fold=fold)
        if known is not None:
            return _known_result(model, plan, pod, known, given)
    with garbage_collector_off():
        step = planned_step(model, plan, pod.healthy)
        placements = _placements(plan, pod, placement, among)
        placed = fastest_run(step, pod.healthy, placements, partial(run, fold=fold))
    if pod.slow:
        placed = _slowed_run(placed, pod, fold)
    if network == "hops":
        placed = run_on(placed.placement, placed.programs, pod, partial(run, network="hops"))
    verdicts = Verdicts(step.dropped, given, network, unread_names(step.graph, plan))
    return make_result(
        model,
        plan,
        pod,
        placed.placement,
        placed.programs,
        placed.timeline,
        step_contents(placed.programs),
        step.graph.tokens * plan.microbatches,
        verdicts,
    )


def _placements(
    plan: Plan, pod: Slice, placement: Placement | None, among: Sequence[Placement] | None
) -> tuple[Placement, ...]:
    """Return the given placement, or those among which the fastest is chosen."""
    given = placement or given_placement(plan, pod)
    return (given,) if given else tuple(among or candidates(pod, plan.mesh))


def _known_result(
    model: Architecture, plan: Plan, pod: Slice, known: NumbersRun, given: bool
) -> PlanResult:
    """Return the result of a step whose programs are made if they are asked for."""
    numbers = known.numbers
    return make_result(
        model,
        plan,
        pod,
        known.placement,
        LazyTuple(lambda: planned_step(model, plan, pod).programs_on(known.placement)),
        known.timeline,
        numbers.contents,
        numbers.tokens,
        Verdicts(numbers.dropped, given, unread=numbers.unread),
    )


def _slowed_run(placed: PlacedRun, pod: Slice, fold: bool) -> PlacedRun:
    """Return a run of a healthy pod on the same placement of one with slow parts.

    Raise PlanError for a pipeline whose stages have programs of their own.
    """
    if len(placed.programs) > 1:
        raise PlanError(
            f"the slice has slow parts ({pod.slow}), and each stage of the schedule has a program "
            "of its own, for which slow parts are not simulated; leave them out, or take schedule "
            "= 'circular', whose stages run one program"
        )
    lanes = cost_classes(placed.programs[0], pod, placed.placement, fold=fold)
    return replace(placed, timeline=run(lanes, fold=fold))


def given_placement(plan: Plan, pod: Slice) -> Placement | None:
    """Return the placement that the plan gives, if any."""
    if plan.placement is None:
        return None
    return placement_from(pod, plan.mesh, plan.placement)


def fastest_run(
    step: PlannedStep, pod: Slice, placements: tuple[Placement, ...], engine: Engine
) -> PlacedRun:
    """Return the fastest run of a step on the placements; a single one needs no search."""
    if len(placements) == 1:
        return run_on(placements[0], step.programs_on(placements[0]), pod, engine)
    return fastest_placement(placement_bounds(step, pod, placements), pod, engine)[0]

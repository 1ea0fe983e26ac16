"""One run of a plan: its programs on the given or the fastest placement."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tpusim.base.errors import PlanError
from tpusim.costs import cost_classes
from tpusim.engine import run
from tpusim.graph import Graph, Scan
from tpusim.hardware import Placement, Slice, candidates, placement_from
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import PlannedStep, planned_step
from tpusim.plan import Plan
from tpusim.results import PlanResult, Verdicts, make_result
from tpusim.simulation.placement_search import (
    Engine,
    PlacedRun,
    fastest_placement,
    placement_bounds,
    run_on,
)


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
    step = planned_step(model, plan, pod.healthy)
    given = placement or given_placement(plan, pod)
    placements = (given,) if given else tuple(among or candidates(pod, plan.mesh))
    placed = fastest_run(step, pod.healthy, placements, partial(run, fold=fold))
    if pod.slow:
        placed = _slowed_run(placed, pod, fold)
    if network == "hops":
        placed = run_on(placed.placement, placed.programs, pod, partial(run, network="hops"))
    verdicts = Verdicts(step.dropped, given is not None, network, unread_names(step.graph, plan))
    return make_result(
        model, plan, pod, placed.placement, step.graph, placed.programs, placed.timeline, verdicts
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


def unread_names(graph: Graph, plan: Plan) -> tuple[str, ...]:
    """Return names of `save` and `offload` that no layer saves, as no backward pass reads them."""
    saved = {t.short for op in graph.ops if isinstance(op, Scan) for t in op.saves}
    return tuple(name for name in (*plan.remat.save, *plan.remat.offload) if name not in saved)


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

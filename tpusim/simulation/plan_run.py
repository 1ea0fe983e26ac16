"""One run of a plan: its programs on the given or the fastest placement."""

from collections.abc import Sequence

from tpusim.base.collection import garbage_collector_off
from tpusim.base.errors import PlanError
from tpusim.costs import cost_classes, cost_programs, cost_worst
from tpusim.engine import NetworkMode, Timeline, run
from tpusim.graph import Graph, Remat, Scan
from tpusim.hardware import Placement, Slice, candidates, placement_from
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import PlannedStep, forward_step
from tpusim.plan import Plan, Sharding
from tpusim.results import PlanResult, Verdicts, step_contents
from tpusim.results.result import memory_held
from tpusim.simulation.known_steps import KNOWN_STEPS
from tpusim.simulation.placement_search import PlacedRun, StepOnPlacements, fastest_run
from tpusim.simulation.recomputed_logits import with_logits_again


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
    with garbage_collector_off():
        known = KNOWN_STEPS.step(model, plan, pod.healthy)
        placements = placements_of(plan.sharding, pod, placement, among)
        found = fastest_run([known.on(at) for at in placements], fold=fold)
        timeline = _timeline(found, pod, fold, network)
    step = known.step
    verdicts = Verdicts(step.dropped, given, network, _unread_names(step.graph, plan.remat))
    result = result_of(model, plan, pod, step, found, timeline, verdicts)
    if result.fits or plan.compiler.lowering == "ideal" or network != "flows" or pod.impaired:
        return result
    return _with_less(result, step, fold)


def _with_less(result: PlanResult, step: PlannedStep, fold: bool) -> PlanResult:
    """Return the result of a step that computes logits again, if it needs less; else the same.

    Its buffers are placed with the largest first, as those of any step that does not fit in order.
    """
    if len(result.programs) > 1:
        return result
    wanted = result.hbm_peak_bytes - result.hbm_bytes
    again = with_logits_again(result.programs[0], wanted)
    if again is None:
        return result
    timeline = run(cost_programs((again,), result.pod, result.placement), fold=fold)
    less = PlanResult.of(
        result.pod,
        result.placement,
        (again,),
        timeline,
        step_contents((again,)),
        memory_held(again, timeline, usable=timeline.memory[0].peak_bytes),
        model=result.model,
        plan=result.plan,
        tokens=step.graph.tokens * result.plan.microbatches,
        verdicts=result.verdicts,
        implicit_reshardings=result.implicit_reshardings,
    )
    return less if less.hbm_peak_bytes < result.hbm_peak_bytes else result


def run_forward(model: Architecture, plan: Plan, pod: Slice) -> PlanResult:
    """Simulate the forward pass of a model alone, see `forward_step`.

    Its FLOPs are those of the forward pass, so its MFU is too; no measured run is like it, so its
    time has no range.
    """
    with garbage_collector_off():
        known = StepOnPlacements(forward_step(model, plan, pod.healthy), pod)
        placements = placements_of(plan.sharding, pod, None, None)
        found = fastest_run([known.on(at) for at in placements], fold=True)
        timeline = _timeline(found, pod, True, "flows")
    given = plan.placement is not None
    verdicts = Verdicts(known.step.dropped, given, trained=False)
    return result_of(model, plan, pod, known.step, found, timeline, verdicts)


def result_of(
    model: Architecture,
    plan: Plan,
    pod: Slice,
    step: PlannedStep,
    found: PlacedRun,
    timeline: Timeline,
    verdicts: Verdicts,
) -> PlanResult:
    """Return the result of a step on the placement that was found."""
    times = plan.microbatches if verdicts.trained else 1
    contents = found.on.alike.contents
    return PlanResult.of(
        pod,
        found.on.placement,
        found.on.programs,
        timeline,
        contents,
        model=model,
        plan=plan,
        tokens=step.graph.tokens * times,
        verdicts=verdicts,
        implicit_reshardings=contents.implicit_reshardings,
    )


def placements_of(
    sharding: Sharding, pod: Slice, placement: Placement | None, among: Sequence[Placement] | None
) -> tuple[Placement, ...]:
    """Return the given placement, or those among which the fastest is chosen."""
    given = placement or given_placement(sharding, pod)
    return (given,) if given else tuple(among or candidates(pod, sharding.mesh))


def _unread_names(graph: Graph, remat: Remat) -> tuple[str, ...]:
    """Return names of `save` and `offload` that no layer saves, as no backward pass reads them."""
    saved = {t.short for op in graph.ops if isinstance(op, Scan) for t in op.saves}
    return tuple(name for name in (*remat.save, *remat.offload) if name not in saved)


def _timeline(found: PlacedRun, pod: Slice, fold: bool, network: str) -> Timeline:
    """Return the timeline of a run, whose placement was chosen on a healthy pod and with flows.

    Raise PlanError for a pipeline on a slice with slow parts whose stages have programs of their
    own.
    """
    programs, placement = found.on.programs, found.on.placement
    if pod.slow and len(programs) > 1:
        raise PlanError(
            f"the slice has slow parts ({pod.slow}), and each stage of the schedule has a program "
            "of its own, for which slow parts are not simulated; leave them out, or take schedule "
            "= 'circular', whose stages run one program"
        )
    if pod.impaired and (network == "hops" or len(programs) > 1):
        mode: NetworkMode = "hops" if network == "hops" else "flows"
        return run(cost_worst(programs, pod, placement), fold=fold, network=mode)
    if network == "hops":
        return run(cost_programs(programs, pod, placement), network="hops")
    if pod.impaired:
        return run(cost_classes(programs[0], pod, placement, fold=fold), fold=fold)
    return found.run.timeline()


def given_placement(sharding: Sharding, pod: Slice) -> Placement | None:
    """Return the placement that a plan gives, if any."""
    if sharding.placement is None:
        return None
    return placement_from(pod, sharding.mesh, sharding.placement)

"""One step of a server on the fastest placement of its mesh."""

from tpusim.base.checked_call import checked_call
from tpusim.base.collection import garbage_collector_off
from tpusim.base.errors import PlanError
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.pipeline.serving_step import StepShape, serving_step
from tpusim.plan import ServingPlan
from tpusim.results import ServedStep, Verdicts
from tpusim.server.step_load import StepLoad
from tpusim.simulation.placement_search import StepOnPlacements, fastest_run
from tpusim.simulation.plan_run import placements_of, result_of


@checked_call
def serve_step(
    model: Architecture, plan: ServingPlan, pod: Slice, load: StepLoad, shape: StepShape
) -> ServedStep:
    """Simulate one step of a server, without its host.

    load: tokens and keys of the step, over all ranks of the replica.
    shape: the arrays for which the step was compiled.

    Raise PlanError with one sentence if the model or the slice does not admit the plan.
    """
    if pod.broken:
        raise PlanError(
            f"the slice has {pod.impaired}, and broken parts are simulated for training plans and "
            "not for servers; leave them out"
        )
    with garbage_collector_off():
        known = StepOnPlacements(serving_step(model, plan, pod.healthy, load, shape), pod)
        placements = placements_of(known.step.plan.sharding, pod, None, None)
        found = fastest_run([known.on(at) for at in placements], fold=True)
        timeline = found.run.timeline()
    given = plan.placement is not None
    verdicts = Verdicts(known.step.dropped, given, trained=False)
    step = result_of(model, known.step.plan, pod, known.step, found, timeline, verdicts)
    return ServedStep.of_step(step, plan, load)

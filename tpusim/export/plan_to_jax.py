"""Export of a plan as a JAX program."""

from tpusim.base.checked_call import checked_call
from tpusim.export.admission import check_sayable
from tpusim.export.step_context import step_context
from tpusim.export.step_source import ExportedStep, step_source
from tpusim.graph import layer_count
from tpusim.hardware import Slice, check_mesh
from tpusim.models import Architecture
from tpusim.pipeline import check_circular
from tpusim.pipeline.planned_step import forward_graph
from tpusim.plan import Plan, part_bounds, stage_plan
from tpusim.simulation.arguments import check_arguments


def export_step(model: Architecture, plan: Plan, pod: Slice) -> ExportedStep:
    """Return the training step of a plan as JAX, with the graph's operation of each line.

    Raise PlanError for a plan that the model or the slice does not admit, and for one that cannot
    be written as JAX.
    """
    plan.check_together()
    check_mesh(pod, plan.mesh)
    check_sayable(plan)
    graph = forward_graph(model, stage_plan(plan))
    if plan.active_schedule:
        check_circular(plan, plan.pipeline.virtual_stages)
        part_bounds(plan, layer_count(graph), model.name)  # refuses layers that do not divide
    return step_source(step_context(graph, plan), pod)


@checked_call
def export_jax(model: Architecture | str, plan: Plan, pod: Slice | str) -> str:
    """Return a Python file that trains `model` under `plan` with JAX and optax, without tpusim.

    The file defines `init`, `train_step` and the shardings of both, and trains on random tokens
    where it is run as a program. Raise PlanError as `export_step` does.
    """
    return export_step(*check_arguments(model, plan, pod, "export_jax")).source

"""The check of a step of a server against the TPU compiler: its JAX program, beside the plan."""

from collections.abc import Mapping

from tpusim.base.checked_call import checked_call
from tpusim.compiler.compile_apart import check_time_limit
from tpusim.compiler.options import Option, check_options
from tpusim.compiler_check.compile_step import StepCompilation, step_versions
from tpusim.compiler_check.plan_check import TIME_LIMIT_S, PlanCheck, compared
from tpusim.compiler_check.step_names import StepNames
from tpusim.export.served_arrays import ServedArrays
from tpusim.export.serving_to_jax import ServedGraph, export_serving_step
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import ServingPlan
from tpusim.server.step_load import StepLoad
from tpusim.simulation.arguments import check_model, check_slice
from tpusim.simulation.serving_run import serve_step

ORDER = "write check_serving(model, plan, slice, load)"


@checked_call
def check_serving(
    model: Architecture | str,
    plan: ServingPlan,
    pod: Slice | str,
    load: StepLoad,
    *,
    full: bool = False,
    time_limit: float | None = TIME_LIMIT_S,
    compiler_options: Mapping[str, Option] | None = None,
) -> PlanCheck:
    """Compile the JAX program of a step of a server, and compare it with the simulated step.

    The program is compiled for the plan's slice and placement; no TPU is needed. Both sides have
    arrays of equal sequences that fill their pages, without the buckets of an engine.

    load: decoding sequences or prompts, as long as their mean.
    full, time_limit, compiler_options: as of `check`.

    Raise PlanError for a step that cannot be simulated or written as JAX, and CompileError as
    `check` does.
    """
    model, pod = check_model(model, ORDER, "check_serving"), check_slice(pod, ORDER)
    step_versions(trains=False)
    check_time_limit(time_limit)
    chosen = check_options(dict(compiler_options or {}))
    load = ServedArrays.of(plan, load).load(plan.ranks)
    step = export_serving_step(model, plan, pod, load)
    served = ServedGraph.of(model, plan, load)
    planned = serve_step(model, plan, pod, load, served.arrays.shape)
    return compared(
        StepCompilation(
            step=step, planned=planned, options=chosen, full=full, time_limit=time_limit
        ),
        StepNames.of_graph(planned, served.graph, served.layouts),
    )

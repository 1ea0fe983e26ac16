"""Export of a plan as a JAX program, and the sentences for plans that cannot be written so."""

from collections.abc import Iterator

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.export.names import unsaid
from tpusim.export.step_context import step_context
from tpusim.export.step_source import ExportedStep, step_source
from tpusim.graph import LinearAttention, layer_count, walk
from tpusim.hardware import Slice, check_mesh
from tpusim.models import Architecture
from tpusim.pipeline import CircularShape
from tpusim.pipeline.planned_step import forward_graph
from tpusim.plan import (
    CIRCULAR,
    DEFAULT_TILES,
    RING,
    WIDE_DTYPES,
    Numerics,
    Plan,
    Training,
    part_bounds,
    stage_plan,
)
from tpusim.simulation.arguments import check_arguments


def export_step(model: Architecture, plan: Plan, pod: Slice) -> ExportedStep:
    """Return the training step of a plan as JAX, with the graph's operation of each line.

    Raise PlanError for a plan that the model or the slice does not admit, and for one that cannot
    be written as JAX.
    """
    plan.check_together()
    plan = plan.as_compiled
    check_mesh(pod, plan.mesh)
    check_sayable(plan)
    graph = forward_graph(model, stage_plan(plan))
    for op, _ in walk(graph.ops):
        if isinstance(op, LinearAttention):
            raise unsaid(op.name, "linear attention")
    if plan.active_schedule:
        chunks = plan.pipeline.virtual_stages
        CircularShape(plan.stages, plan.microbatches, chunks).check(chunks)
        part_bounds(plan, layer_count(graph), model.name)  # refuses layers that do not divide
    return step_source(step_context(graph, plan), pod)


@checked_call
def export_jax(model: Architecture | str, plan: Plan, pod: Slice | str) -> str:
    """Return a Python file that trains `model` under `plan` with JAX and optax, without tpusim.

    The file defines `init`, `train_step` and the shardings of both, and trains on random tokens
    where it is run as a program. Raise PlanError as `export_step` does.
    """
    return export_step(*check_arguments(model, plan, pod, "export_jax")).source


def check_sayable(plan: Plan) -> None:
    """Raise PlanError for a plan that has a part without JAX here."""
    for key, value, instead in _unsaid(plan):
        raise PlanError(f"plan.{key} is {value!r}, which tpusim cannot write as JAX yet; {instead}")


def _pipeline(
    stages: int, training: Training, dtypes: Numerics
) -> Iterator[tuple[str, object, str]]:
    """Yield what cannot be said of a pipeline: JAX has one program, which all stages run."""
    schedule = training.pipeline.active_schedule(stages)
    if schedule != CIRCULAR:
        remedy = f"write {CIRCULAR!r}, the schedule of one program that all stages run"
        yield "pipeline.schedule", schedule, remedy
    count = training.microbatches
    if count % stages:
        more = -(-count // stages) * stages
        yield "microbatches", count, f"write a multiple of the stages, such as {more}"
    if training.vocab_tiles > 1:
        yield "vocab_tiles", training.vocab_tiles, "write 1 where there are stages"
    if training.remat.offload:
        remedy = "leave it out where there are stages"
        yield "remat.offload", list(training.remat.offload), remedy
    sums = dtypes.of("accumulator")
    if sums != dtypes.of("grad"):
        yield "dtypes.accumulator", sums, f"write {dtypes.of('grad')!r}, as grad is"


def _transfers(dtypes: Numerics) -> Iterator[tuple[str, object, str]]:
    """Yield what cannot be said of the dtypes in which weights and gradients are sent.

    JAX's gradient of a weight has the dtype of the weight, and no matmul makes a narrower result
    than its operands.
    """
    gather, compute = dtypes.of("gather"), dtypes.compute
    if gather in WIDE_DTYPES and gather not in (compute, dtypes.of("grad")):
        remedy = f"write grad_dtype = {gather!r}, as a gradient has the dtype of its weight"
        yield "dtypes.gather", gather, remedy
    if (compute, dtypes.of("reduce")) == ("f32", "bf16"):
        yield "dtypes.reduce", "bf16", "write 'f32', as compute is"


def _unsaid(plan: Plan) -> Iterator[tuple[str, object, str]]:
    """Yield the key, the value and the remedy of each part that cannot be written."""
    dtypes = plan.dtypes
    if plan.stages > 1:
        yield from _pipeline(plan.stages, plan.training, dtypes)
    if not plan.remat.scan_layers and (plan.stages > 1 or plan.optimizer.name == "muon"):
        yield "remat.scan_layers", False, "write true where there are stages, and with Muon"
    for key in ("matmul", "matmul_dx", "matmul_dw"):
        if dtypes.of(key) in WIDE_DTYPES and dtypes.of(key) != dtypes.compute:
            yield f"dtypes.{key}", dtypes.of(key), f"write {dtypes.compute!r}"
    if dtypes.noise and dtypes.quantised:
        yield "dtypes.noise", dtypes.noise, "leave it out: what is written rounds to the nearest"
    yield from _transfers(dtypes)
    if plan.vocab_blocks > 1:
        yield "vocab_blocks", plan.vocab_blocks, "write 1, or vocab_tiles"
    if plan.experts.tiles != DEFAULT_TILES:
        remedy = f"write {list(DEFAULT_TILES)}, which kernels of an exported step have"
        yield "experts.tiles", list(plan.experts.tiles), remedy
    if plan.experts.sort_gradient != "gather":
        yield "experts.sort_gradient", plan.experts.sort_gradient, "write 'gather'"
    if plan.reduces_once:
        remedy = "write 'per-microbatch', as the compiler reduces in each"
        yield "gradient_reduction", plan.gradient_reduction, remedy
    if plan.optimizer.offload:
        yield "optimizer.offload", True, "leave it out"
    if plan.remat.offload and plan.remat.policy != "full":
        yield "remat.offload", list(plan.remat.offload), "write it with remat.policy = 'full'"
    exchange = plan.context.exchange
    methods = [exchange] if isinstance(exchange, str) else exchange.values()
    if RING in methods:
        yield "context.exchange", exchange, "write 'gather' or 'all-to-all'"

"""Export of a step of a server as a JAX program."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.plain_text import plain as shortened
from tpusim.export.body_source import StepBodies, cache_after
from tpusim.export.cached_source import CACHE, CACHE_SPECS, keeps_cache
from tpusim.export.library_source import functions_source, library_constants, library_functions
from tpusim.export.names import constant_name, quoted, spec, unsaid, value_name
from tpusim.export.served_arrays import ServedArrays
from tpusim.export.served_weights import scale_of
from tpusim.export.step_context import StepContext, padded_sizes
from tpusim.export.step_line import StepLine, indented, plain
from tpusim.export.step_source import (
    MAIN,
    ExportedStep,
    constants_source,
    exported_file,
    inputs_source,
    on_devices,
    title,
    words,
)
from tpusim.export.weight_source import table_source, weight_tables
from tpusim.graph import (
    NEXT_TOKEN,
    Einsum,
    Graph,
    LinearAttention,
    Pointwise,
    Scan,
    Tensor,
    walk,
)
from tpusim.hardware import Slice, check_mesh
from tpusim.models import Architecture
from tpusim.partition import Layout, layouts
from tpusim.pipeline.serving_step import serving_graph, serving_rules
from tpusim.plan import ServingPlan, Sharding
from tpusim.server.step_load import StepLoad
from tpusim.simulation.arguments import check_model, check_slice

ORDER = "write export_serving(model, plan, slice, load)"

FIRST_ROWS = "first_rows"
"""The function that gives each sequence the first rows of a table of positions."""

LIBRARY = ("step_arguments", "argument_specs", "server_weights", "step_inputs", "main_of_server")
"""Functions of the library that each file has."""


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A step of a server before it is written or compiled.

    arrays: of its sequences.
    layouts: of its tensors, by the rules of `sharding`.
    """

    graph: Graph
    arrays: ServedArrays
    sharding: Sharding
    layouts: dict[str, Layout]

    @classmethod
    def of(cls, model: Architecture, plan: ServingPlan, load: StepLoad) -> "ServedGraph":
        """Return the step of a load. Raise PlanError for a plan that the model does not admit."""
        arrays = ServedArrays.of(plan, load)
        graph = serving_graph(model, plan, load, arrays.shape)
        sharding, rules = serving_rules(plan, graph)
        return cls(graph, arrays, sharding, layouts(graph, sharding, rules))


def export_serving_step(
    model: Architecture, plan: ServingPlan, pod: Slice, load: StepLoad
) -> ExportedStep:
    """Return a step of a server as JAX, with the graph's operation of each line.

    Raise PlanError for a plan that the model or the slice does not admit, and for one that cannot
    be written as JAX.
    """
    check_mesh(pod, plan.sharding.mesh)
    _check_plan(plan)
    served = ServedGraph.of(model, plan, load)
    _check_graph(served.graph)
    return _source(_context(served, plan, pod), plan, pod, load)


@checked_call
def export_serving(
    model: Architecture | str, plan: ServingPlan, pod: Slice | str, load: StepLoad
) -> str:
    """Return a Python file with a step of a server in JAX, without tpusim.

    The file defines `server_step`, its arguments and their shardings; the cache is an argument that
    is updated in place. Sequences are as long as their mean in `load`. Run as a program, it serves
    random tokens. Raise PlanError as `export_serving_step` does.
    """
    model, pod = check_model(model, ORDER, "export_serving"), check_slice(pod, ORDER)
    return export_serving_step(model, plan, pod, load).source


def _check_plan(plan: ServingPlan) -> None:
    """Raise PlanError for dtypes and kernels without JAX here."""
    if plan.fused_experts:
        raise PlanError(
            "serving.moe_backend is 'fused', a kernel that tpusim cannot write as JAX; write "
            "moe_backend = 'epmoe'"
        )
    if plan.matmul_dtype not in ("", "bf16"):
        raise PlanError(
            f"serving.matmul_dtype is {plan.matmul_dtype!r}, which tpusim cannot write as JAX yet; "
            "leave it out, and narrow weights are converted as they are read"
        )
    if plan.weight_dtype in ("int4", "fp4"):
        raise PlanError(
            f"serving.weight_dtype is {plan.weight_dtype!r}, which tpusim cannot write as JAX yet; "
            "write 'int8' or 'fp8'"
        )


def _check_graph(graph: Graph) -> None:
    """Raise PlanError for operations whose result depends on more than the step's own tokens."""
    for op, _ in walk(graph.ops):
        if isinstance(op, LinearAttention):
            raise unsaid(op.name, "linear attention")
        if isinstance(op, Pointwise) and op.function and op.function.name == FIRST_ROWS:
            raise unsaid(op.name, "a sum with learnt positions in a step of a server")


def _context(served: ServedGraph, plan: ServingPlan, pod: Slice) -> StepContext:
    graph, found = served.graph, dict(served.layouts)
    for op, _ in walk(graph.ops):
        if isinstance(op, Einsum) and (scale := scale_of(op)) is not None:
            (weight,) = (tensor for tensor in op.inputs if scale.name.startswith(tensor.name))
            own = dict(zip(weight.dims, found[weight.name], strict=True))
            found[scale.name] = tuple(own[dim] for dim in scale.dims)
    step = plan.step_plan(plan.ranks, graph.sizes["seq"], served.sharding, pod.chip.generation)
    step = step.replace(
        remat=replace(step.remat, policy="none", scan_layers=False),
        experts=replace(step.experts, exchange="gather"),
    ).as_compiled
    padded = dict(padded_sizes(graph, step.mesh, found))
    return StepContext(graph, step, found, frozenset(), padded, 1, served=served.arrays)


def _source(context: StepContext, plan: ServingPlan, pod: Slice, load: StepLoad) -> ExportedStep:
    bodies = StepBodies(context)
    body = bodies.lines(context.graph.ops)
    step = [*bodies.functions, *_step(context, body)]
    tables = weight_tables(bodies.weights.values(), listed=not context.scans_layers)
    for name in (CACHE, CACHE_SPECS):
        tables += table_source(name, bodies.caches, not context.scans_layers)
    helpers = library_functions(words(step) | library_constants(LIBRARY))
    others = functions_source(n for n in library_functions(LIBRARY) if n not in helpers)
    program = others.replace("main_of_server", "main") + MAIN
    rest = [*tables, *plain(functions_source(helpers)), *step, *plain(program)]
    lines = [*constants_source(context, words(rest), _arrays(context)), *rest]
    return exported_file(_title(context, plan, pod, load), lines)


def _title(context: StepContext, plan: ServingPlan, pod: Slice, load: StepLoad) -> str:
    return title(
        f"A step of a server of {shortened(context.graph.name)} on {on_devices(pod)}: {load}.",
        f"{plan}.",
        "Written by tpusim. Run as a program, it computes random tokens on the devices that are "
        "there.",
    )


def _arrays(context: StepContext) -> dict[str, object]:
    """Return the constants of the sequences, and the tables of the inputs."""
    served = context.served
    assert served is not None
    inputs = dict(_inputs(context))
    return {
        "SEQUENCES": served.sequences,
        "TOKENS_EACH": served.tokens,
        "PAGES": served.pages,
        "ALL_PAGES": context.graph.sizes["batch"] * served.sequences * served.pages,
        "PAGE_SIZE": served.page_size,
        "KEYS": served.keys,
        **inputs_source(inputs),
    }


def _inputs(context: StepContext) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the name of each input, its shape with its dtype, and its sharding, as source."""
    for tensor in _given(context.graph):
        shape = ", ".join(map(constant_name, tensor.dims))
        yield value_name(tensor), (f"(({shape}), jnp.int32)", context.spec(tensor))
    ids = next(tensor for tensor in _given(context.graph) if tensor.dims[1] == "seq")
    own = spec(context.layouts[ids.name][:1])
    yield "kv_lengths", ("((BATCH, SEQUENCES), jnp.int32)", own)
    if context.served is not None and context.served.paged:
        yield "kv_pages", ("((BATCH, SEQUENCES, PAGES), jnp.int32)", own)


def _given(graph: Graph) -> tuple[Tensor, ...]:
    return tuple(graph.given)


def _step(context: StepContext, body: list[StepLine]) -> list[StepLine]:
    """Return the function of the step."""
    caches = ", ".join(
        f"{quoted(op.name)}: {cache_after(op)}"
        for op in context.graph.ops
        if isinstance(op, Scan) and keeps_cache(op)
    )
    lines = [
        StepLine('"""Return the cache with the step\'s keys and values, and the next tokens."""'),
        *(StepLine(f"{name} = batch[{quoted(name)}]") for name, _ in _inputs(context)),
        StepLine("kv_positions = token_positions(kv_lengths, TOKENS_EACH)"),
        *body,
        StepLine(f"return {{{caches}}}, {value_name(_sampled(context.graph))}"),
    ]
    return [*plain("\n\ndef server_step(w, kv_cache, batch):"), *indented(lines)]


def _sampled(graph: Graph) -> Tensor:
    found = dict(graph.outputs).get("sample")
    if found is None or found.name != NEXT_TOKEN:
        raise unsaid(graph.name, "a model whose tokens are not sampled from logits")
    return found

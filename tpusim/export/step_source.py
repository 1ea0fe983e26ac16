"""The file of a training step: its sizes, mesh, shardings, functions, and a loop that trains."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import fill
from types import MappingProxyType

from tpusim.base.plain_text import plain as shortened
from tpusim.export.body_source import StepBodies
from tpusim.export.library_source import (
    functions_source,
    imports_of,
    library_constants,
    library_functions,
    names_in,
)
from tpusim.export.names import (
    DTYPES,
    check_distinct,
    constant_name,
    docstring,
    quoted,
    spec,
    target_name,
    unsaid,
    value_name,
    weight_name,
)
from tpusim.export.step_context import StepContext
from tpusim.export.step_line import WIDTH, StepLine, indented, plain
from tpusim.export.weight_source import weight_tables
from tpusim.graph import Remat, Scan, TensorRole, training_step
from tpusim.hardware import Slice

LEARNING_RATE = 1e-3

OPTIMIZERS = {
    "adam": "adam(LEARNING_RATE, {first})",
    "adafactor": "optax.adafactor(LEARNING_RATE)",
    "sgd": "optax.sgd(LEARNING_RATE)",
    "momentum": "optax.sgd(LEARNING_RATE, momentum=0.9, accumulator_dtype={first})",
    "lars": "optax.lars(LEARNING_RATE)",
    "lamb": "optax.lamb(LEARNING_RATE)",
    "muon": "muon(LEARNING_RATE, {first}, {second})",
}
"""The optimizer of each plan, as source."""

_OF_TRAINED = ("trained", "merged", "loss_of_trained")
"""Functions of the library of steps with frozen weights."""

_DIVIDED = ("step_specs", "gradients", "train_step")
"""Functions of the library that are others where weights are updated in parts."""

IN_PARTS = "_in_parts"
"""The end of the names of those."""
MAIN = '\n\nif __name__ == "__main__":\n    main()'


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """A training step as a Python file.

    source: text of the file.
    lines: (line number, name of the graph's operation) of each line that computes one.
    """

    source: str
    lines: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        return self.source


def step_source(context: StepContext, pod: Slice) -> ExportedStep:
    """Return the file of a step. Raise PlanError for an operation that cannot be written as JAX."""
    bodies = StepBodies(context)
    forward = bodies.lines(context.graph.ops)
    step = [*bodies.functions, *_loss(context, forward)]
    weights = weight_tables(bodies.weights.values(), listed=not context.scans_layers)
    settings = _settings(context)
    used = words([*step, *settings]) | library_constants(_wanted(context))
    used |= set(_OF_TRAINED) if _frozen(context) else set()
    helpers = library_functions(used)
    training = _training(context, helpers)
    rest = [*weights, *plain(functions_source(helpers)), *settings, *step, *plain(training)]
    lines = [*constants_source(context, words(rest)), *rest]
    return exported_file(_title(context, pod), lines)


def exported_file(title: str, lines: list[StepLine]) -> ExportedStep:
    """Return the file of lines, below a docstring and the imports that they need."""
    imports = imports_of("\n".join(map(str, lines)))
    lines = [*plain(f"{title}\n\n{imports}"), *lines]
    ops = tuple((number, line.op) for number, line in enumerate(lines, start=1) if line.op)
    return ExportedStep("\n".join(map(str, lines)) + "\n", ops)


def words(lines: Iterable[StepLine]) -> set[str]:
    """Return the names that lines use."""
    return names_in("\n".join(map(str, lines)))


def _title(context: StepContext, pod: Slice) -> str:
    return title(
        f"A training step of {shortened(context.graph.name)} on {on_devices(pod)}.",
        f"{context.plan}.",
        "Written by tpusim. Run as a program, it trains on random tokens on the devices that are "
        "there.",
    )


def on_devices(pod: Slice) -> str:
    """Return a slice with the number of its devices, in words."""
    return f"{pod} ({pod.devices} device{'s' * (pod.devices > 1)})"


def title(*paragraphs: str) -> str:
    """Return the docstring of a file."""
    text = "\n\n".join(fill(paragraph, WIDTH) for paragraph in paragraphs)
    return docstring(f"{text}\n")


def constants_source(
    context: StepContext, used: set[str], more: Mapping[str, object] = MappingProxyType({})
) -> list[StepLine]:
    """Return the constants of the step that are used: dtypes, mesh, batch, sizes of dimensions.

    more: constants that follow them.
    """
    graph, plan, dtypes = context.graph, context.plan, context.plan.dtypes
    several = bool(context.stages) or plan.microbatches > 1
    if several and context.inputs:
        raise unsaid(graph.name, "a model of images in microbatches")
    lead = [context.stages or "None"] if several else []
    mesh = plan.active_axes or dict(plan.mesh)
    parts = plan.stages * plan.pipeline.virtual_stages
    scans = {op.name: op.trips // parts for op in graph.ops if isinstance(op, Scan)}
    sizes = scans | graph.sizes
    check_distinct(((constant_name(name), name) for name in sizes), "dimensions")
    constants = {
        "MESH": "{" + ", ".join(f"{quoted(axis)}: {size}" for axis, size in mesh.items()) + "}",
        "COMPUTE": DTYPES[dtypes.compute],
        "STORED": DTYPES[dtypes.param],
        "FORWARD": DTYPES[dtypes.of("matmul")],
        "BACKWARD": DTYPES[dtypes.of("matmul_dx")],
        "FOR_WEIGHTS": DTYPES[dtypes.of("matmul_dw")],
        "GATHERED": DTYPES[dtypes.of("gather")],
        "REDUCED": DTYPES[dtypes.of("reduce")],
        "GRADIENTS": DTYPES[dtypes.of("grad")],
        "ACCUMULATORS": DTYPES[dtypes.of("accumulator")],
        "STAGES": plan.stages,
        "REPEATS": plan.pipeline.virtual_stages,
        **{constant_name(name): size for name, size in sizes.items()},
        "MICROBATCHES": plan.microbatches,
        **_batch(context, several, lead),
        "LEARNING_RATE": LEARNING_RATE,
        **more,
    }
    always = {constant_name(dim) for t in (*context.ids, *context.inputs) for dim in t.dims}
    always |= {"MICROBATCHES"} if several else set()
    always |= {name for each in more.values() for name in names_in(str(each))}
    for dim, size in context.padded.items():
        constants[constant_name(dim)] = f"{size}  # {graph.sizes[dim]}, padded for its axes"
    kept = (f"{name} = {value}" for name, value in constants.items() if name in used | always)
    return [StepLine(""), *(StepLine(line) for one in kept for line in one.splitlines())]


def inputs_source(inputs: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the tables of what the host gives each step: name -> shape with dtype, sharding."""
    shapes, specs = (
        "\n".join(["{", *(f"    {quoted(name)}: {row[at]}," for name, row in inputs.items()), "}"])
        for at in (0, 1)
    )
    return {"INPUTS": shapes, "INPUT_SPECS": specs}


def _batch(context: StepContext, several: bool, lead: list[str]) -> dict[str, str]:
    """Return the shapes and shardings of the tokens, and of those of a target."""
    inputs, made = {}, {}
    for tensor in context.inputs:
        computed = context.dtype(tensor) == "COMPUTE"
        dtype = DTYPES[context.plan.dtypes.compute if computed else tensor.dtype]
        shape = f"(({', '.join(map(constant_name, tensor.dims))},), {dtype})"
        inputs[value_name(tensor)] = (shape, spec(context.even_layout(tensor)))
    if inputs:
        made = inputs_source(inputs)
    for name, ids in zip(("BATCH", "TARGETS"), context.ids, strict=False):
        dims = [*(["MICROBATCHES"] if several else []), *map(constant_name, ids.dims)]
        made[f"{name}_SHAPE"] = f"({', '.join(dims)})"
        made[f"{name}_SPEC"] = spec(context.layouts[ids.name], lead)
    return made


def _settings(context: StepContext) -> list[StepLine]:
    """Return the constants that the library's functions make: the optimizer, and an order."""
    plan, dtypes = context.plan, context.plan.dtypes
    second = DTYPES[dtypes.of("second_moment")]
    made = OPTIMIZERS[plan.optimizer.name].format(first=DTYPES[dtypes.moment], second=second)
    if plan.optimizer.name == "adam" and dtypes.of("second_moment") != dtypes.param:
        made = f"adam(LEARNING_RATE, {DTYPES[dtypes.moment]}, {second})"
    lines = [f"OPTIMIZER = {made}"]
    if frozen := _frozen(context):
        lines += ["FROZEN = (", *(f"    {quoted(name)}," for name in frozen), ")"]
    if context.order > 1:
        lines.append(f"ORDER = balanced_order(SEQ, {context.order})")
    return [StepLine(""), StepLine(""), *map(StepLine, lines)]


def _frozen(context: StepContext) -> tuple[str, ...]:
    """Return the entries of the tables of weights that have no gradient: all of a scan as one."""
    step = training_step(context.graph, Remat())
    moved = {name for name, _ in step.gradients}
    found: dict[str, None] = {}
    for op in context.graph.ops:
        read = [t for one in (op.body if isinstance(op, Scan) else (op,)) for t in one.inputs]
        weights = [tensor for tensor in read if tensor.role is TensorRole.PARAM]
        own = {t.name for t in op.shared} if isinstance(op, Scan) else set()
        frozen = [t for t in weights if t.name not in moved]
        if isinstance(op, Scan) and weights and frozen == weights and not own:
            found[op.name] = None
            continue
        for tensor in frozen:
            table = [op.name] if isinstance(op, Scan) and tensor.name not in own else []
            found["/".join([*table, weight_name(tensor)])] = None
    return tuple(found)


def _loss(context: StepContext, forward: list[StepLine]) -> list[StepLine]:
    """Return the function of the loss; a decoder of a target reads the tokens before it."""
    given, said = "ids, targets", "the batch, [BATCH, SEQ] tokens"
    if context.inputs:
        given, said = "batch", "the batch"
    elif context.stages:
        said = "the batch, [MICROBATCHES, BATCH, SEQ] tokens"
    elif context.plan.microbatches > 1:
        said = "a microbatch, [BATCH, SEQ] tokens"
    shifted = (f"{value_name(ids)} = tokens_before({target_name(ids)})" for ids in context.ids[1:])
    read = (f"{name} = batch[{quoted(name)}]" for name in map(value_name, context.inputs))
    body = [
        StepLine(f'"""Return the mean loss of {said}."""'),
        *map(StepLine, (*shifted, *read)),
        *forward,
        StepLine(f"return jnp.mean({value_name(context.graph.loss)})"),
    ]
    return [*plain(f"\n\ndef loss(w, {given}):"), *indented(body)]


def _wanted(context: StepContext) -> tuple[str, ...]:
    """Return the functions of the library that every file of this kind has."""
    training = [f"{name}{IN_PARTS}" if context.updates else name for name in _DIVIDED]
    main = "main_on_inputs" if context.inputs else "main"
    return ("init", *training, main)


def _training(context: StepContext, helpers: Collection[str]) -> str:
    """Return the functions of the training step, and of the program that runs it.

    helpers: functions of the library that the file has already.
    """
    several = context.plan.microbatches > 1 and not context.stages
    known = {*helpers, *([] if several else ["mean_gradients"])}
    wanted = library_functions(_wanted(context))
    known |= set(_DIVIDED) if context.updates else set()
    text = functions_source(n for n in wanted if n not in known)
    for library, own in _replaced(context, several):
        text = text.replace(library, own)
    return text + MAIN


def _replaced(context: StepContext, several: bool) -> Iterator[tuple[str, str]]:
    """Yield what stands in the library's functions of the step, and what does in this one's."""
    if context.updates:
        yield IN_PARTS, ""
        yield "shard(zeros, SPECS)", "shard(zeros, UPDATE_SPECS)"
    if not several:
        yield "mean_gradients(", "gradients("
    if len(context.ids) > 1:
        following = "jax.random.randint(jax.random.key(2), TARGETS_SHAPE, 0, VOCAB)"
        yield "jnp.roll(tokens, -1, axis=-1)", following
        yield "(following[..., ORDER], BATCH_SPEC)", "(following, TARGETS_SPEC)"
    if _frozen(context):
        for specs in ("SPECS", "UPDATE_SPECS"):
            trained = f"trained(abstract_weights()), trained({specs}))"
            yield f"abstract_weights(), {specs})", trained
            yield f"shard(zeros, {specs})", f"shard(zeros, trained({specs}))"
            yield f"shard(grads, {specs})", f"shard(grads, trained({specs}))"
        updated = "optax.apply_updates(params, updates)"
        own = updated.replace("params", "trained(params)")
        yield updated, f"merged({own}, params)"
        for end in ("ACCUMULATORS), params)", "init(params)", "moments, params)"):
            yield end, end.replace("params", "trained(params)")
        yield "(loss)(used,", "(loss_of_trained(used))(trained(used),"
    if context.order == 1:
        yield "[..., ORDER]", ""
    if context.inputs:
        yield "ids: Array, targets: Array", "batch: dict[str, Array]"
        yield "ids, targets", "batch"
        yield "main_on_inputs", "main"

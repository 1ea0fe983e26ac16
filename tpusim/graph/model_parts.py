"""Parts of a model, for the stages of a pipeline: some layers, with the embedding or the head.

The input from the part before is an activation, so the part makes its gradient too; the gradient of
its own result comes from the part after it. Scans are cut between layers; the rest of a pattern of
layers that is cut through is in a scan of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.graph.backward import training_step
from tpusim.graph.function import COPY
from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import LAYER_IN, Remat
from tpusim.graph.split_backward import split_backward
from tpusim.graph.tensor import Tensor, TensorRole
from tpusim.graph.tiled_loss import with_tensors

STAGE_IN, STAGE_OUT = "stage_in", "stage_out"
"""The input of a part from the one before it, and its result for the one after it."""

PATTERN_START, PATTERN_END = "_head", "_tail"
"""Suffixes of the names of the first and last layers of a pattern that is cut through."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Layers of a model as a training step of their own.

    graph: the training step of the part.
    passes: number of operations of the forward pass, and of the forward and backward pass; those of
        the loss count as backward. The rest makes gradients of weights.
    origin: (tensor, tensor of the whole model with the same layout) of those with names of their
        own.
    given, made: activation from the part before, and that for the part after; None if there is no
        such part.
    label: description, such as `embedding + 4 layers`.
    """

    graph: Graph
    passes: tuple[int, int]
    origin: tuple[tuple[str, str], ...]
    given: Tensor | None
    made: Tensor | None
    label: str


def layer_count(graph: Graph) -> int:
    """Return the number of layers of a forward pass."""
    return sum(scan.trips * len(_inputs(scan)) for scan in _layer_scans(graph))


def part_of_model(
    graph: Graph,
    first: int,
    last: int,
    remat: Remat,
    *,
    tiled: Callable[[Graph], Graph],
    later: bool = False,
    ends: bool = True,
) -> ModelPart:
    """Return layers `first` up to, but without, `last` of a forward pass as a training step.

    The first layer of all comes with the operations before the layers, and the last one with those
    after them; a part without layers has the operations at its end only.

    graph: forward pass of the whole model.
    remat: rematerialisation policy.
    tiled: cuts the operations after the layers into tiles, or returns the graph as it is.
    later: the backward pass is split: matmuls for weight gradients come after the rest.
    ends: False for a part that has its layers only.
    """
    scans = _layer_scans(graph)
    begin, end = graph.ops.index(scans[0]), graph.ops.index(scans[-1]) + 1
    count = layer_count(graph)
    start, stop = scans[0].carries[0][0], scans[-1].carries[0][3]
    before = graph.ops[:begin] if first == 0 and ends else ()
    after = graph.ops[end:] if last == count and ends else ()
    given = None if before else (replace(start, name=STAGE_IN) if first < last else stop)
    made = None if after else (replace(stop, name=STAGE_OUT) if first < last else start)
    origin = {STAGE_IN: start.name, STAGE_OUT: stop.name}
    layers = _taken(scans, first, last, given or start, made or stop, origin)
    forward = replace(graph, ops=(*before, *layers, *after), loss=made or graph.loss)
    forward = tiled(forward) if after else forward
    step = training_step(forward, _part_policy(remat, forward))
    ahead = (_receive(given),) if given else ()
    passes = len(ahead) + len(before) + len(layers) if made or layers else 0
    ops = (*ahead, *step.ops[: len(forward.ops)])
    back = step.ops[len(forward.ops) :]
    late: tuple[Op, ...] = ()
    if made:
        back = (_receive(replace(made.gradient(f"d({made.name})"))), *back)
    if later:
        weights = {parameter.tensor.name for parameter in forward.parameters}
        back, late = split_backward(back, weights)
    results = (*((f"d({given.name})",) if given else ()), *((made.name,) if made else ()))
    return ModelPart(
        replace(step, ops=(*ops, *back, *late), results=results),
        (passes, len(ops) + len(back)),
        tuple(origin.items()),
        given,
        made,
        _label(bool(before), first, last, bool(after)),
    )


def _label(before: bool, first: int, last: int, after: bool) -> str:
    layers = f"{last - first} layer{'s' * (last - first > 1)}" if last > first else ""
    return " + ".join(filter(None, ("embedding" * before, layers, "head" * after)))


def _layer_scans(graph: Graph) -> tuple[Scan, ...]:
    """Return the scans over layers, which follow one another and pass on one tensor."""
    scans = tuple(op for op in graph.ops if isinstance(op, Scan) and op.over_layers)
    places = [graph.ops.index(scan) for scan in scans]
    joined = places == list(range(places[0], places[0] + len(places))) if places else False
    for scan in scans:
        joined &= len(scan.carries) == 1 and not (scan.slices or scan.stacks or scan.shared)
    if not joined:
        raise PlanError(
            f"{graph.name} cannot be cut into stages: its layers are not one row that passes on "
            "one tensor; write stage = 1"
        )
    return scans


def _inputs(scan: Scan) -> tuple[Tensor, ...]:
    """Return the input of each layer of an iteration."""
    made = [t for op in scan.body for t in op.outputs if t.short == LAYER_IN]
    return (scan.carries[0][1], *made)


def _taken(
    scans: Sequence[Scan],
    first: int,
    last: int,
    given: Tensor,
    made: Tensor,
    origin: dict[str, str],
) -> list[Scan]:
    """Return the scans of layers `first` to `last`, which read `given` and make `made`."""
    runs: list[Scan] = []
    start = 0
    for scan in scans:
        layers = scan.trips * len(_inputs(scan))
        runs += _runs(scan, max(first - start, 0), min(last - start, layers), origin)
        start += layers
    joined = []
    for place, run in enumerate(runs):
        ((_, entered, left, after),) = run.carries
        ends = place == len(runs) - 1
        out = made if ends else replace(after, name=f"{run.name}_made")
        origin.setdefault(out.name, after.name)
        joined.append(replace(run, carries=((given, entered, left, out),)))
        given = out
    return joined


def _runs(scan: Scan, first: int, last: int, origin: dict[str, str]) -> list[Scan]:
    """Return layers of one scan: the end of a pattern, whole patterns, and the start of one."""
    if first >= last:
        return []
    length = len(_inputs(scan))
    begin, end = -(-first // length), last // length
    if begin > end:
        return [_partial_pattern(scan, first % length, last % length, PATTERN_END, origin)]
    runs = []
    if first % length:
        runs.append(_partial_pattern(scan, first % length, length, PATTERN_END, origin))
    if end > begin:
        runs.append(replace(scan, trips=end - begin))
    if last % length:
        runs.append(_partial_pattern(scan, 0, last % length, PATTERN_START, origin))
    return runs


def _partial_pattern(scan: Scan, first: int, last: int, mark: str, origin: dict[str, str]) -> Scan:
    """Return some layers of a pattern, run once, under names of their own."""
    inputs = _inputs(scan)
    makers = {t.name: place for place, op in enumerate(scan.body) for t in op.outputs}
    ends = [makers[tensor.name] + 1 for tensor in inputs[1:]]
    places = [0, *ends, len(scan.body)]
    ((before, _, left, after),) = scan.carries
    model = inputs[0].name.partition("/")[0]

    def named(name: str) -> str:
        return name.replace(model, f"{model}{mark}", 1) if name.startswith(f"{model}/") else name

    def other(tensor: Tensor) -> Tensor:
        primal = named(tensor.primal)
        renamed = replace(tensor, name=named(tensor.name), primal=primal)
        origin[renamed.name] = tensor.name
        return renamed

    body = tuple(
        replace(with_tensors(op, other), name=named(op.name))
        for op in scan.body[places[first] : places[last]]
    )
    entered = inputs[first]
    made = inputs[last] if last < len(inputs) else left
    carries = ((before, other(entered), other(made), after),)
    return replace(scan, name=f"{scan.name}{mark}", trips=1, body=body, carries=carries)


def _part_policy(remat: Remat, graph: Graph) -> Remat:
    """Return the policy without the names that no layer of the part has."""
    scans = [op for op in graph.ops if isinstance(op, Scan) and not op.recomputed]
    known = {t.short for scan in scans for op in scan.body for t in (*op.inputs, *op.outputs)}
    save = tuple(name for name in remat.save if name in known)
    return replace(remat, save=save, offload=tuple(name for name in remat.offload if name in known))


def _receive(tensor: Tensor) -> Op:
    """Return the copy of a received tensor: the layers' loop writes over its operand.

    A loop's state cannot be an argument that the caller keeps, so XLA copies it.
    """
    sent = replace(
        tensor,
        name=f"{tensor.name}/received",
        role=TensorRole.INPUT,
        primal=tensor.primal or tensor.name,
    )
    phase = Phase.BACKWARD if tensor.role is TensorRole.GRADIENT else Phase.FORWARD
    name = f"{tensor.name}/receive"
    return Pointwise(
        name, (sent,), (tensor,), 0.0, keeps="", alone=True, function=COPY, phase=phase
    )

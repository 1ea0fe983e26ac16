"""A part of a model: some of its layers, with what stands before the first and after the last.

A stage of a pipeline has such a part. What comes from the part before it is an activation, so the
part makes its gradient too, and that of its own result comes from the part behind it. Scans are cut
between layers; what is left of a pattern of layers that is cut through is in a scan of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpusim.errors import PlanError
from tpusim.graph.backward import training_step
from tpusim.graph.defer import deferred
from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import LAYER_IN, Remat
from tpusim.graph.tensor import Role, Tensor
from tpusim.graph.tile import with_tensors
from tpusim.phase import Phase

STAGE_IN, STAGE_OUT = "stage_in", "stage_out"
"""What a part is given by the one before it, and what it leaves for the one behind it."""

HEAD, TAIL = "_head", "_tail"
"""What the names of the first and of the last layers of a pattern that is cut through end with."""


@dataclass(frozen=True, slots=True)
class Part:
    """Layers of a model as a training step of their own.

    passes: how many operations are its forward pass, and how many its forward and backward pass;
        what the loss needs is part of the backward pass. Those left make gradients of weights.
    origin: (tensor, the whole model's tensor that lies as it does) of those with names of their
        own.
    given, made: what comes from the part before and what goes to the part behind, if there are any.
    label: what it is, in words.
    """

    graph: Graph
    passes: tuple[int, int]
    origin: tuple[tuple[str, str], ...]
    given: Tensor | None
    made: Tensor | None
    label: str


def layer_count(graph: Graph) -> int:
    """The layers of a forward pass."""
    return sum(scan.trips * len(_inputs(scan)) for scan in _layer_scans(graph))


def part_of_model(
    graph: Graph, first: int, last: int, remat: Remat, *, tiled: Callable[[Graph], Graph],
    later: bool = False, ends: bool = True,
) -> Part:  # fmt: skip
    """The layers from `first` up to `last`, without it, of a forward pass, as a training step.

    The first layer of all comes with what is before the layers, and the last one with what follows
    them, which `tiled` may cut into tiles; a part without layers has what is at its end alone.
    later: the products for the weights come after the rest of the backward pass. ends: without
    them, a part has its layers alone.
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
    step = training_step(forward, _of(remat, forward))
    ahead = (_receive(given),) if given else ()
    passes = len(ahead) + len(before) + len(layers) if made or layers else 0
    ops = (*ahead, *step.ops[: len(forward.ops)])
    back = step.ops[len(forward.ops) :]
    late: tuple[Op, ...] = ()
    if made:
        back = (_receive(replace(made.gradient(f"d({made.name})"))), *back)
    if later:
        weights = {parameter.tensor.name for parameter in forward.parameters}
        back, late = deferred(back, weights)
    results = (*((f"d({given.name})",) if given else ()), *((made.name,) if made else ()))
    return Part(
        replace(step, ops=(*ops, *back, *late), results=results), (passes, len(ops) + len(back)),
        tuple(origin.items()), given, made, _label(bool(before), first, last, bool(after)),
    )  # fmt: skip


def _label(before: bool, first: int, last: int, after: bool) -> str:
    layers = f"{last - first} layer{'s' * (last - first > 1)}" if last > first else ""
    return " + ".join(filter(None, ("embedding" * before, layers, "head" * after)))


def _layer_scans(graph: Graph) -> tuple[Scan, ...]:
    """The scans over layers, which follow one another and hand on one tensor."""
    scans = tuple(op for op in graph.ops if isinstance(op, Scan) and not op.recomputed)
    places = [graph.ops.index(scan) for scan in scans]
    joined = places == list(range(places[0], places[0] + len(places))) if places else False
    for scan in scans:
        joined &= len(scan.carries) == 1 and not (scan.slices or scan.stacks or scan.shared)
    if not joined:
        raise PlanError(
            f"{graph.name} cannot be cut into stages: its layers are not one row that hands on one "
            "tensor; write stage = 1"
        )
    return scans


def _inputs(scan: Scan) -> tuple[Tensor, ...]:
    """The input of each layer of a trip."""
    made = [t for op in scan.body for t in op.outputs if t.short == LAYER_IN]
    return (scan.carries[0][1], *made)


def _taken(
    scans: Sequence[Scan], first: int, last: int, given: Tensor, made: Tensor,
    origin: dict[str, str],
) -> list[Scan]:  # fmt: skip
    """The scans of layers `first` to `last`; the first one reads `given`, the last makes `made`."""
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
    """Layers of one scan: the end of a pattern, whole patterns, and the beginning of one."""
    if first >= last:
        return []
    length = len(_inputs(scan))
    begin, end = -(-first // length), last // length
    if begin > end:
        return [_some(scan, first % length, last % length, TAIL, origin)]
    runs = []
    if first % length:
        runs.append(_some(scan, first % length, length, TAIL, origin))
    if end > begin:
        runs.append(replace(scan, trips=end - begin))
    if last % length:
        runs.append(_some(scan, 0, last % length, HEAD, origin))
    return runs


def _some(scan: Scan, first: int, last: int, mark: str, origin: dict[str, str]) -> Scan:
    """Some layers of a pattern, once, under names of their own."""
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
    return replace(
        scan, name=f"{scan.name}{mark}", trips=1, body=body,
        carries=((before, other(entered), other(made), after),),
    )  # fmt: skip


def _of(remat: Remat, graph: Graph) -> Remat:
    """The policy without the names that no layer of the part has; the whole model has them."""
    scans = [op for op in graph.ops if isinstance(op, Scan) and not op.recomputed]
    known = {t.short for scan in scans for op in scan.body for t in (*op.inputs, *op.outputs)}
    return replace(
        remat, save=tuple(name for name in remat.save if name in known),
        offload=tuple(name for name in remat.offload if name in known),
    )  # fmt: skip


def _receive(tensor: Tensor) -> Op:
    """The copy of what another part sent: the layers' loop writes over its operand.

    A loop's state cannot be an argument that the caller keeps, so XLA copies it.
    """
    sent = replace(
        tensor, name=f"{tensor.name}/received", role=Role.INPUT, primal=tensor.primal or tensor.name
    )
    phase = Phase.BACKWARD if tensor.role is Role.GRADIENT else Phase.FORWARD
    return Pointwise(f"{tensor.name}/receive", (sent,), (tensor,), 0.0, keeps="", alone=True,
                     phase=phase)  # fmt: skip

"""Parts of a model, for the stages of a pipeline: some layers, with the embedding or the head.

What parts pass on are activations, so a part makes the gradients of those that it is given too, and
is sent those of its own results by the part after it. That is the tensor of the layers, and all
that is made before the cut and read behind it. Scans are cut between layers; the rest of a pattern
of layers that is cut through is in a scan of its own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.graph.backward import training_step
from tpusim.graph.function import COPY
from tpusim.graph.graph import LOSS, Graph
from tpusim.graph.layer_row import (
    LayerRow,
    carried_into,
    layer_inputs,
    layer_row,
    read_of_outside,
)
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import Remat
from tpusim.graph.split_backward import split_backward
from tpusim.graph.tensor import Tensor, TensorRole
from tpusim.graph.tiled_loss import with_tensors

STAGE_IN, STAGE_OUT = "stage_in", "stage_out"
"""The layers' tensor as a part is given it, and as it leaves it for the next one."""

PATTERN_START, PATTERN_END = "_head", "_tail"
"""Suffixes of the names of the first and last layers of a pattern that is cut through."""

_NEXT = "next"
"""Mark of the gradient of a result that the next part sends."""

Tiling: TypeAlias = Callable[[Graph], Graph]
"""Cuts the operations after the layers into tiles, or returns the graph as it is."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Layers of a model as a training step of their own.

    graph: the training step of the part.
    passes: number of operations of the forward pass, and of the forward and backward pass; those of
        the loss count as backward. The rest makes gradients of weights.
    origin: (tensor, tensor of the whole model with the same layout) of those with names of their
        own.
    given, made: activations from the part before, and those for the part after.
    returned: those of `given` whose gradients go back to the part before.
    label: description, such as `embedding + 4 layers`.
    """

    graph: Graph
    passes: tuple[int, int]
    origin: tuple[tuple[str, str], ...]
    given: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]
    label: str


def part_of_model(
    graph: Graph, first: int, last: int, remat: Remat, *, tiled: Tiling, later: bool = False
) -> ModelPart:
    """Return layers `first` up to, but without, `last` of a forward pass as a training step.

    The first layer of a scan comes with the operations before the scan, and the last layer of all
    with those after it.

    graph: forward pass of the whole model.
    remat: rematerialisation policy.
    later: the backward pass is split: matmuls for weight gradients come after the rest.
    """
    row = layer_row(graph)
    taken = _PartLayers(row, first, last)
    begun = row.begins_at(first)
    ahead = row.joints[begun] if begun is not None else ()
    behind = row.joints[-1] if last == row.layers else ()
    given = _named(row.passed_on(first), STAGE_IN if not ahead else "") if first else ()
    made = _named(row.passed_on(last), STAGE_OUT) if last < row.layers else ()
    layers = taken.ops(renamed=(bool(first) and not ahead, not behind))
    start = ("joint" if first else "embedding") if ahead else ""
    label = _label(start, first, last, "head" * bool(behind))
    builder = _PartBuilder(row, remat, tiled, later)
    return builder.part((*ahead, *layers), behind, given, made, taken.origin, label)


def split_part_of_model(
    graph: Graph, first: int, last: int, remat: Remat, *, tiled: Tiling
) -> ModelPart:
    """Return `part_of_model` with a split backward pass."""
    return part_of_model(graph, first, last, remat, tiled=tiled, later=True)


def chunk_of_model(
    graph: Graph, first: int, last: int, remat: Remat, *, tiled: Tiling
) -> ModelPart:
    """Return layers as one iteration of a loop, which carries all that they read.

    It has the layers only, and passes on what it is given: the layers' tensor, and others that they
    read, unchanged. The arguments are those of `part_of_model`.
    """
    row = layer_row(graph)
    taken = _PartLayers(row, first, last)
    ops = taken.ops(renamed=(True, True))
    entered, left = (row.scans[row.scan_of(layer)] for layer in (first, last - 1))
    before = replace(carried_into(entered), name=STAGE_IN)
    after = replace(left.carries[0][3], name=STAGE_OUT)
    others = tuple(t for t in read_of_outside(ops) if t.name != STAGE_IN)
    builder = _PartBuilder(row, remat, tiled)
    label = _label("", first, last, "")
    return builder.part(ops, (), (before, *others), (after, *others), taken.origin, label)


def joint_of_model(graph: Graph, number: int, remat: Remat, *, tiled: Tiling) -> ModelPart | None:
    """Return the operations before scan `number` over layers, or after the last; None without any.

    They have names of the whole model. The arguments are those of `part_of_model`.
    """
    row = layer_row(graph)
    ops = row.joints[number]
    if not ops:
        return None
    read = row.read_behind(number)
    made = tuple(t for op in ops for t in op.outputs if t.name in read)
    label = "head" if number == len(row.scans) else "embedding" if not number else f"joint {number}"
    ahead, behind = ((), ops) if number == len(row.scans) else (ops, ())
    return _PartBuilder(row, remat, tiled).part(
        ahead, behind, read_of_outside(ops), made, {}, label
    )


def _named(passed: tuple[Tensor, tuple[Tensor, ...]], name: str) -> tuple[Tensor, ...]:
    """Return what crosses a cut, the layers' tensor under the name that the part has for it."""
    carried, others = passed
    return (replace(carried, name=name) if name else carried, *others)


def _label(ahead: str, first: int, last: int, behind: str) -> str:
    layers = f"{last - first} layer{'s' * (last - first > 1)}" if last > first else ""
    return " + ".join(filter(None, (ahead, layers, behind)))


@dataclass(frozen=True, slots=True)
class _PartBuilder:
    """Builder of the training steps of parts of one model."""

    row: LayerRow
    remat: Remat
    tiled: Tiling
    later: bool = False

    def part(
        self,
        ahead: tuple[Op, ...],
        behind: tuple[Op, ...],
        given: tuple[Tensor, ...],
        made: tuple[Tensor, ...],
        origin: Mapping[str, str],
        label: str,
    ) -> ModelPart:
        """Return the part of some operations, those of the loss (`behind`) last."""
        graph = self.row.graph
        output = graph.loss if behind else made[0]
        forward = replace(graph, ops=(*ahead, *behind), outputs=((LOSS, output),))
        forward = self.tiled(forward) if behind else forward
        read = {tensor.name for op in forward.ops for tensor in op.inputs}
        arriving = [_arriving(t, read) for t in self._trained(made, origin)]
        returned = self._trained(given, origin)
        policy = _part_policy(self.remat, forward)
        step = training_step(forward, policy, None if behind else arriving, returned)
        received = tuple(map(_receive, given))
        ops = (*received, *step.ops[: len(forward.ops)])
        gradients = (replace(t, role=TensorRole.GRADIENT) for t in arriving)
        back = (*map(_receive, gradients), *step.ops[len(forward.ops) :])
        late: tuple[Op, ...] = ()
        if self.later:
            weights = {parameter.tensor.name for parameter in forward.parameters}
            back, late = split_backward(back, weights)
        results = (*(f"d({tensor.name})" for tensor in returned), *(t.name for t in made))
        layers = any(isinstance(op, Scan) for op in ahead)
        return ModelPart(
            replace(step, ops=(*ops, *back, *late), results=results),
            (len(received) + len(ahead) if made or layers else 0, len(ops) + len(back)),
            tuple(origin.items()),
            given,
            made,
            returned,
            label,
        )

    def _trained(self, tensors: Sequence[Tensor], origin: Mapping[str, str]) -> tuple[Tensor, ...]:
        """Return the tensors that have a gradient: frozen ones have none."""
        trained = self.row.trained
        return tuple(t for t in tensors if not t.frozen and origin.get(t.name, t.name) in trained)


def _arriving(tensor: Tensor, read: Collection[str]) -> Tensor:
    """Return the gradient of a result as the next part sends it.

    Where the part reads the result too, that is one of several terms.
    """
    name = f"d({tensor.name})" + f"~{_NEXT}" * (tensor.name in read)
    return replace(tensor.gradient(name), role=TensorRole.INPUT)


@dataclass(slots=True)
class _PartLayers:
    """Layers `first` up to, but without, `last` of a row.

    origin: see `ModelPart`.
    """

    row: LayerRow
    first: int
    last: int
    origin: dict[str, str] = field(default_factory=dict)

    def ops(self, renamed: tuple[bool, bool]) -> tuple[Op, ...]:
        """Return the scans of the layers, and what joins those that do not follow at once.

        renamed: whether the first starts from `STAGE_IN`, and the last one makes `STAGE_OUT`.
        """
        found: list[Op] = []
        for number, (begin, end) in enumerate(pairwise(self.row.bounds)):
            runs = _runs(
                self.row.scans[number],
                max(self.first - begin, 0),
                min(self.last, end) - begin,
                self.origin,
            )
            if runs and begin > self.first:
                found += self.row.joints[number]
            found += self._joined(runs)
        if renamed[0]:
            found[0] = self._starting(found[0])
        if renamed[1]:
            found[-1] = self._ending(found[-1])
        return tuple(found)

    def _starting(self, run: Op) -> Scan:
        """Return a scan that starts from `STAGE_IN`."""
        assert isinstance(run, Scan)
        ((before, entered, left, after),) = run.carries
        self.origin[STAGE_IN] = before.name
        given = replace(carried_into(run), name=STAGE_IN)
        return replace(run, carries=((given, entered, left, after),))

    def _ending(self, run: Op) -> Scan:
        """Return a scan that makes `STAGE_OUT`."""
        assert isinstance(run, Scan)
        ((before, entered, left, after),) = run.carries
        self.origin[STAGE_OUT] = after.name
        return replace(run, carries=((before, entered, left, replace(after, name=STAGE_OUT)),))

    def _joined(self, runs: Sequence[Scan]) -> list[Scan]:
        """Return the runs of one scan, each of which starts from what the one before it makes."""
        found: list[Scan] = []
        for place, run in enumerate(runs):
            ((before, entered, left, after),) = run.carries
            if found:
                before = found[-1].carries[0][3]
            if place < len(runs) - 1:
                self.origin[f"{run.name}_made"] = after.name
                after = replace(after, name=f"{run.name}_made")
            found.append(replace(run, carries=((before, entered, left, after),)))
        return found


def _runs(scan: Scan, first: int, last: int, origin: dict[str, str]) -> list[Scan]:
    """Return layers of one scan: the end of a pattern, whole patterns, and the start of one."""
    if first >= last:
        return []
    length = len(layer_inputs(scan))
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
    inputs = layer_inputs(scan)
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
    read = {tensor.name for op in body for tensor in op.inputs}
    shared = tuple(tensor for tensor in scan.shared if tensor.name in read)
    return replace(
        scan, name=f"{scan.name}{mark}", trips=1, body=body, carries=carries, shared=shared
    )


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

"""What each collective of a plan or of a program moves: a tensor, in a pass, over axes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.compiler_check.core_times import TimedOperation
from tpusim.compiler_check.step_names import EMBEDDING, StepNames, tensor_of
from tpusim.costs import CollectiveCosts
from tpusim.costs.route import received_bytes
from tpusim.network import ALGORITHMS
from tpusim.plan import STAGE_AXES
from tpusim.program import Collective, CollectiveKind, CollectivePart, Mode
from tpusim.results import Result

FORWARD, BACKWARD, GRADIENT, OPTIMIZER = "forward", "backward", "gradient", "optimizer"
"""The passes of a collective: weights and activations of the forward pass, what is moved again or
for the first time in the backward pass, the gradient of a weight, and the optimizer's."""


COLLECTIVE_MATMUL = "collective matmul"
"""The algorithm of the permutes that a matmul's chunks run beside."""


class MoveKey(NamedTuple):
    """A weight or a tensor, the pass in which it is moved, and the axes over which it is."""

    what: str
    when: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMove:
    """One collective of a step, or its part of one tensor.

    op: its operation.
    part: the tensor, where the collective moves several together.
    axes: of the mesh; those along which the listed pairs of a permute lie.
    runs: in a step.
    kind: what it is carried out as: an all-gather done as an all-reduce is one.
    mode: `ring` for an asynchronous permute, as collective matmuls are made of them; not over the
        stages of a pipeline.
    algorithm: kind and route in words; all rings of collective matmuls are one.
    wire_bytes: of data that a device receives, in all runs: (n-1)/n of the whole tensor for a
        gather, a reduce-scatter and an all-to-all among n devices, twice that for an all-reduce,
        all bytes of a permute and a broadcast; without what layouts pad, which no plan knows.
    exposed_s: the core's time in it or waiting for it, in all runs.
    """

    op: Collective
    part: CollectivePart | None
    axes: tuple[str, ...]
    runs: float
    kind: CollectiveKind
    mode: Mode
    algorithm: str
    wire_bytes: float
    exposed_s: float

    @property
    def scope(self) -> str:
        """The scope of its tensor."""
        return self.part.scope if self.part else self.op.scope

    @property
    def places(self) -> tuple[str, ...]:
        """The lines of its tensor: its own, then those that call it."""
        at = self.part or self.op
        return (at.source, *at.callers)

    @property
    def tensor_bytes(self) -> float:
        """Bytes of its tensor, whole on one device, without padding."""
        return _data_bytes(self.part or self.op)


def collective_moves(result: Result, times: Iterable[TimedOperation]) -> Iterator[CollectiveMove]:
    """Yield the collectives of a result, one for each tensor of merged ones."""
    machine = CollectiveCosts.of(result.program, result.pod, result.placement)
    for timed in times:
        op = timed.op
        if not isinstance(op, Collective):
            continue
        axes = _axes(op, machine)
        mode = _mode(op, axes)
        kind, algorithm = _carried_out(op, machine)
        size = prod(machine.sizes[axis] for axis in axes) if axes else machine.group(op).ici_size
        exposed = sum(timed.labels_s.values())
        for part in op.parts or (None,):
            nbytes = float(op.bytes if part is None else part.bytes)
            yield CollectiveMove(
                op=op,
                part=part,
                axes=axes or op.axes,
                runs=timed.runs,
                kind=kind,
                mode=mode,
                algorithm=COLLECTIVE_MATMUL if mode is Mode.RING else algorithm,
                wire_bytes=received_bytes(kind, size) * _data_bytes(part or op) * timed.runs,
                exposed_s=exposed * nbytes / float(op.bytes) if part else exposed,
            )


def _data_bytes(moved: Collective | CollectivePart) -> float:
    return float(moved.bytes) - float(moved.padded)


def _axes(op: Collective, machine: CollectiveCosts) -> tuple[str, ...]:
    """Return the axes of a collective in the order of the mesh; none for groups that have none."""
    listed = machine.placement.listed_as(op.axes)
    axes = op.axes if listed is None else listed.along
    return tuple(axis for axis in machine.sizes if axis in axes)


def _mode(op: Collective, axes: tuple[str, ...]) -> Mode:
    """Return the mode of a collective; what stages hand on to the next one is no ring."""
    ring = op.kind is CollectiveKind.PERMUTE and op.mode is Mode.ASYNC
    return Mode.RING if ring and not (axes and set(axes) <= set(STAGE_AXES)) else op.mode


def _carried_out(op: Collective, machine: CollectiveCosts) -> tuple[CollectiveKind, str]:
    """Return the kind that a collective is carried out as, and its route in words."""
    group = machine.group(op)
    text = "; ".join(path.text for path in (group.ici, group.dcn) if path.launched)
    kind = op.kind
    for each in ALGORITHMS.values():
        said = f"as an {each.runs_as}, "
        if each.runs_as is not None and op.kind in each.kinds and text.startswith(said):
            kind, text = each.runs_as, text.removeprefix(said)
    return kind, f"{kind}, {text}" if text else str(kind)


def planned_key(move: CollectiveMove, names: StepNames) -> MoveKey:
    """Return what a collective of a plan moves; its scope names the tensor."""
    tensor, gradient = tensor_of(move.scope)
    if tensor not in names.weights and tensor not in names.makers:
        tensor = names.planned(tensor) or tensor
    if gradient:
        tensor = names.sums.get(tensor, tensor)
    return move_key(names, tensor, pass_of(move, gradient and tensor in names.weights), move)


def move_key(names: StepNames, tensor: str, when: str, move: CollectiveMove) -> MoveKey:
    """Return the key of a tensor; what the embedding moves, table or rows, is one in each pass."""
    if tensor in names.lookups:
        return MoveKey(EMBEDDING, BACKWARD if when == GRADIENT else when, move.axes)
    return MoveKey(tensor, when, move.axes)


def pass_of(move: CollectiveMove, gradient: bool) -> str:
    """Return the pass of a collective: recomputation belongs to the backward pass."""
    if gradient:
        return GRADIENT
    return _PASSES.get(move.op.phase, BACKWARD)


_PASSES = {Phase.FORWARD: FORWARD, Phase.OPTIMIZER: OPTIMIZER}

"""Segments: the passes of a part of a model, as its stage runs them for a microbatch."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tpusim.frames import addition, sizes_of
from tpusim.graph import ModelPart, Scan, Tensor
from tpusim.lowering import (
    AskedPlace,
    Bodies,
    BodyChoices,
    BodyLowerer,
    CircularPart,
    GradientDeps,
    LoweringDecisions,
    names,
)
from tpusim.partition import LocalShape, PartitionedGraph, Sizes, StoredWeight
from tpusim.plan import Numerics
from tpusim.program import (
    Alloc,
    Compute,
    Loop,
    Number,
    Op,
    PassKind,
    Segment,
    walk_allocs,
)

_VERBS = {
    PassKind.FORWARD: "forward",
    PassKind.BACKWARD: "backward",
    PassKind.WEIGHTS: "weight gradients",
}


class Passed(NamedTuple):
    """A tensor that parts pass on: one device's shard of it."""

    name: str
    nbytes: Number
    dtype: str


@dataclass(frozen=True, slots=True)
class LoweredPart:
    """A part of a model on one device of its stage.

    segments: the passes of a microbatch.
    gradients: those of the weights after the passes.
    made: the tensors for the next part.
    returned: those from the part before whose gradients it is sent, which have the same bytes.
    """

    part: ModelPart
    partitioned: PartitionedGraph
    sizes: Sizes
    segments: Mapping[PassKind, Segment]
    gradients: GradientDeps
    made: tuple[Passed, ...]
    returned: tuple[Passed, ...]

    def ops(self, kind: PassKind) -> tuple[Op, ...]:
        """Return the segment of a pass, if it has operations."""
        return self.segments[kind].body if kind in self.segments else ()

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """The operations of all passes."""
        return tuple(op for segment in self.segments.values() for op in segment.body)


def lower_part(
    part: ModelPart,
    partitioned: PartitionedGraph,
    choices: BodyChoices,
    place: AskedPlace,
    known: Bodies,
    *,
    summed: bool,
    circular: CircularPart = "",
) -> LoweredPart:
    """Lower the passes of `part`, each of which runs on its own.

    known: bodies of loops that other parts have too.
    summed: True if each pass ends by adding its gradients to their sums over microbatches.
    circular: what the part is of a circular pipeline. No matmul outside of its loop is a ring
        (fsdp 8 on v5e 4x4 and v5p 2x2x4).
    """
    sizes = sizes_of(part.graph, choices)
    decisions = LoweringDecisions(partitioned, sizes, choices, place, circular)
    lowerer = BodyLowerer(sizes, partitioned, decisions, known)
    bodies, gradients = lowerer.passes()
    segments = {}
    for kind, body in zip(PassKind, bodies, strict=True):
        sums = (
            _additions(body, partitioned.weights, gradients, choices.numerics, sizes)
            if summed
            else []
        )
        name = f"{_VERBS[kind]} of {part.label}"
        if ops := _without_earlier_deps((*body, *sums)):
            segments[kind] = Segment(name=name, body=tuple(ops))
    made, returned = (
        tuple(_passed(tensor, partitioned, sizes) for tensor in tensors)
        for tensors in (part.made, part.returned)
    )
    return LoweredPart(part, partitioned, sizes, segments, gradients, made, returned)


def _additions(
    body: Sequence[Op],
    weights: Iterable[StoredWeight],
    gradients: GradientDeps,
    numerics: Numerics,
    sizes: Sizes,
) -> list[Compute]:
    """Return the additions for the weights whose gradients a pass allocates."""
    taken = {alloc.tensor for alloc in allocated(body)}
    return [
        addition(weight, numerics, sizes, gradients)
        for weight in weights
        if gradients.held.get(weight.name) in taken
    ]


def allocated(body: Iterable[Op]) -> Iterator[Alloc]:
    """Yield what a body allocates, within its loops too."""
    for _, allocs in walk_allocs(body):
        yield from allocs


def _without_earlier_deps(body: Sequence[Op]) -> Sequence[Op]:
    """Return the body without dependencies on earlier passes, which are over."""
    known = frozenset(names(body))
    return tuple(_with_deps_among(known, op) for op in body)


def _with_deps_among(known: Collection[str], op: Op) -> Op:
    if isinstance(op, Loop):
        return replace(op, body=tuple(_with_deps_among(known, each) for each in op.body))
    if all(dep.op in known for dep in op.deps):
        return op
    return replace(op, deps=tuple(dep for dep in op.deps if dep.op in known))


def _passed(tensor: Tensor, partitioned: PartitionedGraph, sizes: Sizes) -> Passed:
    layout = partitioned.layouts[tensor.name]
    nbytes = sizes.nbytes(LocalShape(tensor.dims, layout), tensor.dtype)
    return Passed(tensor.name, nbytes, sizes.dtype(tensor.dtype))


def bytes_of(passed: Iterable[Passed]) -> Number:
    """Return the bytes of tensors together."""
    return sum(tensor.nbytes for tensor in passed)


def merged_weights(parts: Iterable[LoweredPart]) -> tuple[StoredWeight, ...]:
    """Return the weights of the parts of one stage: each of its layers has its own.

    What is read outside of layers is the same weight in all of them, as a table of embeddings is.
    """
    found: dict[str, StoredWeight] = {}
    for part in parts:
        layers = {
            tensor.name
            for op in part.part.graph.ops
            if isinstance(op, Scan) and op.over_layers
            for one in op.body
            for tensor in one.inputs
        }
        for weight in part.partitioned.weights:
            again = weight.name in found and weight.name in layers
            copies = found[weight.name].copies if again else 0
            found[weight.name] = replace(weight, copies=copies + weight.copies)
    return tuple(found.values())

"""A part of a model, lowered: what its stage runs for a microbatch, pass by pass."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tpusim.graph import Part, Tensor
from tpusim.hardware import Placement, Slice
from tpusim.partition.accumulate import Gradients, addition
from tpusim.partition.bodies import Bodies, Lowerer
from tpusim.partition.decisions import Decisions
from tpusim.partition.layout import Local
from tpusim.partition.lower import sizes_of
from tpusim.partition.plan import Plan
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Template, Weight
from tpusim.phase import Phase
from tpusim.program import Compute, Loop, Number, Op, Segment, Vector
from tpusim.program.schedule import Pass

_VERBS = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.WEIGHTS: "weight gradients"}


@dataclass(frozen=True, slots=True)
class Lowered:
    """A part of a model on one device of its stage.

    segments: the passes of a microbatch. gradients: where those of the weights are after them.
    given_bytes, made_bytes: one device's share of what comes from the part before, and of
    what goes to the part behind.
    """

    part: Part
    template: Template
    sizes: Sizes
    segments: Mapping[Pass, Segment]
    gradients: Gradients
    given_bytes: Number
    made_bytes: Number

    def ops(self, kind: Pass) -> tuple[Op, ...]:
        """The operations of a pass, if there are any."""
        return self.segments[kind].body if kind in self.segments else ()


def lowered(
    part: Part, template: Template, plan: Plan, pod: Slice, placement: Placement, known: Bodies,
    *, summed: bool, trips: bool = False,
) -> Lowered:  # fmt: skip
    """The passes of `part`, each of which runs on its own.

    known: bodies of loops that other parts have too. summed: whether each pass ends with the
    addition of the gradients that it makes to their sums over microbatches. trips: whether the part
    is what a trip of a circular pipeline runs.
    """
    sizes = sizes_of(part.graph, plan)
    decisions = Decisions(template, sizes, plan, pod, placement, trips)
    lowerer = Lowerer(sizes, template, decisions, plan, known)
    bodies, gradients = lowerer.passes()
    segments = {}
    for kind, body, held in zip(Pass, bodies, lowerer.left_over, strict=True):
        sums = _additions(body, template.weights, gradients, plan, sizes) if summed else []
        name = f"{_VERBS[kind]} of {part.label}"
        if ops := _own(_with_frees((*body, *sums), len(body), held, name)):
            segments[kind] = Segment(name=name, body=tuple(ops))
    given, made = (_nbytes(t, template, sizes) for t in (part.given, part.made))
    return Lowered(part, template, sizes, segments, gradients, given, made)


def _additions(
    body: Sequence[Op], weights: Iterable[Weight], gradients: Gradients, plan: Plan, sizes: Sizes
) -> list[Compute]:
    """The additions for the weights whose gradients a pass takes the buffers of."""
    taken = set(taken_by(body))
    return [
        addition(weight, plan, sizes, gradients)
        for weight in weights
        if gradients.held.get(weight.name) in taken
    ]


def taken_by(body: Iterable[Op]) -> Iterable[str]:
    """The tensors that a body takes."""
    for op in body:
        if isinstance(op, Loop):
            yield from taken_by(op.body)
        else:
            yield from (alloc.tensor for alloc in op.allocs)


def _with_frees(body: Sequence[Op], behind: int, held: Collection[str], name: str) -> Sequence[Op]:
    """The body giving back what its loops hold to its end, in the first operation behind them."""
    if not held:
        return body
    last = body[behind] if behind < len(body) else None
    if isinstance(last, Compute):
        freed = replace(last, frees=(*last.frees, *held))
        return (*body[:behind], freed, *body[behind + 1 :])
    end = Compute(
        name=f"end/{name}", phase=_first_phase(body), scope=name, work=Vector(0, 0, 0),
        frees=tuple(held),
    )  # fmt: skip
    return (*body, end)


def _first_phase(body: Sequence[Op]) -> Phase:
    first = body[0]
    return _first_phase(first.body) if isinstance(first, Loop) else first.phase


def _own(body: Sequence[Op]) -> Sequence[Op]:
    """The body without waits for operations that are not in it: those of passes before are over."""
    known = frozenset(_names(body))

    def without(op: Op) -> Op:
        if isinstance(op, Loop):
            return replace(op, body=tuple(map(without, op.body)))
        if all(dep.op in known for dep in op.deps):
            return op
        return replace(op, deps=tuple(dep for dep in op.deps if dep.op in known))

    return tuple(map(without, body))


def _names(body: Iterable[Op]) -> Iterable[str]:
    for op in body:
        yield op.name
        if isinstance(op, Loop):
            yield from _names(op.body)


def _nbytes(tensor: Tensor | None, template: Template, sizes: Sizes) -> Number:
    """One device's share of a tensor that parts hand on."""
    if tensor is None:
        return 0
    layout = template.layouts[tensor.name]
    return sizes.nbytes(Local(tensor.dims, layout), tensor.dtype)


def merged(parts: Iterable[Lowered]) -> tuple[Weight, ...]:
    """The weights of the parts that one stage has: each of its layers has its own."""
    found: dict[str, Weight] = {}
    for part in parts:
        for weight in part.template.weights:
            copies = found[weight.name].copies if weight.name in found else 0
            found[weight.name] = replace(weight, copies=copies + weight.copies)
    return tuple(found.values())

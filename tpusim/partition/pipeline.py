"""A pipeline: the program of each stage, which calls its passes in the order of a schedule.

A stage has one part of the model, or several (chunks). It holds the sums of its weights' gradients
over the microbatches and updates its weights once, after its last microbatch.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from tpusim.graph import Part
from tpusim.hardware import Placement, Slice
from tpusim.partition import optimizer
from tpusim.partition.accumulate import Gradients, accumulator, zeros
from tpusim.partition.bodies import Bodies
from tpusim.partition.exchange import Exchange, send
from tpusim.partition.feed import batch_copy
from tpusim.partition.keys.pipeline import STAGE_AXES
from tpusim.partition.lower import barrier, with_optimizer
from tpusim.partition.plan import Plan
from tpusim.partition.quantise import check_dtypes
from tpusim.partition.schedules import make
from tpusim.partition.segments import Lowered, lowered, merged
from tpusim.partition.stages import stage_plan
from tpusim.partition.template import Template
from tpusim.partition.travel import cast_before
from tpusim.program import (
    Alloc,
    Call,
    Number,
    Pass,
    Program,
    Schedule,
    Segment,
    Slot,
    Transfer,
)

BUFFERS = "stage buffers"
"""What memory calls the copies that leave for other stages."""


def schedule_of(plan: Plan) -> Schedule:
    """The schedule of the plan's pipeline. Raises PlanError for one that cannot be."""
    return _schedule(plan.pipeline, plan.stages, plan.microbatches, plan.virtual_stages)


@lru_cache(maxsize=32)
def _schedule(name: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    return make(name, stages, microbatches, chunks)


def stage_programs(
    name: str, parts: Sequence[Part], templates: Sequence[Template], plan: Plan, pod: Slice,
    placement: Placement,
) -> tuple[Program, ...]:  # fmt: skip
    """The program of one device of each stage.

    parts: those of the model in its order, with their templates; equal ones are one object.
    """
    check_dtypes(plan, pod.chip)
    inner = stage_plan(plan)
    distinct = {id(part): (part, like) for part, like in zip(parts, templates, strict=True)}
    every = _lowered(_Parts(tuple(distinct.values()), inner), pod, placement)
    made = dict(zip(distinct, every, strict=True))
    chosen = [made[id(part)] for part in parts]
    exchange = Exchange(plan, chosen)
    hands = tuple(map(_hand, chosen))
    calls = _calls(plan.pipeline, plan.stages, plan.microbatches, plan.virtual_stages,
                   plan.mesh.get(STAGE_AXES[-1], 1), hands)  # fmt: skip
    kinds: dict[tuple[int, ...], Stage] = {}
    programs = []
    for stage in range(plan.stages):
        own = chosen[stage :: plan.stages]
        kind = tuple(map(id, own))
        if kind not in kinds:
            kinds[kind] = Stage(own, plan, inner)
        programs.append(kinds[kind].program(name, stage, calls[stage], plan, exchange))
    return tuple(programs)


class _Parts:
    """Parts of a model with their templates, and the plan of a stage.

    They are equal where they are lowered alike: the plan may differ in its schedule.
    """

    __slots__ = ("_key", "parts", "plan")

    def __init__(self, parts: Sequence[tuple[Part, Template]], plan: Plan) -> None:
        self.parts = parts
        self.plan = plan
        alike = replace(plan, schedule="", virtual_stages=1, stage_layers=(), input_s=0.0)
        found = tuple((part, tuple(template.layouts.items())) for part, template in parts)
        self._key = (repr(alike), found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=16)
def _lowered(given: _Parts, pod: Slice, placement: Placement) -> tuple[Lowered, ...]:
    """The parts lowered, kept for the next schedule."""
    known = Bodies()
    return tuple(
        lowered(*pair, given.plan, pod, placement, known, summed=True) for pair in given.parts
    )


class _Hand(NamedTuple):
    """What the calls of a part of the model depend on: its segments, and what it hands on."""

    segments: tuple[tuple[Pass, str], ...]
    sent: tuple[tuple[Pass, Number, str], ...]


def _hand(part: Lowered) -> _Hand:
    tensors = ((Pass.FORWARD, part.made_bytes, part.part.made),
               (Pass.BACKWARD, part.given_bytes, part.part.given))  # fmt: skip
    return _Hand(
        tuple((kind, segment.name) for kind, segment in part.segments.items()),
        tuple((kind, nbytes, part.sizes.dtype(t.dtype)) for kind, nbytes, t in tensors if t),
    )


@lru_cache(maxsize=16)
def _calls(
    name: str, stages: int, microbatches: int, chunks: int, inner: int, hands: tuple[_Hand, ...]
) -> tuple[tuple[Call, ...], ...]:
    """The calls of each stage, which are the same for all plans of one schedule."""
    schedule = _schedule(name, stages, microbatches, chunks)
    return tuple(
        tuple(_call(stage, slot, schedule, inner, hands) for slot in slots)
        for stage, slots in enumerate(schedule.slots)
    )


def _call(stage: int, slot: Slot, schedule: Schedule, inner: int, hands: tuple[_Hand, ...]) -> Call:
    hand = hands[slot.chunk * schedule.stages + stage]
    to = (stage + (1 if slot.kind is Pass.FORWARD else -1)) % schedule.stages
    return Call(
        name=str(slot), segment=dict(hand.segments)[slot.kind], microbatch=slot.microbatch,
        awaits=tuple(
            _message(other, theirs)
            for other, theirs in schedule.operands(stage, slot) if other != stage
        ),
        sends=tuple(
            send(_message(stage, slot), stage, to, nbytes, dtype, inner)
            for kind, nbytes, dtype in hand.sent if kind is slot.kind
        ),
    )  # fmt: skip


class Stage:
    """What stages with alike parts of the model have in common: operations, segments, memory."""

    def __init__(self, parts: Sequence[Lowered], plan: Plan, inner: Plan) -> None:
        self.passes = [segment for part in parts for segment in part.segments.values()]
        self.weights, sizes = merged(parts), parts[0].sizes
        held = {name for part in parts for name in part.gradients.held}
        sums = {w.name: accumulator(w, plan, sizes) for w in self.weights if w.name in held}
        self.sums = Gradients({name: alloc.tensor for name, alloc in sums.items()}, {})
        self.norm = Segment(
            name="gradient norm", body=optimizer.clip(self.weights, plan, sizes, self.sums)
        )
        shards = {name for part in parts for name in cast_before(part.template, inner)}
        clear = zeros(tuple(sums.values()))
        ops = with_optimizer(
            (clear,), self.weights, shards, plan, sizes, self.sums, (), barrier(inner, ())
        )
        place = ops.index(clear) + 1
        copies = [batch_copy(p.part.graph, p.template, inner, p.sizes) for p in parts]
        self.before = (*_input(copies), *ops[:place])
        self.after = ops[place:]
        self.resident = (*optimizer.resident(self.weights, plan, sizes), *_buffers(parts))

    def program(
        self, name: str, stage: int, calls: tuple[Call, ...], plan: Plan, exchange: Exchange
    ) -> Program:
        """The program of one of the stages."""
        more = exchange.calls(stage, self.norm)
        segments = (*self.passes, *(segment for segment, _ in more))
        return Program(
            name=f"{name}, stage {stage}", axes=tuple(plan.mesh.items()),
            body=(*self.before, *calls, *(call for _, call in more), *self.after),
            resident=self.resident,
            segments=tuple({segment.name: segment for segment in segments}.values()),
        )  # fmt: skip


def _message(stage: int, slot: Slot) -> str:
    return f"{slot} of stage {stage}"


def _input(copies: Sequence[Transfer]) -> tuple[Transfer, ...]:
    """The copy of what the parts of a stage read of the batch, if they read any."""
    nbytes = sum(copy.bytes for copy in copies)
    return (replace(copies[0], bytes=nbytes),) if nbytes else ()


def _buffers(parts: Sequence[Lowered]) -> tuple[Alloc, ...]:
    """One copy of each kind that leaves for another stage while the core goes on."""
    ways = {"activations sent": max(part.made_bytes for part in parts),
            "gradients sent": max(part.given_bytes for part in parts)}  # fmt: skip
    return tuple(Alloc(name, nbytes, BUFFERS) for name, nbytes in ways.items() if nbytes)

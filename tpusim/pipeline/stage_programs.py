"""Programs of the stages of a pipeline, which call segments in the order of a schedule.

A stage has one part of the model, or several (chunks). It holds the sums of its weights' gradients
over the microbatches and updates its weights once, after its last microbatch.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from tpusim.base.errors import PlanError
from tpusim.frames import TrainingFrame, accumulator, choices_of, zeros
from tpusim.graph import ModelPart
from tpusim.hardware import Slice
from tpusim.lowering import (
    AskedPlace,
    Bodies,
    BodyChoices,
    GradientDeps,
    SharedLowerings,
    cast_before,
    check_dtypes,
)
from tpusim.partition import PartitionedGraph
from tpusim.pipeline.own_names import with_own_sizes
from tpusim.pipeline.segments import LoweredPart, bytes_of, lower_part, merged_weights
from tpusim.pipeline.stage_exchange import StageExchange, send
from tpusim.plan import STAGE_AXES, Plan, make_schedule, stage_plan
from tpusim.program import (
    Alloc,
    Call,
    Number,
    PassKind,
    Program,
    Schedule,
    Segment,
    Slot,
    Transfer,
)

BUFFERS = "stage buffers"
"""Memory category of the copies that are sent to other stages."""


def schedule_of(plan: Plan) -> Schedule:
    """Return the schedule of the plan's pipeline. Raise PlanError for an impossible one."""
    return _schedule(
        plan.active_schedule, plan.stages, int(plan.microbatches), plan.pipeline.virtual_stages
    )


_schedule = lru_cache(maxsize=32)(make_schedule)


def stage_programs(
    name: str,
    parts: Sequence[ModelPart],
    partitioned_parts: Sequence[PartitionedGraph],
    plan: Plan,
    place: AskedPlace,
) -> tuple[Program, ...]:
    """Return the program of one device of each stage.

    parts: those of the model in its order; equal ones are one object.
    partitioned_parts: their partitioned graphs, in the same order.
    """
    check_dtypes(plan.numerics, place.pod.chip)
    _check_trained(name, parts)
    choices = choices_of(stage_plan(plan))
    distinct = {id(part): (part, like) for part, like in zip(parts, partitioned_parts, strict=True)}
    given = _PartitionedParts(tuple(distinct.values()), choices, plan.reduces_once)
    every = _known(given, place.pod).on(place, partial(_lowered, given))
    made = dict(zip(distinct, every, strict=True))
    chosen = [made[id(part)] for part in parts]
    inner = int(plan.mesh.get(STAGE_AXES[-1], 1))
    exchange = StageExchange(chosen, plan.stages, inner, plan.numerics.of("accumulator"))
    hands = tuple(map(_hand, chosen))
    calls = _calls(
        plan.active_schedule,
        plan.stages,
        int(plan.microbatches),
        plan.pipeline.virtual_stages,
        inner,
        hands,
    )
    kinds: dict[tuple[int, ...], StageProgram] = {}
    programs = []
    for stage in range(plan.stages):
        own = chosen[stage :: plan.stages]
        kind = tuple(map(id, own))
        if kind not in kinds:
            kinds[kind] = StageProgram(own, TrainingFrame(plan, choices, own[0].sizes, place))
        programs.append(kinds[kind].program(name, stage, calls[stage], exchange))
    return tuple(programs)


def _check_trained(name: str, parts: Sequence[ModelPart]) -> None:
    """Raise PlanError for a part without a backward pass."""
    for number, part in enumerate(parts):
        if not part.graph.gradients:
            raise PlanError(
                f"part {number} of {name} ({part.label}) is frozen and has no backward pass, but a "
                "stage runs one for each microbatch; write stage_layers by which each part trains "
                "a layer, or stage = 1"
            )


class _PartitionedParts:
    """Parts of a model with their partitioned graphs, and the choices of a stage.

    They are equal where they are lowered alike: their plans may differ in the rest.
    """

    __slots__ = ("_key", "choices", "parts")

    def __init__(
        self,
        parts: Sequence[tuple[ModelPart, PartitionedGraph]],
        choices: BodyChoices,
        late: bool,
    ) -> None:
        """late: the gradients of weights are reduced once per step, see `WeightUpdates`."""
        self.parts = parts
        self.choices = choices
        found = tuple((part, tuple(partitioned.layouts.items())) for part, partitioned in parts)
        self._key = (late, repr(choices), found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PartitionedParts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=16)
def _known(given: _PartitionedParts, pod: Slice) -> SharedLowerings[tuple[LoweredPart, ...]]:
    """Return what is known of some parts on a slice, for the next placement or schedule."""
    return SharedLowerings()


def _lowered(given: _PartitionedParts, place: AskedPlace) -> tuple[LoweredPart, ...]:
    """Return the lowered parts."""
    known = Bodies()
    return with_own_sizes(
        lower_part(*pair, given.choices, place, known, summed=True) for pair in given.parts
    )


class _PartCalls(NamedTuple):
    """The calls of a part of the model: its segments, and the bytes that each of them sends.

    What a pass sends is one message: its tensors are ready at the same time and go the same way.
    """

    segments: tuple[tuple[PassKind, str], ...]
    sent: tuple[tuple[PassKind, Number, str], ...]

    def sends(self, pass_kind: PassKind) -> bool:
        """Return True if a pass sends something: what is frozen gets no gradient."""
        return any(kind is pass_kind for kind, _, _ in self.sent)


def _hand(part: LoweredPart) -> _PartCalls:
    messages = ((PassKind.FORWARD, part.made), (PassKind.BACKWARD, part.returned))
    return _PartCalls(
        tuple((kind, segment.name) for kind, segment in part.segments.items()),
        tuple((kind, bytes_of(each), each[0].dtype) for kind, each in messages if each),
    )


@lru_cache(maxsize=16)
def _calls(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int,
    inner: int,
    hands: tuple[_PartCalls, ...],
) -> tuple[tuple[Call, ...], ...]:
    """Return the calls of each stage, which are the same for all plans of one schedule.

    A part whose gradients of weights are all made with those of activations has no later pass.
    """
    schedule = _schedule(name, stages, microbatches, chunks)
    return tuple(
        tuple(
            _call(stage, slot, schedule, inner, hands)
            for slot in slots
            if slot.kind is not PassKind.WEIGHTS
            or slot.kind in dict(hands[slot.chunk * stages + stage].segments)
        )
        for stage, slots in enumerate(schedule.slots)
    )


def _call(
    stage: int, slot: Slot, schedule: Schedule, inner: int, hands: tuple[_PartCalls, ...]
) -> Call:
    hand = hands[slot.chunk * schedule.stages + stage]
    to = (stage + (1 if slot.kind is PassKind.FORWARD else -1)) % schedule.stages
    return Call(
        name=str(slot),
        segment=dict(hand.segments)[slot.kind],
        microbatch=slot.microbatch,
        awaits=tuple(
            _message(other, theirs)
            for other, theirs in schedule.operands(stage, slot)
            if other != stage and hands[theirs.chunk * schedule.stages + other].sends(theirs.kind)
        ),
        sends=tuple(
            send(_message(stage, slot), stage, to, nbytes, dtype, inner)
            for kind, nbytes, dtype in hand.sent
            if kind is slot.kind
        ),
    )


class StageProgram:
    """The common content of stages with equal parts: operations, segments, memory.

    frame: with the sizes of the first part.
    """

    def __init__(self, parts: Sequence[LoweredPart], frame: TrainingFrame) -> None:
        self.axes = tuple(frame.plan.mesh.items())
        self.passes = [segment for part in parts for segment in part.segments.values()]
        self.weights = merged_weights(parts)
        held = {name for part in parts for name in part.gradients.held}
        numerics = frame.plan.numerics
        sums = {
            w.name: accumulator(w, numerics, frame.sizes) for w in self.weights if w.name in held
        }
        terms = GradientDeps({name: alloc.tensor for name, alloc in sums.items()}, {})
        reduced = frame.reduced(self.weights, terms)
        self.reductions = Segment(name="gradient reductions", body=reduced.ops)
        self.sums = GradientDeps(reduced.gradients.held, {})
        self.norm = Segment(name="gradient norm", body=frame.updates.clip(self.weights, self.sums))
        shards = {name for part in parts for name in cast_before(part.partitioned, numerics)}
        clear = zeros(tuple(sums.values()))
        whole = frame.gathers(self.weights, shards)
        ops = frame.around(
            (clear,), self.weights, shards, self.sums, frame.barrier(()), whole=whole
        )
        first = ops.index(clear) + 1
        copies = [
            replace(frame, sizes=part.sizes).infeed(
                part.part.graph, part.partitioned, frame.plan.microbatches
            )
            for part in parts
        ]
        self.before = (*_input(copies), *ops[:first])
        self.after = ops[first:]
        self.resident = (*frame.updates.resident(self.weights), *_buffers(parts))

    def program(
        self, name: str, stage: int, calls: tuple[Call, ...], exchange: StageExchange
    ) -> Program:
        """Return the program of one of the stages."""
        more = exchange.calls(stage, self.reductions, self.norm)
        segments = (*self.passes, *(segment for segment, _ in more))
        return Program(
            name=f"{name}, stage {stage}",
            axes=self.axes,
            body=(*self.before, *calls, *(call for _, call in more), *self.after),
            resident=self.resident,
            segments=tuple({segment.name: segment for segment in segments}.values()),
        )


def _message(stage: int, slot: Slot) -> str:
    return f"{slot} of stage {stage}"


def _input(copies: Sequence[Transfer]) -> tuple[Transfer, ...]:
    """Return the infeed of a stage, if its parts read any of the batch."""
    nbytes = sum(copy.bytes for copy in copies)
    return (replace(copies[0], bytes=nbytes),) if nbytes else ()


def _buffers(parts: Sequence[LoweredPart]) -> tuple[Alloc, ...]:
    """Return one copy of each kind that leaves for another stage while the core continues."""
    sent = {
        "activations sent": max(bytes_of(part.made) for part in parts),
        "gradients sent": max(bytes_of(part.returned) for part in parts),
    }
    return tuple(Alloc(name, nbytes, BUFFERS) for name, nbytes in sent.items() if nbytes)

"""A trip of a circular pipeline: its chunk of layers, and what goes from stage to stage.

This is MaxText's scheme (pipeline.py) as the TPU compiler lowers it: 4 stages x fsdp 4 on v6e 4x4,
one chunk and two a stage, the latter with MaxText's flags too, and 2 stages on two slices of v6e
2x2 (libtpu 0.0.42.1). What goes is one microbatch each:

rotation: results to the next stage, waited for at the end of the trip. Backward, their gradients
    are waited for at its beginning, beside the copy of the chunk's weights. There they are two
    permutes, of all stages but the last and of the last, which are in flight together and have no
    sender in common: one here.
stream: microbatches that wait for their turn, or are done, move on by a stage beside the compute.
repeats: with several chunks, results return to the first stage, where they wait for their next
    round; beside the compute, but backward only beside the copies at the end of the trip.

Over DCN all of it is sent at the beginning of the next trip, and the rotation is waited for there.
"""

from dataclasses import replace
from typing import TypeAlias

from tpusim.partition.kernel_rings import ONWARD
from tpusim.partition.layout import Axes, across
from tpusim.partition.plan import STAGE_AXES, Plan
from tpusim.partition.segments import Lowered
from tpusim.partition.sizes import DTYPE_BYTES
from tpusim.phase import Phase
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Mode,
    Op,
    Pass,
    Vector,
)

STATE = "pipeline state"
"""What memory calls the microbatches that wait for their turn."""

Ops: TypeAlias = tuple[Op, ...]


def state(plan: Plan, chunk: Lowered) -> Alloc:
    """The inputs of a loop, over which its results are written: each stage has a share of them.

    With several chunks each stage also has the room for all that have come round (`circ_storage`),
    and the results of the trip before.
    """
    waiting = _waiting(plan)
    held = plan.microbatches / plan.stages + waiting + bool(waiting)
    return Alloc("inputs and results", held * chunk.made_bytes, STATE)


def _waiting(plan: Plan) -> int:
    """Microbatches that can wait at the first stage for their next round."""
    waits = plan.virtual_stages > 1 and plan.microbatches > plan.stages
    return plan.microbatches if waits else 0


class Trips:
    """The trips of the forward and of the backward loop."""

    def __init__(self, plan: Plan, chunk: Lowered) -> None:
        self.plan = plan
        self.chunk = chunk
        self.axes: Axes = tuple(axis for axis in STAGE_AXES if plan.mesh.get(axis, 1) > 1)
        self.repeats = _waiting(plan) > 0
        self.early = bool(across(self.axes))

    def cleared(self, phase: Phase) -> Ops:
        """What fills the room for microbatches that come round, or for their gradients."""
        room = Vector(0, _waiting(self.plan) * self.chunk.made_bytes, 0)
        return (self._compute(f"clear_waiting/{phase}", phase, room),) if self.repeats else ()

    def forward(self) -> Ops:
        """The chunk on each stage's microbatch, which is then handed on."""
        at = Phase.FORWARD
        rotation, stream = self._permute("stage_out", at), self._permute("inputs", at)
        repeat, taken, kept = self._repeated("finished", at)
        beside = (stream, *repeat)
        work = (*self._sliced(at), *taken, *self.chunk.ops(Pass.FORWARD))
        if self.early:
            arrived = self._compute("trip_start", at, Vector(0, 0, 0), (rotation,))
            ops: Ops = (rotation, *beside, arrived, *work, *kept)
        else:
            ops = (*beside, *work, rotation, *kept)
        return (*ops, self._end(at, (rotation, *beside)))

    def backward(self) -> Ops:
        """The backward pass of the chunk, whose gradient goes back the way the microbatch came."""
        at = Phase.BACKWARD
        rotation, stream = self._permute("d(stage_in)", at), self._permute("d(inputs)", at)
        repeat, taken, kept = self._repeated("d(finished)", at)
        arrived = self._pass("d(stage_in)/add", at, 2, (rotation,))
        left, added = self._pass("d(inputs)/take", at), self._pass("d(inputs)/add", at)
        first, work = (*self._sliced(at), arrived), self.chunk.ops(Pass.BACKWARD)
        if self.early:
            ops: Ops = (rotation, left, stream, *taken, *repeat, *first, *work, added, *kept)
        else:
            ops = (rotation, *first, left, stream, *work, *taken, *repeat, added, *kept)
        return (*ops, self._end(at, (rotation, stream, *repeat)))

    def _repeated(
        self, what: str, phase: Phase
    ) -> tuple[tuple[Collective, ...], tuple[Compute, ...], tuple[Compute, ...]]:
        """What returns to the first stage: its permute, and the copies from and to its room."""
        if not self.repeats:
            return (), (), ()
        sent = self._permute(what, phase)
        reads = 1 if phase is Phase.FORWARD else 2
        take = self._pass(f"{what}/take", phase)
        return (sent,), (take,), (self._pass(f"{what}/keep", phase, reads, (sent,)),)

    def _sliced(self, phase: Phase) -> tuple[Compute, ...]:
        """The copy of the trip's chunk out of the weights of all chunks of the stage."""
        if self.plan.virtual_stages == 1:
            return ()
        sizes, item = self.chunk.sizes, DTYPE_BYTES[self.plan.dtype]
        nbytes = sum(w.copies * sizes.elements(w.local) * item for w in self.chunk.template.weights)
        copy = self._compute(f"slice_weights/{phase}", phase, Vector(nbytes, nbytes, 0))
        return (replace(copy, allocs=(Alloc(_chunk(phase), nbytes, "weights of a chunk"),)),)

    def _end(self, phase: Phase, sent: tuple[Collective, ...]) -> Compute:
        """The end of the trip waits for all that is under way, and gives its buffers back."""
        end = self._compute(f"trip_end/{phase}", phase, Vector(0, 0, 0), sent)
        sliced = (_chunk(phase),) if self.plan.virtual_stages > 1 else ()
        return replace(end, frees=(*(alloc.tensor for op in sent for alloc in op.allocs), *sliced))

    def _permute(self, what: str, phase: Phase) -> Collective:
        """One stage's microbatch to the next.

        Where the stages are on several slices, all wait for those that send across them.
        """
        chunk, made = self.chunk, self.chunk.part.made
        return Collective(
            name=f"{CollectiveKind.PERMUTE}/{what}", phase=phase, kind=CollectiveKind.PERMUTE,
            axes=across(self.axes) or self.axes, bytes=chunk.made_bytes,
            dtype=chunk.sizes.dtype(made.dtype if made else ""), mode=Mode.ASYNC,
            algorithm=ONWARD, scope=what,
            allocs=(Alloc(f"{what} received", chunk.made_bytes, STATE),),
        )  # fmt: skip

    def _pass(
        self, name: str, phase: Phase, reads: int = 1, after: tuple[Collective, ...] = ()
    ) -> Compute:
        """A copy of a microbatch, or the sum of two."""
        nbytes = self.chunk.made_bytes
        added = (reads - 1) * nbytes / DTYPE_BYTES[self.plan.dtype]
        return self._compute(name, phase, Vector(reads * nbytes, nbytes, added), after)

    def _compute(
        self, name: str, phase: Phase, work: Vector, after: tuple[Collective, ...] = ()
    ) -> Compute:
        deps = tuple(Dep(op.name) for op in after)
        return Compute(name=name, phase=phase, scope=STATE, work=work, deps=deps)


def _chunk(phase: Phase) -> str:
    return f"weights of a chunk/{phase}"

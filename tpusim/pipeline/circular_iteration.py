"""Iterations of a circular pipeline: a chunk of layers, and the transfers between stages.

This is MaxText's scheme (pipeline.py) as the TPU compiler lowers it: 4 stages x fsdp 4 on v6e 4x4,
one chunk and two per stage, the latter with MaxText's flags too, and 2 stages on two slices of v6e
2x2 (libtpu 0.0.42.1). Each of these transfers one microbatch, tensor by tensor:

rotation: results to the next stage, waited for at the end of the iteration. Backward, their
    gradients are waited for at its beginning, beside the copy of the chunk's weights. There they
    are two permutes, of all stages but the last and of the last, which are in flight together and
    have no sender in common: one here.
stream: microbatches that wait for their turn, or are done, move on by a stage beside the compute.
repeats: with several rounds, results return to the first stage, where they wait for their next
    round; beside the compute, but backward only beside the copies at the iteration's end.

Over DCN all of it is sent at the beginning of the next iteration, where the rotation is waited for.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.lowering import ONWARD
from tpusim.partition import DTYPE_BYTES, across_slices
from tpusim.pipeline.segments import LoweredPart, Passed, bytes_of
from tpusim.plan import Axes
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Mode,
    Number,
    Op,
    PassKind,
    VectorWork,
)

STATE = "pipeline state"
"""Memory category of the microbatches that wait for their turn."""

Ops: TypeAlias = tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class CircularShape:
    """The shape of a loop: it has a microbatch per stage, and each comes round so many times.

    rounds: how often a microbatch comes round, each time through other layers.
    """

    stages: int
    microbatches: int
    rounds: int

    @property
    def turns(self) -> int:
        """The iterations of a stage whose results are read."""
        return self.microbatches * self.rounds

    @property
    def waiting(self) -> int:
        """The microbatches that can wait at the first stage for their next round."""
        waits = self.rounds > 1 and self.microbatches > self.stages
        return self.microbatches if waits else 0

    def check(self, virtual_stages: int) -> None:
        """Raise PlanError where a microbatch would come round before its stage has run the others.

        virtual_stages: of the plan.
        """
        if self.rounds > 1 and self.microbatches < self.stages:
            raise PlanError(
                f"plan.microbatches is {self.microbatches}, too few for a circular pipeline of "
                f"{self.stages} stages x {virtual_stages} virtual stages; write at least "
                f"{self.stages}"
            )


def loop_state(shape: CircularShape, chunk: LoweredPart) -> Alloc:
    """Return the inputs of a loop, over which its results are written: a shard on each stage.

    With several rounds each stage also has buffers for all that have returned (`circ_storage`),
    and the results of the iteration before.
    """
    held = shape.microbatches / shape.stages + shape.waiting + bool(shape.waiting)
    return Alloc("inputs and results", held * bytes_of(chunk.made), STATE)


class IterationBuilder:
    """Builder of the iterations of the forward and of the backward loop.

    axes: those of the stages that are larger than one.
    dtype: of activations and of the weights that the chunk reads.
    """

    def __init__(self, chunk: LoweredPart, shape: CircularShape, axes: Axes, dtype: str) -> None:
        self.chunk = chunk
        self.shape = shape
        self.axes = axes
        self.item = DTYPE_BYTES[dtype]
        self.repeats = shape.waiting > 0
        self.early = bool(across_slices(axes))

    def cleared(self, phase: Phase) -> Ops:
        """Return the operation that clears the buffer for returning microbatches."""
        clearing = VectorWork(0, self.shape.waiting * self._nbytes(phase), 0)
        return (self._compute(f"clear_waiting/{phase}", phase, clearing),) if self.repeats else ()

    def forward(self) -> Ops:
        """Return the chunk on each stage's microbatch, which is then sent on."""
        at = Phase.FORWARD
        rotation, stream = self._permute("stage_out", at), self._permute("inputs", at)
        repeat, taken, kept = self._repeated("finished", at)
        beside = (*stream, *repeat)
        work = (*self._sliced(at), *taken, *self.chunk.ops(PassKind.FORWARD))
        if self.early:
            arrived = self._compute("trip_start", at, VectorWork(0, 0, 0), rotation)
            ops: Ops = (*rotation, *beside, arrived, *work, *kept)
        else:
            ops = (*beside, *work, *rotation, *kept)
        return (*ops, self._end(at, (*rotation, *beside)))

    def backward(self) -> Ops:
        """Return the backward pass of the chunk, whose gradient returns along the stages."""
        at = Phase.BACKWARD
        rotation, stream = self._permute("d(stage_in)", at), self._permute("d(inputs)", at)
        repeat, taken, kept = self._repeated("d(finished)", at)
        arrived = self._pass("d(stage_in)/add", at, 2, rotation)
        left, added = self._pass("d(inputs)/take", at), self._pass("d(inputs)/add", at)
        first, work = (*self._sliced(at), arrived), self.chunk.ops(PassKind.BACKWARD)
        if self.early:
            ahead: Ops = (*rotation, left, *stream, *taken, *repeat)
            ops = (*ahead, *first, *work, added, *kept)
        else:
            ops = (*rotation, *first, left, *stream, *work, *taken, *repeat, added, *kept)
        return (*ops, self._end(at, (*rotation, *stream, *repeat)))

    def _repeated(
        self, what: str, phase: Phase
    ) -> tuple[tuple[Collective, ...], tuple[Compute, ...], tuple[Compute, ...]]:
        """Return the permute to the first stage, and the copies from and to its buffer."""
        if not self.repeats:
            return (), (), ()
        sent = self._permute(what, phase)
        reads = 1 if phase is Phase.FORWARD else 2
        take = self._pass(f"{what}/take", phase)
        return sent, (take,), (self._pass(f"{what}/keep", phase, reads, sent),)

    def _sliced(self, phase: Phase) -> tuple[Compute, ...]:
        """Return the copy of the chunk out of the weights of all chunks of the stage."""
        if self.shape.rounds == 1:
            return ()
        sizes = self.chunk.sizes
        nbytes = sum(
            w.copies * sizes.elements(w.local) * self.item for w in self.chunk.partitioned.weights
        )
        copy = self._compute(f"slice_weights/{phase}", phase, VectorWork(nbytes, nbytes, 0))
        return (replace(copy, allocs=(Alloc(_chunk(phase), nbytes, "weights of a chunk"),)),)

    def _end(self, phase: Phase, sent: tuple[Collective, ...]) -> Compute:
        """Return the end of an iteration, which waits for all transfers and frees their buffers."""
        end = self._compute(f"trip_end/{phase}", phase, VectorWork(0, 0, 0), sent)
        sliced = (_chunk(phase),) if self.shape.rounds > 1 else ()
        return replace(end, frees=(*(alloc.tensor for op in sent for alloc in op.allocs), *sliced))

    def _permute(self, what: str, phase: Phase) -> tuple[Collective, ...]:
        """Return the transfers of one stage's microbatch to the next, one for each of its tensors.

        Where the stages are on several slices, all wait for those that send across them.
        """
        return tuple(
            self._transfer(what if place == 0 else f"{what} ({tensor.name})", phase, tensor)
            for place, tensor in enumerate(self._tensors(phase))
        )

    def _tensors(self, phase: Phase) -> tuple[Passed, ...]:
        """Return the tensors of a microbatch; backward, those that have a gradient."""
        return self.chunk.made if phase is Phase.FORWARD else self.chunk.returned

    def _nbytes(self, phase: Phase) -> Number:
        return bytes_of(self._tensors(phase))

    def _transfer(self, what: str, phase: Phase, tensor: Passed) -> Collective:
        return Collective(
            name=f"{CollectiveKind.PERMUTE}/{what}",
            phase=phase,
            kind=CollectiveKind.PERMUTE,
            axes=across_slices(self.axes) or self.axes,
            bytes=tensor.nbytes,
            dtype=tensor.dtype,
            mode=Mode.ASYNC,
            algorithm=ONWARD,
            scope=what,
            allocs=(Alloc(f"{what} received", tensor.nbytes, STATE),),
        )

    def _pass(
        self, name: str, phase: Phase, reads: int = 1, after: tuple[Collective, ...] = ()
    ) -> Compute:
        """Return a copy of a microbatch, or the sum of two."""
        nbytes = self._nbytes(phase)
        added = (reads - 1) * nbytes / self.item
        return self._compute(name, phase, VectorWork(reads * nbytes, nbytes, added), after)

    def _compute(
        self, name: str, phase: Phase, work: VectorWork, after: tuple[Collective, ...] = ()
    ) -> Compute:
        deps = tuple(Dep(op.name) for op in after)
        return Compute(name=name, phase=phase, scope=STATE, work=work, deps=deps)


def _chunk(phase: Phase) -> str:
    return f"weights of a chunk/{phase}"

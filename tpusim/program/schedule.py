"""A pipeline's schedule: which microbatch each stage works on, in which order."""

from dataclasses import dataclass
from enum import StrEnum


class Pass(StrEnum):
    """What a stage does with a microbatch in one slot.

    BACKWARD makes the gradients of its input, and of its weights too unless the schedule has
    WEIGHTS slots, which make those.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


@dataclass(frozen=True, slots=True)
class Slot:
    """One pass of one microbatch through one chunk of a stage's layers.

    chunk: 0, but for interleaved schedules, where a stage has several: chunk c of stage s is the
    `c x stages + s`-th part of the model.
    """

    kind: Pass
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        part = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind}{self.microbatch}{part}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The slots of each stage in order; a slot starts when its operands have arrived.

    chunks: parts of the model that each stage has.
    """

    name: str
    microbatches: int
    chunks: int
    slots: tuple[tuple[Slot, ...], ...]

    @property
    def stages(self) -> int:
        """How many stages it is for."""
        return len(self.slots)

    @property
    def splits(self) -> bool:
        """Whether the gradients of the weights have slots of their own."""
        return any(slot.kind is Pass.WEIGHTS for slots in self.slots for slot in slots)

    def operands(self, stage: int, slot: Slot) -> tuple[tuple[int, Slot], ...]:
        """The (stage, slot)s whose results a slot of a stage needs."""
        part, last = slot.chunk * self.stages + stage, self.chunks * self.stages - 1
        if slot.kind is Pass.WEIGHTS:
            return (self._at(Pass.BACKWARD, slot, part),)
        if slot.kind is Pass.FORWARD:
            return (self._at(Pass.FORWARD, slot, part - 1),) if part else ()
        ahead = (self._at(Pass.BACKWARD, slot, part + 1),) if part < last else ()
        return (self._at(Pass.FORWARD, slot, part), *ahead)

    def _at(self, kind: Pass, slot: Slot, part: int) -> tuple[int, Slot]:
        """A pass of the same microbatch through another part of the model, and its stage."""
        chunk, stage = divmod(part, self.stages)
        return stage, Slot(kind, slot.microbatch, chunk)

    def __str__(self) -> str:
        from tpusim.program.chart import chart

        return chart(self)

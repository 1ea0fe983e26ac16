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

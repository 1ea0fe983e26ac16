"""When each slot of a pipeline's schedule runs, given how long slots and transfers take.

The closed form of a pipeline: a slot starts when its stage is free and its operands are there. No
engine is asked: this draws schedules, and checks the engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tpusim.program.schedule import Pass, Schedule, Slot

Lasts: TypeAlias = Callable[[int, Slot], int]
"""How long something of a slot of a stage takes, in whole units of time."""


class Timed(NamedTuple):
    """A slot of a stage, from one time to another."""

    stage: int
    slot: Slot
    start: int
    end: int


class StuckError(ValueError):
    """A schedule whose slots wait for each other in a circle, or for slots that are not there."""


def unit_times(schedule: Schedule) -> Lasts:
    """A forward pass takes 1, a backward pass 2, or 1 where the weights' gradients, 1, are apart.

    A chunk of several takes as long: one is then a part of the model that is as much shorter.
    """
    backward = 1 if schedule.splits else 2
    return lambda stage, slot: backward if slot.kind is Pass.BACKWARD else 1


def timed(schedule: Schedule, lasts: Lasts, travels: Lasts | None = None) -> tuple[Timed, ...]:
    """Every slot with its times: stage by stage, in the order of its slots.

    lasts: how long a slot of a stage takes. travels: how long its result takes to the stage that
    needs it, where that is another one; nothing if not given. Results for one stage leave another
    one after another, in the order in which they are made.

    Raises StuckError, which names the slots, for a schedule that does not come to its end.
    """
    run = _Run(schedule, lasts, travels or (lambda stage, slot: 0))
    while sum(run.advance(stage) for stage in range(schedule.stages)):
        pass
    stuck = [f"stage {stage} before {slots[len(done)]}"
             for stage, (slots, done) in enumerate(zip(schedule.slots, run.done, strict=True))
             if len(done) < len(slots)]  # fmt: skip
    if stuck:
        raise StuckError(f"schedule {schedule.name!r} comes to a halt: {', '.join(stuck)}")
    return tuple(slot for done in run.done for slot in done)


@dataclass(slots=True)
class _Run:
    """How far each stage has come, and when results are where they are needed."""

    schedule: Schedule
    lasts: Lasts
    travels: Lasts
    done: list[list[Timed]] = field(init=False)
    there: dict[tuple[int, Slot, int], int] = field(default_factory=dict)
    links: dict[tuple[int, int], int] = field(default_factory=dict)
    readers: dict[tuple[int, Slot], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.done = [[] for _ in self.schedule.slots]
        for stage, slots in enumerate(self.schedule.slots):
            for slot in slots:
                for operand in self.schedule.operands(stage, slot):
                    self.readers.setdefault(operand, []).append(stage)

    def advance(self, stage: int) -> bool:
        """Run the slots of a stage up to the first that cannot start; whether any ran."""
        slots, done = self.schedule.slots[stage], self.done[stage]
        before = len(done)
        for slot in slots[before:]:
            needs = [(*need, stage) for need in self.schedule.operands(stage, slot)]
            if not all(need in self.there for need in needs):
                break
            free = done[-1].end if done else 0
            start = max([free, *(self.there[need] for need in needs)])
            done.append(Timed(stage, slot, start, start + self.lasts(stage, slot)))
            self._pass_on(done[-1])
        return len(done) > before

    def _pass_on(self, made: Timed) -> None:
        stage, slot = made.stage, made.slot
        self.there[stage, slot, stage] = made.end
        for reader in self.readers.get((stage, slot), ()):
            if reader != stage:
                leaves = max(made.end, self.links.get((stage, reader), 0))
                arrives = leaves + self.travels(stage, slot)
                self.links[stage, reader] = self.there[stage, slot, reader] = arrives


def peak_alive(schedule: Schedule) -> tuple[int, ...]:
    """The most (microbatch, chunk)s of each stage between their first slot and their last.

    So many times the activations of one microbatch through one chunk are held.
    """
    return tuple(_peak(slots) for slots in schedule.slots)


def _peak(slots: tuple[Slot, ...]) -> int:
    last = {(slot.microbatch, slot.chunk): at for at, slot in enumerate(slots)}
    alive = top = 0
    for at, slot in enumerate(slots):
        alive += slot.kind is Pass.FORWARD
        top = max(top, alive)
        alive -= last[slot.microbatch, slot.chunk] == at
    return top

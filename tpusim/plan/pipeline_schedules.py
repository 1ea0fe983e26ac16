"""Schedules of pipelines by name: the order in which each stage works on its microbatches."""

from collections.abc import Callable
from dataclasses import dataclass

from tpusim.base.errors import PlanError, nearest
from tpusim.program.pipeline_schedule import PassKind, Schedule, Slot


def gpipe(microbatches: int) -> tuple[Slot, ...]:
    """Return all forward passes, then all backward passes, the last microbatch first.

    Huang et al., GPipe, arXiv:1811.06965, figure 2c.
    """
    forward = [Slot(PassKind.FORWARD, number) for number in range(microbatches)]
    backward = [Slot(PassKind.BACKWARD, number) for number in reversed(range(microbatches))]
    return (*forward, *backward)


def one_f_one_b(stage: int, stages: int, microbatches: int) -> tuple[Slot, ...]:
    """Return as many forward passes as there are later stages, then one of each in turn.

    PipeDream-flush: Narayanan et al., arXiv:2104.04473, section 2.2.1, figure 4 (top).
    """
    forward = [Slot(PassKind.FORWARD, number) for number in range(microbatches)]
    backward = [Slot(PassKind.BACKWARD, number) for number in range(microbatches)]
    return in_turn(forward, backward, stages - 1 - stage)


def in_turn(forward: list[Slot], backward: list[Slot], ahead: int) -> tuple[Slot, ...]:
    """Return `ahead` forward slots, then a forward and a backward one in turn, then the rest."""
    ahead = min(ahead, len(forward))
    pairs = zip(forward[ahead:], backward, strict=False)
    steady = [slot for pair in pairs for slot in pair]
    return (*forward[:ahead], *steady, *backward[len(forward) - ahead :])


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Slot, ...]:
    """Return 1F1B over chunks: rounds of as many microbatches as stages, chunk after chunk.

    Narayanan et al., arXiv:2104.04473, section 2.2.2, figure 4 (bottom). So that the first backward
    pass finds its gradient, a stage runs ahead by two slots for each later stage and by a round of
    all stages for each further chunk.
    """
    forward = [
        _slot(PassKind.FORWARD, number, stages, chunks) for number in range(microbatches * chunks)
    ]
    backward = [
        _slot(PassKind.BACKWARD, number, stages, chunks) for number in range(microbatches * chunks)
    ]
    return in_turn(forward, backward, 2 * (stages - 1 - stage) + (chunks - 1) * stages)


def _slot(kind: PassKind, number: int, stages: int, chunks: int) -> Slot:
    """Return the `number`-th slot of a kind: rounds of `stages` microbatches through all chunks."""
    turn, at = divmod(number, stages * chunks)
    chunk, place = divmod(at, stages)
    if kind is PassKind.BACKWARD:
        chunk = chunks - 1 - chunk
    return Slot(kind, turn * stages + place, chunk)


def zb_h1(stage: int, stages: int, microbatches: int) -> tuple[Slot, ...]:
    """Return 1F1B whose stage s delays its W's by s microbatches (section 2.3, figure 2).

    Zero-bubble schedules (Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241) split a
    backward pass into B, the gradient of the input, which the previous stage waits for, and W,
    those of the weights, for which no stage waits. The later a stage, the longer it delays its W's,
    so that its B's follow one another sooner and the W's fill what would be bubbles. No stage holds
    more microbatches than the first one of 1F1B.
    """
    return _split(microbatches, ahead=stages - stage, late=stage)


def zb_h2(stage: int, stages: int, microbatches: int) -> tuple[Slot, ...]:
    """Return more forward passes ahead, and W's delayed by two microbatches per stage (figure 3).

    Each stage holds up to 2p - 1 microbatches. The stages then begin and end one after another, so
    nothing may make them wait for each other at the end of a step: the optimizer of each runs when
    the stage is done, and the norm of the gradients is checked afterwards (section 4).
    """
    return _split(microbatches, ahead=2 * (stages - stage) - 1, late=2 * stage)


def _split(microbatches: int, ahead: int, late: int) -> tuple[Slot, ...]:
    """Return `ahead` forward slots, then B, W and F in turn, with `late` B's before the first W."""
    slots = [Slot(PassKind.FORWARD, number) for number in range(min(ahead, microbatches))]
    for number in range(microbatches):
        slots.append(Slot(PassKind.BACKWARD, number))
        if number >= late:
            slots.append(Slot(PassKind.WEIGHTS, number - late))
        if number + ahead < microbatches:
            slots.append(Slot(PassKind.FORWARD, number + ahead))
    first = max(0, microbatches - late)
    return (*slots, *(Slot(PassKind.WEIGHTS, number) for number in range(first, microbatches)))


@dataclass(frozen=True, slots=True)
class _ScheduleKind:
    """A kind of schedule.

    order: the slots of a stage, given stage, stages, microbatches and chunks.
    least: the fewest microbatches for so many stages.
    chunked: stages may have several chunks.
    """

    order: Callable[[int, int, int, int], tuple[Slot, ...]]
    least: Callable[[int], int] = lambda stages: 1
    chunked: bool = False


SLOT_SCHEDULES: dict[str, _ScheduleKind] = {
    "gpipe": _ScheduleKind(lambda s, p, m, v: gpipe(m)),
    "1f1b": _ScheduleKind(lambda s, p, m, v: one_f_one_b(s, p, m)),
    "interleaved": _ScheduleKind(interleaved, chunked=True),
    "zb-h1": _ScheduleKind(lambda s, p, m, v: zb_h1(s, p, m), least=lambda stages: stages),
    "zb-h2": _ScheduleKind(lambda s, p, m, v: zb_h2(s, p, m), least=lambda stages: 2 * stages - 1),
}


def make_schedule(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of a name.

    stages: stages of the pipeline.
    microbatches: microbatches per step.
    chunks: parts of the model that each stage has, more than one for `interleaved` alone.

    Raise PlanError for an unknown name, and for numbers that the schedule does not admit.
    """
    kind = SLOT_SCHEDULES.get(name)
    if kind is None:
        raise PlanError(
            f"schedule={name!r} is no schedule of a pipeline; {nearest(name, SLOT_SCHEDULES)}"
        )
    _check(name, kind, stages, microbatches, chunks)
    slots = (kind.order(stage, stages, microbatches, chunks) for stage in range(stages))
    return Schedule(name, microbatches, chunks, tuple(slots))


def _check(name: str, kind: _ScheduleKind, stages: int, microbatches: int, chunks: int) -> None:
    for what, number in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise PlanError(f"a pipeline cannot have {number} {what}; give at least 1")
    if kind.chunked and microbatches % stages:
        raise PlanError(
            f"plan.microbatches is {microbatches}, but the schedule {name} takes them in rounds of "
            f"as many as there are stages; write a multiple of {stages}"
        )
    if microbatches < kind.least(stages):
        raise PlanError(
            f"plan.microbatches is {microbatches}, too few for the schedule {name} to fill "
            f"{stages} stages; write at least {kind.least(stages)}, or schedule = '1f1b'"
        )
    if chunks > 1 and not kind.chunked:
        raise PlanError(
            f"schedule={name!r} has one chunk per stage, not {chunks}; "
            'take schedule="interleaved", or one virtual stage'
        )

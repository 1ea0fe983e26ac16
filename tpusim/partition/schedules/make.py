"""A schedule from its name, and the sentences for those that cannot be."""

from collections.abc import Callable
from dataclasses import dataclass

from tpusim.errors import PlanError, nearest
from tpusim.partition.schedules.interleaved import interleaved
from tpusim.partition.schedules.plain import gpipe, one_f_one_b
from tpusim.partition.schedules.zero_bubble import zb_h1, zb_h2
from tpusim.program.schedule import Schedule, Slot


@dataclass(frozen=True, slots=True)
class _Kind:
    """order: the slots of a stage, given stage, stages, microbatches and chunks.

    least: the fewest microbatches of so many stages. chunked: whether stages have several chunks.
    """

    order: Callable[[int, int, int, int], tuple[Slot, ...]]
    least: Callable[[int], int] = lambda stages: 1
    chunked: bool = False


SCHEDULES: dict[str, _Kind] = {
    "gpipe": _Kind(lambda s, p, m, v: gpipe(m)),
    "1f1b": _Kind(lambda s, p, m, v: one_f_one_b(s, p, m)),
    "interleaved": _Kind(interleaved, chunked=True),
    "zb-h1": _Kind(lambda s, p, m, v: zb_h1(s, p, m), least=lambda stages: stages),
    "zb-h2": _Kind(lambda s, p, m, v: zb_h2(s, p, m), least=lambda stages: 2 * stages - 1),
}


def make(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """The schedule `name` of so many stages and microbatches a step.

    chunks: parts of the model that each stage has, more than one for `interleaved` alone.

    Raises PlanError for an unknown name, and for numbers that the schedule does not admit.
    """
    kind = SCHEDULES.get(name)
    if kind is None:
        raise PlanError(
            f"schedule={name!r} is no schedule of a pipeline; {nearest(name, SCHEDULES)}"
        )
    _check(name, kind, stages, microbatches, chunks)
    slots = (kind.order(stage, stages, microbatches, chunks) for stage in range(stages))
    return Schedule(name, microbatches, chunks, tuple(slots))


def _check(name: str, kind: _Kind, stages: int, microbatches: int, chunks: int) -> None:
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
            f"schedule={name!r} has one chunk a stage, not {chunks}; "
            'take schedule="interleaved", or one virtual stage'
        )

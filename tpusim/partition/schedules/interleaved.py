"""The interleaved schedule: several parts of the model on each stage."""

from tpusim.partition.schedules.plain import in_turn
from tpusim.program.schedule import Pass, Slot


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Slot, ...]:
    """1F1B over chunks: as many microbatches as stages through one chunk, then through the next.

    Narayanan et al., arXiv:2104.04473, section 2.2.2, figure 4 (bottom). So that the first backward
    pass finds its gradient there, a stage runs ahead by two slots for each stage behind it and by
    a round of all stages for each further chunk.
    """
    forward = [
        _slot(Pass.FORWARD, number, stages, chunks) for number in range(microbatches * chunks)
    ]
    backward = [
        _slot(Pass.BACKWARD, number, stages, chunks) for number in range(microbatches * chunks)
    ]
    return in_turn(forward, backward, 2 * (stages - 1 - stage) + (chunks - 1) * stages)


def _slot(kind: Pass, number: int, stages: int, chunks: int) -> Slot:
    """The `number`-th slot of a kind: rounds of `stages` microbatches through all chunks."""
    turn, at = divmod(number, stages * chunks)
    chunk, place = divmod(at, stages)
    if kind is Pass.BACKWARD:
        chunk = chunks - 1 - chunk
    return Slot(kind, turn * stages + place, chunk)

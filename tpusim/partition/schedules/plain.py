"""Schedules whose stages each have one part of the model, and a backward pass that is one slot."""

from tpusim.program.schedule import Pass, Slot


def gpipe(microbatches: int) -> tuple[Slot, ...]:
    """All forward passes, then all backward passes, the last microbatch first.

    Huang et al., GPipe, arXiv:1811.06965, figure 2c.
    """
    forward = [Slot(Pass.FORWARD, number) for number in range(microbatches)]
    backward = [Slot(Pass.BACKWARD, number) for number in reversed(range(microbatches))]
    return (*forward, *backward)


def one_f_one_b(stage: int, stages: int, microbatches: int) -> tuple[Slot, ...]:
    """As many forward passes as there are stages behind, then one of each in turn.

    PipeDream-flush: Narayanan et al., arXiv:2104.04473, section 2.2.1, figure 4 (top).
    """
    forward = [Slot(Pass.FORWARD, number) for number in range(microbatches)]
    backward = [Slot(Pass.BACKWARD, number) for number in range(microbatches)]
    return in_turn(forward, backward, stages - 1 - stage)


def in_turn(forward: list[Slot], backward: list[Slot], ahead: int) -> tuple[Slot, ...]:
    """The first `ahead` forward slots, then a forward and a backward one in turn, then the rest."""
    ahead = min(ahead, len(forward))
    pairs = zip(forward[ahead:], backward, strict=False)
    steady = [slot for pair in pairs for slot in pair]
    return (*forward[:ahead], *steady, *backward[len(forward) - ahead :])

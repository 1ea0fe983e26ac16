"""Zero-bubble schedules: the gradients of the weights fill what would be bubbles.

Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241. A backward pass is split into B, the
gradient of the input, which the stage before waits for, and W, those of the weights, which nobody
waits for. A stage puts off its W's by a few microbatches, the more the later it stands, so that
its B's follow one another sooner.
"""

from tpusim.program.schedule import Pass, Slot


def zb_h1(stage: int, stages: int, microbatches: int) -> tuple[Slot, ...]:
    """1F1B whose stage s puts off its W's by s microbatches (section 2.3, figure 2).

    No stage holds more microbatches than the first one of 1F1B.
    """
    return _split(microbatches, ahead=stages - stage, late=stage)


def zb_h2(stage: int, stages: int, microbatches: int) -> tuple[Slot, ...]:
    """More forward passes ahead, and W's put off by two microbatches a stage (figure 3).

    Each stage holds up to 2p - 1 microbatches. The stages then begin and end one after another, so
    nothing may make them wait for each other at the end of a step: the optimizer of each runs when
    the stage is done, and the norm of the gradients is checked afterwards (section 4).
    """
    return _split(microbatches, ahead=2 * (stages - stage) - 1, late=2 * stage)


def _split(microbatches: int, ahead: int, late: int) -> tuple[Slot, ...]:
    """`ahead` forward slots, then B, W and F in turn, with `late` B's before the first W."""
    slots = [Slot(Pass.FORWARD, number) for number in range(min(ahead, microbatches))]
    for number in range(microbatches):
        slots.append(Slot(Pass.BACKWARD, number))
        if number >= late:
            slots.append(Slot(Pass.WEIGHTS, number - late))
        if number + ahead < microbatches:
            slots.append(Slot(Pass.FORWARD, number + ahead))
    first = max(0, microbatches - late)
    return (*slots, *(Slot(Pass.WEIGHTS, number) for number in range(first, microbatches)))

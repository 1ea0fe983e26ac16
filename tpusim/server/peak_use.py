"""How much of its limits a server asks for: with larger limits it does the same."""

from dataclasses import dataclass


@dataclass(slots=True)
class PeakUse:
    """The most that a rank asks of each limit of its policy.

    A limit above this number is never reached, so a server with another limit above it does the
    same at the same times, if its steps take as long.

    sequences: that run at a time.
    tokens: of the prompts and the decoding sequences in a step, were there no limit.
    pages: that are taken, with those that a sequence asks for.
    """

    sequences: int = 0
    tokens: int = 0
    pages: int = 0

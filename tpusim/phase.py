"""The parts of a training step: one word list for graphs, programs and results."""

from enum import StrEnum


class Phase(StrEnum):
    """The part of the training step that an operation belongs to."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"

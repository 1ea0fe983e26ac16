"""The phases of a training step, shared by graphs, programs and results."""

from enum import StrEnum


class Phase(StrEnum):
    """The phase of the training step that an operation belongs to."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"

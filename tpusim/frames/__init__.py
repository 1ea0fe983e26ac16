"""Frames: what a step has around the bodies that the lowering makes."""

from tpusim.frames.accumulate import MICROBATCHES, accumulator, addition, zeros
from tpusim.frames.body_frame import cast_weights, infeed, sizes_of, stored_weights
from tpusim.frames.forward_frame import ForwardFrame
from tpusim.frames.optimizer import Updates, trained
from tpusim.frames.training_frame import (
    TrainingFrame,
    asked_place,
    choices_of,
    updates_of,
)

__all__ = [
    "MICROBATCHES",
    "ForwardFrame",
    "TrainingFrame",
    "Updates",
    "accumulator",
    "addition",
    "asked_place",
    "cast_weights",
    "choices_of",
    "infeed",
    "sizes_of",
    "stored_weights",
    "trained",
    "updates_of",
    "zeros",
]

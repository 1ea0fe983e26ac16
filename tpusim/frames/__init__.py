"""Frames: what a step has around the bodies that the lowering makes."""

from tpusim.frames.accumulate import MICROBATCHES, accumulator, addition, zeros
from tpusim.frames.body_frame import infeed, sizes_of, stored_weights
from tpusim.frames.optimizer import Updates, trained
from tpusim.frames.training_frame import TrainingFrame, choices_of, updates_of

__all__ = [
    "MICROBATCHES",
    "TrainingFrame",
    "Updates",
    "accumulator",
    "addition",
    "choices_of",
    "infeed",
    "sizes_of",
    "stored_weights",
    "trained",
    "updates_of",
    "zeros",
]

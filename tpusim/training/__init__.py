"""A training run around a step: start-up, compilation, evaluations, checkpoints, time and cost."""

from tpusim.training.checkpoint import CheckpointCost, checkpoint_cost
from tpusim.training.compile_time import compile_seconds, program_size
from tpusim.training.result import BUCKETS, Estimate, TrainingResult, duration
from tpusim.training.run import Checkpoints, Evaluations, TrainingRun, steps_of
from tpusim.training.train import train, train_step, wall_seconds

__all__ = [
    "BUCKETS",
    "CheckpointCost",
    "Checkpoints",
    "Estimate",
    "Evaluations",
    "TrainingResult",
    "TrainingRun",
    "checkpoint_cost",
    "compile_seconds",
    "duration",
    "program_size",
    "steps_of",
    "train",
    "train_step",
    "wall_seconds",
]

"""A training run around a step: start-up, compilation, evaluations, checkpoints, time and cost."""

from tpusim.training.checkpoint import CheckpointCost as CheckpointCost
from tpusim.training.checkpoint import checkpoint_cost as checkpoint_cost
from tpusim.training.compile_time import compile_seconds as compile_seconds
from tpusim.training.compile_time import program_size as program_size
from tpusim.training.durations import duration as duration
from tpusim.training.failure_advice import RunAdvice as RunAdvice
from tpusim.training.failure_advice import failure_advice as failure_advice
from tpusim.training.failure_setup import run_setup as run_setup
from tpusim.training.failure_survey import FailureSurvey as FailureSurvey
from tpusim.training.result import BUCKETS as BUCKETS
from tpusim.training.result import Estimate as Estimate
from tpusim.training.result import TrainingResult as TrainingResult
from tpusim.training.run import Checkpoints as Checkpoints
from tpusim.training.run import Evaluations as Evaluations
from tpusim.training.run import TrainingRun as TrainingRun
from tpusim.training.run import steps_of as steps_of
from tpusim.training.straggler_survey import StragglerSurvey as StragglerSurvey
from tpusim.training.stragglers import HostPauses as HostPauses
from tpusim.training.stragglers import SlowChips as SlowChips
from tpusim.training.stragglers import Stragglers as Stragglers
from tpusim.training.stragglers import UnevenSlices as UnevenSlices
from tpusim.training.train import train as train
from tpusim.training.train import train_step as train_step
from tpusim.training.train import wall_seconds as wall_seconds

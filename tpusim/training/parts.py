"""The seconds of each part of a training run, with their ranges."""

from dataclasses import dataclass
from math import ceil

from tpusim.engine.clock import picoseconds
from tpusim.engine.training_loop import Activity, LoopTimes
from tpusim.results import PlanResult
from tpusim.training.checkpoint import (
    HOST_WRITE,
    HOST_WRITE_RANGE,
    CheckpointCost,
    checkpoint_cost,
    stop_and_write,
)
from tpusim.training.compile_time import SPREAD, compile_seconds
from tpusim.training.run import TrainingRun
from tpusim.training.slow_steps import straggler_factor

INITIALIZATION_S, INITIALIZATION_RANGE = 60.0, (20.0, 400.0)
"""Seconds until the devices are there. Assumed, between what logs have with compilation, 58 s
(512 v5p chips) and 398 s (8 v5p chips; MLPerf Training v4.1), and MLPerf v0.7's 100 to 672 s."""

WARM_UP_S, WARM_UP_RANGE = 0.6, (0.0, 6.0)
"""Seconds by which the first block of steps is longer than the others: the median and the ends of
six logs of MLPerf Training v0.7 (BERT 3.1, 0.05, 0.5; ResNet-50 0.6; SSD 0.8; GNMT 6.0)."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The seconds of each part of a run."""

    initialization_s: float
    compile_s: float
    warm_up_s: float
    step_s: float
    evaluation_s: float
    checkpoint: CheckpointCost | None


def run_parts(step: PlanResult, run: TrainingRun) -> tuple[Parts, Parts, Parts]:
    """Return the parts of a run as predicted, at their shortest, and at their longest."""
    compiled = compile_seconds(step) if run.compile_s is None else run.compile_s
    spread = SPREAD if run.compile_s is None else (1.0, 1.0)
    start = _chosen(run.initialization_s, INITIALIZATION_S, INITIALIZATION_RANGE)
    warm = _chosen(run.warm_up_s, WARM_UP_S, WARM_UP_RANGE)
    predicted = ideal_step_s(step, run)
    predicted *= straggler_factor(step, run.stragglers, predicted)
    ends = None if run.step_time_s is not None else step.error_range
    steps = (1.0, 1.0) if ends is None else (ends.low, ends.high)
    saves = run.checkpoints

    def made(end: int) -> Parts:
        factor = (1.0, *steps)[end]
        host = (HOST_WRITE, HOST_WRITE_RANGE[1], HOST_WRITE_RANGE[0])[end]
        return Parts(
            initialization_s=start[end],
            compile_s=compiled * (1.0, *spread)[end],
            warm_up_s=warm[end],
            step_s=predicted * factor,
            evaluation_s=_evaluation_s(step, run, predicted * factor),
            checkpoint=None if saves is None else checkpoint_cost(step, saves, host),
        )

    return made(0), made(1), made(2)


def ideal_step_s(step: PlanResult, run: TrainingRun) -> float:
    """Return the predicted seconds of a step without stragglers."""
    return step.step_time_s if run.step_time_s is None else run.step_time_s


def _chosen(
    given: float | None, value: float, ends: tuple[float, float]
) -> tuple[float, float, float]:
    """Return a part's seconds, its shortest and its longest; what is given has no range."""
    return (value, *ends) if given is None else (given, given, given)


def _evaluation_s(step: PlanResult, run: TrainingRun, step_s: float) -> float:
    """Return the seconds of an evaluation: the step's forward pass, as often as examples ask."""
    asked = run.evaluations
    if asked is None:
        return 0.0
    if asked.examples is None:
        assert asked.time_s is not None
        return asked.time_s
    forward = step.phases_s["forward"] / step.step_time_s * step_s
    return ceil(asked.examples / step.plan.global_batch) * forward


def loop_times(parts: Parts, run: TrainingRun, steps: int) -> LoopTimes:
    """Return the times of a run of so many steps, in picoseconds."""
    saves, evaluations = run.checkpoints, run.evaluations
    stop, write = (0.0, 0.0)
    copy_every, copy, exchange = 0, 0.0, 0.0
    if saves is not None and parts.checkpoint is not None:
        stop, write = stop_and_write(parts.checkpoint, saves)
        copy_every = saves.memory_every or 0
        copy, exchange = parts.checkpoint.copy_s, parts.checkpoint.exchange_s * saves.peers
    before = (
        (Activity.INITIALIZATION, parts.initialization_s),
        (Activity.PREPARATION, run.preparation_s),
        (Activity.COMPILATION, parts.compile_s),
        (Activity.WARM_UP, parts.warm_up_s),
    )
    return LoopTimes(
        before=tuple((activity, picoseconds(length)) for activity, length in before),
        steps=steps,
        step_ps=picoseconds(parts.step_s),
        evaluate_every=0 if evaluations is None else evaluations.every,
        evaluation_ps=picoseconds(parts.evaluation_s),
        save_every=0 if saves is None else saves.every,
        stop_ps=picoseconds(stop),
        write_ps=picoseconds(write),
        copy_every=copy_every,
        copy_ps=picoseconds(copy),
        exchange_ps=picoseconds(exchange),
    )

"""The front door of training runs: a step is simulated, and then the run around it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.costs import INPUT
from tpusim.engine.clock import picoseconds
from tpusim.engine.training_loop import Activity, LoopTimes, TrainingTimeline, run_training
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input, Plan
from tpusim.results import EXPOSED, PICO, PlanResult
from tpusim.simulation import simulate
from tpusim.simulation.arguments import check_arguments
from tpusim.training.checkpoint import (
    HOST_WRITE,
    HOST_WRITE_RANGE,
    CheckpointCost,
    checkpoint_cost,
    stop_and_write,
)
from tpusim.training.compile_time import SPREAD, compile_seconds
from tpusim.training.result import (
    BUCKETS,
    GOODPUT,
    GRID,
    GRID_RANGE,
    PUE,
    Estimate,
    TrainingResult,
)
from tpusim.training.run import TrainingRun

INITIALIZATION_S, INITIALIZATION_RANGE = 60.0, (20.0, 400.0)
"""Seconds until the devices are there. Assumed, between what logs have with compilation, 58 s
(512 v5p chips) and 398 s (8 v5p chips; MLPerf Training v4.1), and MLPerf v0.7's 100 to 672 s."""

WARM_UP_S, WARM_UP_RANGE = 0.6, (0.0, 6.0)
"""Seconds by which the first block of steps is longer than the others: the median and the ends of
six logs of MLPerf Training v0.7 (BERT 3.1, 0.05, 0.5; ResNet-50 0.6; SSD 0.8; GNMT 6.0)."""

DATA_LOADING = "DATA_LOADING_SYNC"

MOST_EVENTS = 1_000_000
"""Evaluations, and checkpoints, that a run may have: those that do not repeat take 10 us each."""


@checked_call
def train(
    model: Architecture, plan: Plan, pod: Slice, run: TrainingRun, *, input: Input | None = None
) -> TrainingResult:
    """Simulate a training run: start-up, compilation, steps, evaluations and checkpoints.

    The step is simulated once (`simulate`), and the run around it event by event. Its range runs
    from all parts at their shortest to all at their longest. `input` is the input pipeline of the
    hosts; None for batches that are there when a step begins. A plan that does not fit in HBM is a
    result, with a note. Raise PlanError as `simulate`, and for checkpoints that the storage cannot
    hold.
    """
    model, plan, pod = check_arguments(model, plan, pod, "train")
    _check_run(run)
    return train_step(simulate(model, plan, pod, input=input), run)


def train_step(step: PlanResult, run: TrainingRun) -> TrainingResult:
    """Return the training run around a simulated step; otherwise as `train`."""
    _check_run(run)
    parts = _parts(step, run)
    steps = run.steps_of(step.plan)
    _check_events(run, steps)
    timelines = [run_training(_times(each, run, steps)) for each in parts]
    spent = [_buckets(timeline, step) for timeline in timelines]
    buckets = {name: Estimate(*(each[name] for each in spent)) for name in BUCKETS}
    return TrainingResult(
        step=step,
        run=run,
        steps=steps,
        step_time_s=parts[0].step_s,
        timeline=timelines[0],
        buckets=buckets,
        wall_s=Estimate(*(timeline.total_ps * PICO for timeline in timelines)),
        checkpoint=parts[0].checkpoint,
        notes=tuple(_notes(step, run)),
    )


def _check_run(run: object) -> None:
    if not isinstance(run, TrainingRun):
        raise PlanError(
            f"run is {shown(run)}; give a ts.TrainingRun, such as TrainingRun(tokens=1e12)"
        )


def wall_seconds(step: PlanResult, run: TrainingRun) -> float:
    """Return the predicted seconds of the training run around a step, without their range."""
    steps = run.steps_of(step.plan)
    _check_events(run, steps)
    predicted, _, _ = _parts(step, run)
    return run_training(_times(predicted, run, steps)).total_ps * PICO


def _check_events(run: TrainingRun, steps: int) -> None:
    """Raise PlanError for a run with too many evaluations or checkpoints to simulate each."""
    for name, part in (("evaluations", run.evaluations), ("checkpoints", run.checkpoints)):
        if part is not None and steps // part.every > MOST_EVENTS:
            raise PlanError(
                f"train.{name}.every is {part.every}, which makes {steps // part.every:,} {name} "
                f"in {steps:,} steps; write at least {-(-steps // MOST_EVENTS):,}"
            )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The seconds of each part of a run."""

    initialization_s: float
    compile_s: float
    warm_up_s: float
    step_s: float
    evaluation_s: float
    checkpoint: CheckpointCost | None


def _parts(step: PlanResult, run: TrainingRun) -> tuple[_Parts, _Parts, _Parts]:
    """Return the parts of a run as predicted, at their shortest, and at their longest."""
    compiled = compile_seconds(step) if run.compile_s is None else run.compile_s
    spread = SPREAD if run.compile_s is None else (1.0, 1.0)
    start = _chosen(run.initialization_s, INITIALIZATION_S, INITIALIZATION_RANGE)
    warm = _chosen(run.warm_up_s, WARM_UP_S, WARM_UP_RANGE)
    predicted = step.step_time_s if run.step_time_s is None else run.step_time_s
    ends = None if run.step_time_s is not None else step.error_range
    steps = (1.0, 1.0) if ends is None else (ends.low, ends.high)
    saves = run.checkpoints

    def made(end: int) -> _Parts:
        factor = (1.0, *steps)[end]
        host = (HOST_WRITE, HOST_WRITE_RANGE[1], HOST_WRITE_RANGE[0])[end]
        return _Parts(
            initialization_s=start[end],
            compile_s=compiled * (1.0, *spread)[end],
            warm_up_s=warm[end],
            step_s=predicted * factor,
            evaluation_s=_evaluation_s(step, run, predicted * factor),
            checkpoint=None if saves is None else checkpoint_cost(step, saves, host),
        )

    return made(0), made(1), made(2)


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


def _times(parts: _Parts, run: TrainingRun, steps: int) -> LoopTimes:
    saves, evaluations = run.checkpoints, run.evaluations
    stop, write = (0.0, 0.0)
    if saves is not None and parts.checkpoint is not None:
        stop, write = stop_and_write(parts.checkpoint, saves)
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
    )


def _buckets(timeline: TrainingTimeline, step: PlanResult) -> dict[str, float]:
    """Return the wall seconds by bucket; waits for input are taken from those of the steps."""
    spent = timeline.spent_ps
    found = {
        name: sum(spent.get(activity, 0) for activity in activities) * PICO
        for name, activities in BUCKETS.items()
    }
    waits = step.breakdown_s.get(f"{EXPOSED}{INPUT}", 0.0) / step.step_time_s
    found[DATA_LOADING] = found[GOODPUT] * waits
    found[GOODPUT] -= found[DATA_LOADING]
    return found


def _notes(step: PlanResult, run: TrainingRun) -> list[str]:
    """Return what was assumed."""
    notes = []
    if not step.fits:
        notes.append("the step does not fit in HBM, so this run cannot be; see its simulation")
    if run.initialization_s is None:
        low, high = INITIALIZATION_RANGE
        notes.append(
            f"initialisation is assumed as {INITIALIZATION_S:g} s ({low:g} to {high:g}); write "
            "train.initialization_s"
        )
    if run.compile_s is None:
        low, high = SPREAD
        notes.append(
            f"compilation is taken as {compile_seconds(step):.0f} s, from the size of the program "
            f"(times {low:g} to {high:g}); write train.compile_s, 0 with a compilation cache"
        )
        notes += step.pod.chip.unsaid("its programs are taken to compile as fast as those for v4")
    if run.step_time_s is None and step.error_range is None:
        notes.append("no measured run is like this step, so the wall time has no range of it")
    if run.checkpoints is not None and run.checkpoints.time_s is None:
        if run.checkpoints.host is None:
            low, high = HOST_WRITE_RANGE
            notes.append(
                f"a host is assumed to write {HOST_WRITE / 1e9:g} GB/s ({low / 1e9:g} to "
                f"{high / 1e9:g}); write train.checkpoints.host"
            )
        if run.checkpoints.storage is None:
            notes.append("the storage is taken to be no limit; write train.checkpoints.storage")
    notes += _rates(step, run)
    notes.append(
        "PROGRAM_STARTUP is compilation and the excess of the first steps"
        + ", CUSTOM_BADPUT_EVENTS the evaluations" * (run.evaluations is not None)
    )
    notes.append("no failure, restart or wait for a slice is simulated")
    return notes


def _rates(step: PlanResult, run: TrainingRun) -> Iterator[str]:
    """Yield the price and the grid that were taken."""
    chip = step.pod.chip
    if run.price is None and chip.price is not None:
        yield (
            f"a chip is taken at {chip.price:g} USD an hour, its list price on demand; write "
            "train.price"
        )
    if run.grid is None and chip.power is not None:
        low, high = GRID_RANGE
        yield (
            f"CO2 is that of {PUE:g} times the energy of the chips at {GRID:g} g/kWh, the mean of "
            f"the world ({low:g} to {high:g}); write train.grid"
        )

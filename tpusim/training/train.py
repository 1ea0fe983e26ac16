"""The front door of training runs: a step is simulated, and then the run around it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.costs import INPUT
from tpusim.engine.training_loop import Activity, TrainingTimeline, run_training
from tpusim.failures import Failures
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input, Plan
from tpusim.results import EXPOSED, PICO, PlanResult
from tpusim.simulation import simulate
from tpusim.simulation.arguments import check_arguments
from tpusim.training.checkpoint import HOST_WRITE, HOST_WRITE_RANGE
from tpusim.training.compile_time import SPREAD, compile_seconds
from tpusim.training.failure_notes import failure_notes
from tpusim.training.failure_setup import FailureSetup, broken_slowdown, failure_setup
from tpusim.training.failure_survey import survey
from tpusim.training.parts import (
    INITIALIZATION_RANGE,
    INITIALIZATION_S,
    Parts,
    ideal_step_s,
    loop_times,
    run_parts,
)
from tpusim.training.result import (
    BUCKETS,
    FAILURE_BUCKETS,
    GOODPUT,
    GRID,
    GRID_RANGE,
    PUE,
    Estimate,
    TrainingResult,
)
from tpusim.training.run import TrainingRun
from tpusim.training.straggler_notes import straggler_notes
from tpusim.training.straggler_survey import StragglerSurvey, survey_stragglers

DATA_LOADING = "DATA_LOADING_SYNC"

END_RUNS = 100
"""Random runs at either end of the range, at most."""

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
    parts = run_parts(step, run)
    steps = run.steps_of(step.plan)
    _check_events(run, steps)
    timelines = [run_training(loop_times(each, run, steps)) for each in parts]
    if run.failures is not None:
        return _with_failures(step, run, run.failures, parts, timelines[0])
    spent = [_buckets(timeline.spent_ps, step) for timeline in timelines]
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
        stragglers=_stragglers(step, run, steps),
        notes=tuple(_notes(step, run)),
    )


def _with_failures(
    step: PlanResult,
    run: TrainingRun,
    asked: Failures,
    parts: Sequence[Parts],
    timeline: TrainingTimeline,
) -> TrainingResult:
    """Return a run with failures: the mean of random runs, with those of its range beside them."""
    steps, slowdown = run.steps_of(step.plan), broken_slowdown(step)
    setups = [failure_setup(step.pod, run, each, steps, slowdown) for each in parts]
    fewer = min(asked.runs, END_RUNS)
    found, low, high = (
        survey(setup, asked, runs) for setup, runs in zip(setups, (None, fewer, fewer), strict=True)
    )
    spent = [
        _buckets({name: each / PICO for name, each in one.spent_s.items()}, step)
        for one in (found, low, high)
    ]
    names = (*BUCKETS, *FAILURE_BUCKETS)
    buckets = {name: _estimate(each[name] for each in spent) for name in names}
    ends = low.quantiles_s()[0.1], high.quantiles_s()[0.9]
    return TrainingResult(
        step=step,
        run=run,
        steps=steps,
        step_time_s=parts[0].step_s,
        timeline=timeline,
        buckets=buckets,
        wall_s=Estimate(found.mean_s, *ends),
        checkpoint=parts[0].checkpoint,
        failures=found,
        stragglers=_stragglers(step, run, steps),
        notes=tuple(_notes(step, run)),
    )


def run_setup(step: PlanResult, run: TrainingRun) -> FailureSetup:
    """Return a run with failures as it is predicted, in the form that the engine takes."""
    parts, steps = run_parts(step, run)[0], run.steps_of(step.plan)
    return failure_setup(step.pod, run, parts, steps, broken_slowdown(step))


def _stragglers(step: PlanResult, run: TrainingRun, steps: int) -> StragglerSurvey | None:
    if run.stragglers is None:
        return None
    return survey_stragglers(step, run.stragglers, ideal_step_s(step, run), steps)


def _estimate(values: Iterable[float]) -> Estimate:
    """Return a value with the ends of its range, which a mean of other random runs may exceed."""
    value, *ends = values
    return Estimate(value, min(value, *ends), max(value, *ends))


def _check_run(run: object) -> None:
    if not isinstance(run, TrainingRun):
        raise PlanError(
            f"run is {shown(run)}; give a ts.TrainingRun, such as TrainingRun(tokens=1e12)"
        )


def wall_seconds(step: PlanResult, run: TrainingRun) -> float:
    """Return the predicted seconds of the training run around a step, without their range."""
    steps = run.steps_of(step.plan)
    _check_events(run, steps)
    predicted, _, _ = run_parts(step, run)
    return run_training(loop_times(predicted, run, steps)).total_ps * PICO


def _check_events(run: TrainingRun, steps: int) -> None:
    """Raise PlanError for a run with too many evaluations or checkpoints to simulate each."""
    for name, part in (("evaluations", run.evaluations), ("checkpoints", run.checkpoints)):
        if part is not None and steps // part.every > MOST_EVENTS:
            raise PlanError(
                f"train.{name}.every is {part.every}, which makes {steps // part.every:,} {name} "
                f"in {steps:,} steps; write at least {-(-steps // MOST_EVENTS):,}"
            )


def _buckets(spent: Mapping[Activity, float], step: PlanResult) -> dict[str, float]:
    """Return the wall seconds by bucket; waits for input are taken from those of the steps."""
    found = {
        name: sum(spent.get(activity, 0) for activity in activities) * PICO
        for name, activities in (*BUCKETS.items(), *FAILURE_BUCKETS.items())
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
    if run.failures is None:
        notes.append("no failure, restart or wait for a slice is simulated")
    else:
        notes += failure_notes(step.pod, run)
    if run.stragglers is not None:
        notes += straggler_notes(step, run.stragglers)
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

"""The front door of training runs: a step is simulated, and then the run around it."""

from collections.abc import Iterable, Mapping, Sequence

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.costs import INPUT
from tpusim.engine.training_loop import Activity, run_training
from tpusim.failures import Failures
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input, Plan
from tpusim.results import EXPOSED, PICO, PlanResult
from tpusim.simulation import simulate
from tpusim.simulation.arguments import check_arguments
from tpusim.training.failure_setup import run_setup
from tpusim.training.failure_survey import FailureSurvey, survey
from tpusim.training.parts import Parts, ideal_step_s, loop_times, run_parts
from tpusim.training.result import BUCKETS, FAILURE_BUCKETS, GOODPUT, Estimate, TrainingResult
from tpusim.training.run import TrainingRun
from tpusim.training.run_notes import run_notes
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
    ends = run_parts(step, run)
    steps = run.steps_of(step.plan)
    _check_events(run, steps)
    timelines = [run_training(loop_times(parts, run, steps)) for parts in ends]
    failures = None
    if run.failures is None:
        spent = [_buckets(timeline.spent_ps, step) for timeline in timelines]
        buckets = {name: Estimate(*(each[name] for each in spent)) for name in BUCKETS}
        wall_s = Estimate(*(timeline.total_ps * PICO for timeline in timelines))
    else:
        failures, buckets, wall_s = _with_failures(step, run, run.failures, ends)
    return TrainingResult(
        step=step,
        run=run,
        steps=steps,
        step_time_s=ends[0].step_s,
        timeline=timelines[0],
        buckets=buckets,
        wall_s=wall_s,
        checkpoint=ends[0].checkpoint,
        failures=failures,
        stragglers=_stragglers(step, run, steps),
        notes=tuple(run_notes(step, run)),
    )


def _with_failures(
    step: PlanResult, run: TrainingRun, asked: Failures, ends: Sequence[Parts]
) -> tuple[FailureSurvey, dict[str, Estimate], Estimate]:
    """Return the random runs of a run with failures, its mean buckets and its wall time."""
    counts = asked.runs, *(min(asked.runs, END_RUNS),) * 2
    surveys = [
        survey(run_setup(step, run, parts), asked, count)
        for parts, count in zip(ends, counts, strict=True)
    ]
    spent = [
        _buckets({name: each / PICO for name, each in one.spent_s.items()}, step) for one in surveys
    ]
    names = (*BUCKETS, *FAILURE_BUCKETS)
    buckets = {name: _estimate(each[name] for each in spent) for name in names}
    found, low, high = surveys
    return found, buckets, Estimate(found.mean_s, low.quantiles_s()[0.1], high.quantiles_s()[0.9])


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

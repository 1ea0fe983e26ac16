"""Runs with failures: nothing is lost or counted twice, and closed forms hold in the mean."""

from collections import Counter
from math import exp

import numpy as np
import pytest
from extent import seeds
from failing_runs import Walk, draws, random_run

from tpusim.engine.failure_queue import FailureKind, Loss
from tpusim.engine.interrupted_run import InterruptedRun, Loops, Outcome, Recovery
from tpusim.engine.training_loop import Activity, LoopTimes, run_training
from tpusim.training.expected_run import expected_ettr, expected_seconds, units_away
from tpusim.training.failure_setup import FailureSetup
from tpusim.training.failure_survey import simulate_run
from tpusim.training.save_interval import daly_interval, young_interval

S = 10**12
STOPPED = (Activity.DETECTION, Activity.REPLACEMENT, Activity.RESTORE, Activity.RESHARD)


def outcome(seed: int, *, record: bool = True) -> Outcome:
    times, kinds, recovery = random_run(seed)
    run = InterruptedRun(Loops(times), kinds, recovery, draws(seed), record)
    return run.run(times.before)


@pytest.mark.parametrize("seed", seeds(500, default=150))
def test_work_is_conserved_and_no_progress_is_lost_twice(seed: int) -> None:
    times, _, recovery = random_run(seed)
    found = outcome(seed)
    assert sum(found.spent_ps.values()) == found.total_ps
    assert found.spent_ps[Activity.STEPS] == times.steps * times.step_ps
    assert min(found.spent_ps.values(), default=0) >= 0
    assert found.lost_steps * times.step_ps <= found.spent_ps[Activity.LOST_STEPS]
    ends = [span.end_ps for span in found.spans]
    assert [span.start_ps for span in found.spans] == [0, *ends[:-1]]
    assert len(found.events) == sum(found.failures.values())
    assert outcome(seed, record=False).spent_ps == found.spent_ps
    if recovery.reshard is None:
        blamed = sum(lost for name, lost in found.lost_ps.items() if name)
        restarts = sum(found.spent_ps[activity] for activity, _ in recovery.restart)
        stops = sum(found.spent_ps[activity] for activity in STOPPED)
        noticed = found.spent_ps[Activity.CHECKPOINT] - _saved(found)
        assert blamed == found.spent_ps[Activity.LOST_STEPS] + stops + restarts + noticed


def _saved(found: Outcome) -> int:
    """Return the time of checkpoints that the loop itself wrote."""
    asked = sum(
        span.end_ps - span.start_ps for span in found.spans if span.activity is Activity.CHECKPOINT
    )
    return found.spent_ps[Activity.CHECKPOINT] - asked


@pytest.mark.parametrize("seed", range(200))
def test_a_stretch_is_what_a_walk_step_by_step_finds(seed: int) -> None:
    times, _, _ = random_run(seed)
    rng = np.random.default_rng(seed)
    for done in (0, int(rng.integers(times.steps))):
        end = int(rng.integers(1, times.steps * times.step_ps + 200))
        walk = Walk(times, times.step_ps, done)
        length = walk.to(end)
        found_length, found = Loops(times).until(end, done, times.step_ps)
        assert found_length == length
        assert found.steps == walk.done
        assert (found.written, found.copied) == (walk.written, walk.copied)
        assert +found.spent_ps == +walk.spent


@pytest.mark.parametrize("seed", range(40))
def test_without_failures_it_is_the_loop(seed: int) -> None:
    times, _, recovery = random_run(seed)
    found = InterruptedRun(Loops(times), (), recovery, draws(seed)).run(times.before)
    timeline = run_training(times)
    assert found.total_ps == timeline.total_ps
    assert +found.spent_ps == +Counter(timeline.spent_ps)


def setup(
    *, every: int, stop: float = 0, write: float = 0, mttf: float = 3600, restart: float = 60,
    steps: int = 20_000, loss: Loss = Loss.PROCESS, repair: float = 0, **recovery: object,
) -> FailureSetup:  # fmt: skip
    """A run of steps of a second with one kind of failure."""
    times = LoopTimes(
        (), steps, S, save_every=every, stop_ps=round(stop * S), write_ps=round(write * S)
    )
    kind = FailureKind("one", mttf * S, 1.0, loss, 0, 0.0, 0, repair * S)
    after = Recovery(restart=((Activity.INITIALIZATION, round(restart * S)),), **recovery)  # type: ignore[arg-type]
    return FailureSetup(times, (kind,), after, {}, {}, 64)


def mean_seconds(of: FailureSetup, runs: int) -> float:
    loops = Loops(of.times)
    return float(np.mean([simulate_run(of, loops, 7, run).total_ps / S for run in range(runs)]))


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"every": 100}, 0.01),
        ({"every": 600, "stop": 10}, 0.01),
        ({"every": 300, "stop": 2, "write": 60}, 0.01),
        ({"every": 200, "stop": 1, "write": 150, "restart": 300}, 0.01),
        ({"every": 300, "loss": Loss.UNIT, "repair": 3600, "spares": 4}, 0.01),
        ({"every": 300, "loss": Loss.UNIT, "repair": 3600, "spares": 1, "steps": 60_000}, 0.02),
    ],
)
def test_random_runs_have_the_expected_length(changes: dict[str, object], bound: float) -> None:
    of = setup(**changes)  # type: ignore[arg-type]
    assert mean_seconds(of, 200) == pytest.approx(expected_seconds(of), rel=bound)


def test_small_losses_are_those_of_the_ettr() -> None:
    of = setup(every=60, restart=30, mttf=6000)
    ettr = of.times.steps * of.times.step_ps / S / mean_seconds(of, 200)
    assert ettr == pytest.approx(expected_ettr(1 / 6000, 30, 60), abs=0.002)


def best_interval(stop: float, mttf: float) -> float:
    """Return where the expected time of a long run is least: its derivative is 0."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        positive = 1 - middle > exp(-middle - stop / mttf)
        low, high = (middle, high) if positive else (low, middle)
    return low * mttf


@pytest.mark.parametrize(("stop", "mttf"), [(10.0, 3600.0), (60.0, 30_000.0)])
def test_the_expected_time_is_least_at_the_best_interval(stop: float, mttf: float) -> None:
    every = [round(best_interval(stop, mttf) * factor) for factor in (0.9, 1, 1.1)]
    walls = [
        expected_seconds(setup(every=each, stop=stop, mttf=mttf, steps=10**7)) for each in every
    ]
    assert min(walls) == walls[1]


def test_the_best_interval_is_that_of_brute_force() -> None:
    stop, mttf = 20.0, 2000.0
    best = best_interval(stop, mttf)
    grid = np.round(best * np.geomspace(0.4, 2.5, 11)).astype(int)
    walls = [mean_seconds(setup(every=int(every), stop=stop, mttf=mttf), 150) for every in grid]
    curve = np.polyfit(np.log(grid), walls, 4)
    fine = np.linspace(np.log(grid[0]), np.log(grid[-1]), 2000)
    brute = float(np.exp(fine[np.argmin(np.polyval(curve, fine))]))
    assert best == pytest.approx(brute, rel=0.05)


@pytest.mark.parametrize(("stop", "mttf"), [(1.0, 1e6), (10.0, 3600.0), (60.0, 30_000.0)])
def test_the_best_interval_is_dalys_and_near_youngs(stop: float, mttf: float) -> None:
    best = best_interval(stop, mttf)
    assert best == pytest.approx(daly_interval(stop, mttf), rel=1e-3)
    assert best == pytest.approx(young_interval(stop, mttf), rel=0.05)


def test_units_away_are_a_poisson_number_with_ample_spares() -> None:
    away = units_away(setup(every=1, mttf=1000, loss=Loss.UNIT, repair=2000, spares=None))
    assert away[0] == pytest.approx(exp(-2))
    assert away[3] == pytest.approx(exp(-2) * 8 / 6)
    assert sum(away.values()) == pytest.approx(1)


def test_ninety_days_on_a_pod_take_tens_of_milliseconds() -> None:
    from time import process_time

    times = LoopTimes((), 90 * 8640, 10 * S, save_every=60, stop_ps=S, write_ps=30 * S)
    kinds = tuple(
        FailureKind(name, hours * 3600 * S, 1.0, loss, 30 * S, 0.1, 600 * S, 96 * 3600 * S)
        for name, hours, loss in (("machine", 13, Loss.UNIT), ("job", 24, Loss.PROCESS))
    )
    after = Recovery(((Activity.INITIALIZATION, 60 * S),), spares=16)
    of = FailureSetup(times, kinds, after, {}, {}, 64)
    loops = Loops(times)
    began = process_time()
    for run in range(20):
        simulate_run(of, loops, 0, run)
    assert process_time() - began < 20 * 0.06 * 2

"""The loop of a training run that skips ahead does what one that counts each step does."""

from collections import Counter
from random import Random
from time import perf_counter

import pytest
from extent import sample, seeds

from tpusim.engine.training_loop import Activity, LoopTimes, run_training


def counted(times: LoopTimes) -> tuple[int, Counter[Activity], int]:
    """The end of a run, what it spent, and its writes: step by step, with a clock alone."""
    now, writer, writes = 0, 0, 0
    spent: Counter[Activity] = Counter()

    def spend(activity: Activity, length: int) -> None:
        nonlocal now
        now += length
        spent[activity] += length

    for activity, length in times.before:
        spend(activity, length)
    for step in range(1, times.steps + 1):
        spend(Activity.STEPS, times.step_ps)
        if times.evaluate_every and step % times.evaluate_every == 0:
            spend(Activity.EVALUATION, times.evaluation_ps)
        if times.save_every and (step % times.save_every == 0 or step == times.steps):
            spend(Activity.CHECKPOINT_WAIT, max(0, writer - now))
            spend(Activity.CHECKPOINT, times.stop_ps)
            writer = now + times.write_ps
            writes += bool(times.write_ps)
    spend(Activity.CHECKPOINT_WAIT, max(0, writer - now))
    return now, spent, writes


@pytest.mark.parametrize("seed", seeds(200, default=16))
def test_skipping_ahead_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    times = LoopTimes(
        before=((Activity.INITIALIZATION, rng.randrange(50)), (Activity.WARM_UP, rng.randrange(9))),
        steps=rng.randrange(1, 60) if seed % 2 else rng.randrange(1, 3000),
        step_ps=rng.randrange(1, 20),
        evaluate_every=rng.choice([0, 1, 3, 7, 90, 100]),
        evaluation_ps=rng.randrange(30),
        save_every=rng.choice([0, 1, 2, 5, 7, 100]),
        stop_ps=rng.randrange(5),
        write_ps=rng.choice([0, 3, 40, 200]),
    )
    timeline = run_training(times)
    total, spent, writes = counted(times)
    assert timeline.total_ps == total
    found: Counter[Activity] = Counter()
    for span in timeline.spans:
        found[span.activity] += span.end_ps - span.start_ps
    assert found == +spent
    assert len(timeline.writes_ps) == writes
    assert all(end - start == times.write_ps for start, end in timeline.writes_ps)
    for (_, before), (start, _) in zip(timeline.writes_ps, timeline.writes_ps[1:], strict=False):
        assert before <= start, "two checkpoints are written at a time"
    ends = [0, *(span.end_ps for span in timeline.spans)]
    assert [span.start_ps for span in timeline.spans] == ends[:-1]
    assert timeline.spans[-1].step == times.steps


def test_ninety_days_with_ten_thousand_checkpoints_take_less_than_two_seconds() -> None:
    day = 86_400 * 10**12
    times = LoopTimes((), 9_000_000, 90 * day // 9_000_000, 1000, 10**13, 900, 10**11, 10**14)
    began = perf_counter()
    timeline = run_training(times)
    assert perf_counter() - began < 2
    assert len(timeline.writes_ps) == 10_000
    assert timeline.total_ps > 90 * day


@pytest.mark.parametrize(
    ("evaluate_every", "save_every"),
    sample([(1, 0), (0, 1), (1, 1), (6, 4), (10, 1), (1, 1000)], 3),
)
def test_a_million_events_are_kept_as_the_periods_that_they_are(
    evaluate_every: int, save_every: int
) -> None:
    times = LoopTimes((), 1_000_000, 7, evaluate_every, 100, save_every, 5, 33)
    timeline = run_training(times)
    total, spent, _ = counted(times)
    assert timeline.total_ps == total
    assert timeline.spent_ps == +spent
    assert len(timeline.entries) < 100
    assert len(list(timeline.sampled(10))) < 20_000


@pytest.mark.parametrize(
    ("evaluate", "save", "copy"), [(100, 200, 0), (101, 15, 5), (1001, 7, 0), (7, 1001, 0)]
)
def test_a_loop_without_an_end_is_its_period(evaluate: int, save: int, copy: int) -> None:
    times = LoopTimes(
        (), 10**15, 9, evaluate_every=evaluate, evaluation_ps=6, save_every=save, stop_ps=2,
        write_ps=3, copy_every=copy, copy_ps=1,
    )  # fmt: skip
    assert len(run_training(times).entries) < 1000

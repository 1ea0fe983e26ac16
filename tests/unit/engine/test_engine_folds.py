"""What is folded, how it is written down, and what is not folded."""

from engine_programs import US, each_start, loop, simulate, task, transfer

from tpusim.engine import Fold, RepeatLevel
from tpusim.program import Dep


def test_a_synchronous_loop_runs_once() -> None:
    timeline = simulate(loop(64, task("a", 2), task("b", 3)))
    assert timeline.total_ps == 64 * 5 * US
    assert timeline.stats.trips_simulated == 1
    assert timeline.stats.trips == 64
    assert timeline.stats.folds == (Fold("loop", 1, 63, 5 * US),)
    assert [record.repeats for record in timeline.tasks] == [(RepeatLevel(64, 5 * US),)] * 2
    assert [record.count for record in timeline.tasks] == [64, 64]
    assert each_start(timeline.tasks[1]) == [5 * trip + 2 for trip in range(64)]


def test_nested_loops_have_a_level_each() -> None:
    timeline = simulate(loop(4, loop(3, task("a", 2), name="inner"), task("b", 1)))
    a, b = timeline.tasks
    assert a.repeats == (RepeatLevel(4, 7 * US), RepeatLevel(3, 2 * US))
    assert b.repeats == (RepeatLevel(4, 7 * US),)
    assert each_start(a) == [7 * outer + 2 * inner for outer in range(4) for inner in range(3)]
    assert timeline.stats.trips_simulated == 2
    assert timeline.stats.trips == 4 + 12


def test_a_period_may_span_several_trips() -> None:
    """Two transfers of 5 us in turn, each waited for two trips later, on matmuls of 2 us."""
    body = (
        transfer("a", 5, deps=(Dep("a", 2),)),
        task("dot", 2, deps=(Dep("a", 2),)),
    )
    folded, unfolded = simulate(loop(41, *body)), simulate(loop(41, *body), fold=False)
    assert folded.total_ps == unfolded.total_ps
    assert folded.stats.folds[0].trips == 2


def test_trips_of_equal_length_alone_prove_nothing() -> None:
    """The first trips are as long as each other; only later is the stream full and the core slow.

    A load is issued each microsecond, and takes 1.5 us after the last one: the core notices when 16
    of them are incomplete.
    """
    body = (transfer("load", 1.5, deps=(Dep("load", 1),)), task("dot", 1))
    folded, unfolded = simulate(loop(200, *body)), simulate(loop(200, *body), fold=False)
    assert folded.total_ps == unfolded.total_ps == 300 * US
    starts = sorted(
        start for record in unfolded.tasks if record.name == "dot" for start in record.starts()
    )
    assert starts[:10] == [trip * US for trip in range(10)]
    assert starts[-1] - starts[-3] == 3 * US


def test_a_run_can_be_made_without_folding() -> None:
    timeline = simulate(loop(64, task("a", 2)), fold=False)
    assert timeline.stats.folds == ()
    assert len(timeline.tasks) == 64


def test_a_million_trips_take_no_longer_than_ten() -> None:
    few = simulate(loop(10, task("a", 2), transfer("b", 1))).stats
    many = simulate(loop(1_000_000, task("a", 2), transfer("b", 1))).stats
    assert many.events == few.events

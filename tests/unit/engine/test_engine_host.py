"""What the host does beside a lane: the lane's end waits for it, and nothing else does."""

from dataclasses import replace

import pytest
from engine_programs import loop, program, spans, task, transfer, waits

from tpusim.costs import Task, TaskOp
from tpusim.engine import Timeline, run
from tpusim.results import core_ps


def hosted(*body: TaskOp, fold: bool = True, **host: float) -> Timeline:
    """A run of `body` beside tasks of the host, in microseconds."""
    tasks = tuple(beside(name, us) for name, us in host.items())
    return run([replace(program(*body, hbm=1.0), host=tasks)], fold=fold)


def beside(name: str, us: float) -> Task:
    return task(name, stream="host", label=name, delay_s=us * 1e-6)


def test_a_host_that_is_faster_changes_nothing() -> None:
    found = hosted(task("a", 5), task("b", 4), dispatch=6, make=3)
    assert found.total_ps == 9_000_000
    assert not found.waits
    assert spans(found) == {"a": (0, 5), "b": (5, 9), "dispatch": (0, 6), "make": (6, 9)}


def test_a_slower_host_is_waited_for_part_by_part() -> None:
    found = hosted(task("a", 5), dispatch=6, make=3)
    assert waits(found) == [("dispatch", 5, 6), ("make", 6, 9)]
    assert found.total_ps == sum(core_ps(found).values()) == 9_000_000
    assert found.device_ps == 5_000_000


def test_streams_drain_first() -> None:
    found = hosted(transfer("t", 7), task("a", 5), dispatch=6, make=3)
    assert waits(found) == [("t", 5, 7), ("make", 7, 9)]


@pytest.mark.parametrize("us", [1, 37, 4999, 5003, 12345])
def test_a_folded_loop_does_not_hide_the_host(us: int) -> None:
    """Whenever the host is done, trips fold as without it."""
    body = loop(1000, task("a", 3), transfer("t", 4), task("b", 2))
    folded, whole = (hosted(body, fold=fold, dispatch=us) for fold in (True, False))
    assert folded.total_ps == whole.total_ps == max(us, 5002) * 1_000_000
    assert folded.stats.trips_simulated < 5
    assert waits(folded)[-1:] == waits(whole)[-1:]

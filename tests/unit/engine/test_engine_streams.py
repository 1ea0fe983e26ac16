"""Who waits for whom: the core, the streams, and dependencies through loops."""

import pytest
from engine_programs import US, loop, program, simulate, spans, task, transfer, waits
from engines import FlowNetwork, Lane, LaneClock, run_processes
from simpy import Environment

from tpusim.engine import StalledError, compile_lane, run
from tpusim.engine.instructions import CompletionNeed
from tpusim.program import Dep


def test_nothing_takes_no_time() -> None:
    assert simulate().total_ps == 0
    assert run([]).total_ps == 0
    assert simulate(loop(0, task("a", 1)), task("b")).total_ps == 0


def test_the_core_goes_on_beside_a_transfer_and_waits_for_it_at_the_end() -> None:
    timeline = simulate(transfer("load", 5), task("dot", 2))
    assert spans(timeline) == {"dot": (0, 2), "load": (0, 5)}
    assert waits(timeline) == [("load", 2, 5)]


def test_a_stream_starts_its_tasks_in_the_order_of_issue() -> None:
    timeline = simulate(
        transfer("slow", 4, stream="elsewhere"),
        transfer("first", 1, deps=(Dep("slow"),)),
        transfer("second", 1),
    )
    assert spans(timeline) == {"slow": (0, 4), "first": (4, 5), "second": (4, 5)}


def test_transfers_of_one_stream_overlap() -> None:
    timeline = simulate(transfer("a", 4), transfer("b", 2))
    assert spans(timeline) == {"b": (0, 2), "a": (0, 4)}


def test_sixteen_transfers_of_a_stream_are_open_at_most() -> None:
    timeline = simulate(*(transfer(f"t{at}", 3) for at in range(17)), task("dot", 1))
    assert spans(timeline)["t15"] == (0, 3)
    assert spans(timeline)["t16"] == (3, 6)
    assert spans(timeline)["dot"] == (3, 4)
    assert waits(timeline)[0][1:] == (0, 3)


def test_queued_transfers_count_towards_the_sixteen() -> None:
    queued = (transfer(f"t{at}", 1, deps=(Dep("gate"),)) for at in range(17))
    timeline = simulate(transfer("gate", 5, stream="gate"), *queued, task("dot", 1))
    assert spans(timeline)["dot"] == (6, 7)


def test_a_ring_is_a_chain_through_the_trips() -> None:
    """Each hop follows the last; each matmul needs the chunk of the hop of the trip before."""
    timeline = simulate(
        loop(
            8,
            transfer("hop", 3, deps=(Dep("hop", 1),)),
            task("dot", 2, deps=(Dep("hop", 1),)),
        )
    )
    assert timeline.total_ps == 8 * 3 * US
    hops = [record for record in timeline.tasks if record.name == "hop"]
    assert sorted(start for hop in hops for start in hop.starts()) == [
        3 * US * trip for trip in range(8)
    ]


@pytest.mark.parametrize("distance", [0, 1, 2, 3])
def test_distance_reaches_back_that_many_trips(distance: int) -> None:
    """With loads of 10 us and matmuls of 1 us, each load makes room for `distance` + 1 trips."""
    body = (transfer("load", 10), task("dot", 1, deps=(Dep("load", distance),)))
    matmuls = [each for each in simulate(loop(12, *body), fold=False).tasks if each.name == "dot"]
    assert matmuls[-1].end_ps == 12 // (distance + 1) * 11 * US


def test_a_dependency_may_point_forwards_to_the_trip_before() -> None:
    timeline = simulate(
        loop(3, task("use", 1, deps=(Dep("load", 1),)), transfer("load", 4), task("rest", 1))
    )
    assert timeline.total_ps == (1 + 3 * 4 + 2) * US


def test_a_loop_waits_for_what_ran_before_it() -> None:
    timeline = simulate(transfer("load", 4), loop(2, task("dot", 1, deps=(Dep("load"),))))
    assert timeline.total_ps == 6 * US
    assert waits(timeline) == [("load", 0, 4)]


def test_after_a_loop_all_its_instances_are_needed() -> None:
    timeline = simulate(
        loop(5, transfer("store", 4), task("dot", 1)), task("last", 1, deps=(Dep("store"),))
    )
    assert spans(timeline)["last"] == (8, 9)


def test_distance_counts_trips_of_the_loop_that_holds_both() -> None:
    """The inner loop uses what the outer loop loaded one trip before."""
    body = (transfer("load", 6), loop(3, task("dot", 1, deps=(Dep("load", 1),)), name="inner"))
    timeline = simulate(loop(4, *body))
    # Loads start at 0, 3, 9 and 12, with their trips; matmuls at 0, 6, 9 and 15.
    assert timeline.total_ps == 18 * US


def test_distance_into_a_finished_inner_loop_needs_all_its_instances_of_that_trip() -> None:
    body = (
        task("use", 1, deps=(Dep("store", 1),)),
        loop(3, transfer("store", 5), task("dot", 1), name="inner"),
    )
    timeline = simulate(loop(2, *body))
    # The third store of the first trip is issued at 3 and ends at 8; the last one at 8 + 1 + 2 + 5.
    assert timeline.total_ps == 16 * US


def test_distance_into_a_finished_inner_loop_leaves_the_later_trips_alone() -> None:
    body = (
        loop(3, transfer("store", 5), task("dot", 1), name="inner"),
        task("use", 1, deps=(Dep("store", 1),)),
    )
    timeline = simulate(loop(2, *body), fold=False)
    # The second trip starts at 4; its use, at 7, needs the stores of the first, done at 7.
    assert [record.start_ps // US for record in timeline.tasks if record.name == "use"] == [3, 7]


def test_an_outer_transfer_in_flight_is_met_inside_a_loop() -> None:
    """Alone the load draws 100 B/us and a matmul 60, so both go at 5/8 while the load drains.

    It drains 62.5 B/us for 16 us, in which 10 matmuls of 1.6 us fit; the other 40 take 1 us each.
    """
    hbm = (("hbm", 1),)
    body = (
        transfer("load", bytes=1000, uses=hbm),
        loop(50, task("dot", 1, bytes=60, uses=hbm)),
    )
    folded, unfolded = simulate(*body, hbm=100), simulate(*body, hbm=100, fold=False)
    assert folded.total_ps == unfolded.total_ps == (16 + 40) * US
    assert spans(unfolded)["load"] == (0, 16)
    assert folded.stats.trips_simulated < 25


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((task("a"), task("a")), "'a' is used twice"),
        ((task("a", deps=(Dep("b"),)),), "'b', which is no task"),
        ((task("a", deps=(Dep("b"),)), task("b")), "not issued until later"),
        ((loop(2, task("a", deps=(Dep("a"),))),), "not issued until later"),
        ((loop(2, task("a"), transfer("b"), task("c", deps=(Dep("b", -1),))),), "-1 iterations"),
        ((loop(-1, task("a")),), "cannot run -1 times"),
        ((task("a", uses=(("dcn", 1),)),), "'dcn', which has no rate"),
        ((task("a", uses=(("hbm", -1),)),), "with the weight -1"),
        ((task("a", delay_s=-1.0),), "a time must be finite"),
    ],
)
def test_a_program_that_contradicts_itself_is_refused(body: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(*body, hbm=100)


def test_a_core_that_waits_for_ever_is_an_error_and_no_hang() -> None:
    code = compile_lane(program(transfer("load", 1), task("dot", 1, deps=(Dep("load"),))))
    code.steps[1].needs = (CompletionNeed(step=0, lag=-1, loop=0, distance=0),)
    env = Environment()
    clock = LaneClock(env)
    with pytest.raises(StalledError, match="lane 'test' is at instruction 1"):
        run_processes(env, [Lane(clock, FlowNetwork(clock, []), code, False)])


def test_lanes_run_side_by_side() -> None:
    timeline = run([program(task("a", 3)), program(task("a", 5), transfer("b", 1))])
    assert timeline.total_ps == 6 * US
    assert timeline.lanes == (("test", 3 * US), ("test", 6 * US))
    assert {(record.lane, record.name) for record in timeline.tasks} == {
        (0, "a"),
        (1, "a"),
        (1, "b"),
    }

"""What slow chips and links cost, from closed forms."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from plans import ENCODER_480B, PLAN_480B, plan_of, small

from tpusim.costs import (
    HBM,
    STRAGGLERS,
    CostedProgram,
    SliceLinks,
    Task,
    TaskLoop,
    link_seconds,
    route,
)
from tpusim.engine import Timeline, run
from tpusim.hardware import Slice, Span, Topology, load_chip
from tpusim.network import Loads, groups, link_shape
from tpusim.program import CollectiveKind, Phase
from tpusim.results import PlanResult, breakdown_ps, stragglers
from tpusim.simulation import simulate

US = 1_000_000
X = Span(0, 4)


def work(name: str, us: float) -> Task:
    return Task(name=name, phase=Phase.FORWARD, label="matmul", work_s=us * 1e-6)


def collective(name: str, us: float, *axes: str) -> Task:
    return Task(name=name, phase=Phase.FORWARD, label="+".join(axes), work_s=us * 1e-6, meets=axes)


def lane(name: str, groups: dict[tuple[str, ...], int], *body: Task | TaskLoop) -> CostedProgram:
    return CostedProgram(name=name, body=body, links=((HBM, 1e12),), groups=tuple(groups.items()))


def waits(timeline: Timeline) -> list[dict[str, int]]:
    """For each lane, the picoseconds that it waits for each other."""
    found: list[dict[str, int]] = [{} for _ in timeline.lanes]
    for wait in timeline.waits:
        if wait.label == STRAGGLERS:
            to = found[wait.lane]
            to[wait.stream] = to.get(wait.stream, 0) + wait.total_ps
    return found


def test_data_parallel_compute_takes_twice_as_long_with_a_chip_at_half_speed() -> None:
    data = {("data",): 0}
    lanes = [
        lane(name, data, work("step", us), collective("sum", 5, "data"))
        for name, us in (("slow", 200), ("other", 100), ("third", 100))
    ]
    timeline = run(lanes)
    assert timeline.total_ps == 205 * US
    assert waits(timeline) == [{}, {"slow": 100 * US}, {"slow": 100 * US}]


def test_a_slow_chip_in_one_of_two_replicas() -> None:
    """Its replica waits in each of n iterations, the other once, for all of them."""
    n, tensor, data = 1000, ("tensor",), ("data",)
    lanes = [
        lane(
            f"{replica}{place}",
            {tensor: replica, data: place},
            TaskLoop(
                name="layers",
                trips=n,
                body=(
                    work("dot", 4 if (replica, place) == (0, 0) else 2),
                    collective("sum", 1, *tensor),
                ),
            ),
            collective("gradients", 7, *data),
        )
        for replica in range(2)
        for place in range(2)
    ]
    timeline = run(lanes)
    assert timeline.total_ps == (n * (4 + 1) + 7) * US
    assert waits(timeline) == [
        {},
        {"00": n * 2 * US},
        {"00": n * 2 * US},
        {"01": n * 2 * US},
    ]
    assert timeline.stats.trips_simulated < 20
    assert run(lanes, fold=False).waits != ()
    assert run(lanes, fold=False).total_ps == timeline.total_ps


def test_lanes_that_never_meet_end_alone_and_wait_for_the_last() -> None:
    timeline = run([lane("slow", {}, work("a", 3)), lane("fast", {}, work("a", 1))])
    assert timeline.lanes == (("slow", 3 * US), ("fast", 1 * US))
    assert waits(timeline) == [{}, {"slow": 2 * US}]
    assert breakdown_ps(timeline) == {"matmul": 2 * US, "exposed stragglers": 1 * US}


def test_an_asynchronous_collective_holds_its_stream_and_not_the_core() -> None:
    """The fast lane computes on while its transfer waits, and then waits for the rest of both."""
    both = {("data",): 0}

    def body(us: float) -> tuple[Task, ...]:
        moved = replace(collective("sum", 10, "data"), stream="ici:data")
        return work("before", us), moved, work("beside", 4)

    timeline = run([lane("slow", both, *body(9)), lane("fast", both, *body(2))])
    assert timeline.total_ps == 19 * US
    sums = {
        task.lane: (task.start_ps, task.end_ps) for task in timeline.tasks if task.name == "sum"
    }
    assert sums == {0: (9 * US, 19 * US), 1: (9 * US, 19 * US)}
    fast = [
        (wait.label, wait.start_ps // US, wait.end_ps // US)
        for wait in timeline.waits
        if wait.lane == 1
    ]
    assert fast == [(STRAGGLERS, 6, 9), ("data", 9, 19)]


@pytest.mark.parametrize("left", [0.25, 0.5, 0.9])
def test_a_gather_on_a_ring_takes_what_its_slow_link_allows(left: float) -> None:
    """Each edge of a ring carries equally much, so bytes take as much longer as the link is."""
    torus = Topology((4, 4, 4), (True,) * 3)
    slowness = slow_edge(torus, (1, 0, 0), left)
    members = groups((X,), torus)
    path = route(CollectiveKind.ALL_GATHER, (X,), torus)
    chip, nbytes = load_chip("v4"), 1e9
    healthy = link_seconds(path, nbytes, chip)
    for group in members:
        slowed = SliceLinks(slowness, frozenset()).route(path, group)
        crosses = bool((group[0] == (0, 0, 0)).all())
        assert (slowed == path) != crosses
        if crosses:
            assert link_seconds(slowed, nbytes, chip) == pytest.approx(healthy / left)
            assert slowed.hops == path.hops


@pytest.mark.parametrize(
    ("at", "left", "longer"),
    [
        # A line of 4 carries 1, 2, 3 chunks one way and 3, 2, 1 the other; 3 are the busiest.
        (0, 0.5, 2.0),
        (1, 0.5, 4 / 3),
        (1, 2 / 3, 1.0),
        (1, 0.8, 1.0),
    ],
)
def test_a_gather_on_a_line_waits_for_its_middle_only_when_that_is_slower(
    at: int, left: float, longer: float
) -> None:
    line = Topology((4, 2), (False, False))
    path = route(CollectiveKind.ALL_GATHER, (X,), line)
    links = SliceLinks(slow_edge(line, (at, 0), left), frozenset())
    slowed = links.route(path, groups((X,), line)[0])
    chip = load_chip("v5e")
    times = [link_seconds(each, 1e9, chip) for each in (slowed, path)]
    assert times[0] / times[1] == pytest.approx(longer)


def slow_edge(torus: Topology, at: tuple[int, ...], left: float) -> Loads:
    """The slowness of all links, of which those from `at` to the next along x are slow."""
    slowness = np.ones(link_shape(torus))
    other = torus.neighbour(at, 0, 1)
    assert other is not None
    slowness[(0, 0, *at)] = slowness[(0, 1, *other)] = 1 / left
    return slowness


@cache
def flagship(*chips: tuple[int, int, int], compute: float = 0.8) -> PlanResult:
    slow = {"chips": [{"at": at, "compute": compute} for at in chips]}
    return simulate(ENCODER_480B, PLAN_480B, Slice("v4", "8x16x16", slow=slow))


def test_one_slow_chip_of_2048_makes_four_classes() -> None:
    """The chip, those on its axis of tensor, those on its axes of fsdp, and all others."""
    timeline = flagship((0, 0, 0)).timeline
    assert dict(zip(timeline.devices, (name for name, _ in timeline.lanes), strict=True)) == {
        1: "0,0,0 compute x0.8",
        7: "1,0,0",
        255: "0,0,1",
        1785: "1,0,1",
    }
    table = stragglers(flagship((0, 0, 0)))
    assert table is not None
    assert table.rows[0].name == "0,0,0 compute x0.8"
    assert table.rows[0].wait_ps == 0


def test_a_healthy_pod_has_one_lane_and_no_classes() -> None:
    healthy = simulate(ENCODER_480B, PLAN_480B, Slice("v4", "8x16x16"))
    assert len(healthy.timeline.lanes) == 1
    assert stragglers(healthy) is None
    assert flagship().timeline == healthy.timeline


def test_two_slow_chips_of_a_group_cost_no_more_than_one() -> None:
    one, two = flagship((0, 0, 0)), flagship((0, 0, 0), (3, 0, 0))
    assert one.timeline.total_ps == two.timeline.total_ps


def test_one_slow_chip_costs_as_much_as_if_all_were_as_slow() -> None:
    """Every collective waits for it; a pod at half its clock is costed without any of this."""
    pod = Slice("v4", "8x16x16", clock=load_chip("v4").clock / 2)
    all_slow = simulate(ENCODER_480B, PLAN_480B, pod)
    assert flagship((0, 0, 0), compute=0.5).timeline.total_ps == all_slow.timeline.total_ps


def test_the_slower_the_chip_the_longer_the_step() -> None:
    steps = [flagship((0, 0, 0), compute=left).timeline.total_ps for left in (1 - 1e-9, 0.9, 0.5)]
    assert steps == sorted(steps)
    healthy = simulate(ENCODER_480B, PLAN_480B, Slice("v4", "8x16x16")).timeline.total_ps
    assert steps[0] == pytest.approx(healthy, rel=1e-6)


def test_work_on_a_chip_at_half_speed_takes_twice_as_long() -> None:
    """Without launches, which are as fast as ever."""
    bare = load_chip("v4").replace(op_launch=0.0, vector_launch=0.0)
    plan = plan_of({"data": 4})
    slow = {"chips": [{"at": [1, 0, 0], "compute": 0.5, "hbm": 0.5}]}
    timeline = simulate(small(), plan, Slice(bare, "2x2x1", slow=slow)).timeline
    assert timeline.devices == (3, 1)
    mine, other = (
        sum(task.total_ps for task in timeline.tasks if task.lane == at and own(task))
        for at in (1, 0)
    )
    assert mine == pytest.approx(2 * other, rel=1e-6)


def own(task: Any) -> bool:
    return task.stream == "core" and task.label in ("matmul", "attention", "vector")


def test_all_chips_of_a_slow_slice_are_alike() -> None:
    slow = {"slices": [{"slice": 1, "compute": 0.8}]}
    plan = plan_of({"dcn_data": 2, "fsdp": 4})
    timeline = simulate(small(), plan, Slice("v5e", "2x2", num_slices=2, slow=slow)).timeline
    assert timeline.devices == (4, 4)
    assert [name for name, _ in timeline.lanes] == ["slice 0 0,0", "slice 1 0,0 compute x0.8"]


def test_both_devices_of_a_slow_chip_are_slow() -> None:
    slow = {"chips": [{"at": [0, 0, 0], "compute": 0.8}]}
    plan = plan_of({"data": 8})
    timeline = simulate(small(), plan, Slice("7x", "2x2x1", slow=slow)).timeline
    assert sorted(timeline.devices) == [2, 6]


@pytest.mark.thorough
def test_512_chips_one_by_one_are_those_of_their_classes() -> None:
    slow = {
        "chips": [{"at": [1, 2, 3], "compute": 0.7}, {"at": [0, 5, 1], "hbm": 0.5}],
        "links": [{"between": [[3, 3, 3], [3, 3, 4]], "bandwidth": 0.5}],
    }
    pod = Slice("v4", "8x8x8", slow=slow)
    model = small(layers=2, embed=1024, mlp=4096, head_dim=128)
    plan = plan_of({"data": 8, "fsdp": 16, "tensor": 4}, seq_len=2048, global_batch=1024)
    folded = simulate(model, plan, pod)
    unfolded = simulate(model, plan, pod, placement=folded.placement, fold=False)
    assert len(unfolded.timeline.lanes) == 512
    assert len(folded.timeline.lanes) < 64
    assert unfolded.timeline.total_ps == folded.timeline.total_ps
    assert breakdown_ps(unfolded.timeline) == breakdown_ps(folded.timeline)
    classes = [at for at, count in enumerate(folded.timeline.devices) for _ in range(count)]
    ends = [folded.timeline.lanes[at][1] for at in classes]
    assert [end for _, end in unfolded.timeline.lanes] == ends

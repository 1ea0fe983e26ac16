"""Who gets how much of a link, in closed form (links in bytes a microsecond)."""

import pytest
from engine_programs import loop, simulate, spans, task, transfer, waits
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tpusim.engine import TaskStep, fair_rates
from tpusim.program import Dep

HBM = (("hbm", 1),)


def test_a_flow_alone_takes_its_time_alone() -> None:
    timeline = simulate(task("a", 3, delay_s=1e-6, bytes=500, uses=HBM), hbm=100)
    assert spans(timeline) == {"a": (0, 6)}
    timeline = simulate(task("a", 8, delay_s=1e-6, bytes=500, uses=HBM), hbm=100)
    assert spans(timeline) == {"a": (0, 9)}


def test_a_flow_of_next_to_nothing_still_takes_its_core_time() -> None:
    timeline = simulate(transfer("a", 10, delay_s=1e-6, bytes=1e-3, uses=HBM), hbm=100)
    assert spans(timeline) == {"a": (0, 11)}


def test_two_flows_share_a_link_equally() -> None:
    """200 B and 600 B at 100 B/us: 50 each until the first ends at 4 us, then 100 for 400 B."""
    timeline = simulate(
        transfer("a", bytes=200, uses=HBM), transfer("b", bytes=600, uses=HBM), hbm=100
    )
    assert spans(timeline) == {"a": (0, 4), "b": (0, 8)}


def test_flows_that_contend_slow_down_by_the_same_factor() -> None:
    """Alone a draws 25 B/us (250 B over 10 us) and b 100: 125 on 100 B/us, so both go at 4/5.

    b ends at 5 us, at 80 B/us. By then a has drained 100 B, at 20 B/us; its last 150 take 6 us.
    """
    timeline = simulate(
        transfer("a", 10, bytes=250, uses=HBM), transfer("b", bytes=400, uses=HBM), hbm=100
    )
    assert spans(timeline) == {"a": (0, 11), "b": (0, 5)}


def test_a_weight_counts_on_its_link() -> None:
    """Weights 1 and 4 on 100 B/us: alone they draw 100 and 25 B/us, and each fills the link.

    Together both go at half of that: a takes 4 us, and b, with 150 B left then, 6 us more.
    """
    timeline = simulate(
        transfer("a", bytes=200, uses=HBM), transfer("b", bytes=200, uses=(("hbm", 4),)), hbm=100
    )
    assert spans(timeline) == {"a": (0, 4), "b": (0, 10)}
    assert timeline.links[0].volume_nb == 1000 * 10**9


@pytest.mark.parametrize(("nbytes", "weight"), [(128, 1), (2, 64)])
def test_the_unit_of_a_volume_does_not_matter(nbytes: float, weight: int) -> None:
    """2 B of weight 64 load a link as 128 B of weight 1 do, and b has half of it for 2 us."""
    timeline = simulate(
        transfer("a", bytes=nbytes, uses=(("hbm", weight),)),
        transfer("b", bytes=384, uses=HBM),
        hbm=128,
    )
    assert spans(timeline) == {"a": (0, 2), "b": (0, 4)}


def test_a_link_named_twice_is_used_twice() -> None:
    timeline = simulate(transfer("a", bytes=200, uses=(*HBM, *HBM)), hbm=100)
    assert spans(timeline) == {"a": (0, 4)}


def test_a_flow_held_back_elsewhere_leaves_its_share() -> None:
    """a and c share x at half of its 20 B/us each, so a leaves 90 B/us of hbm to b.

    a would draw 20 B/us alone, and b 100: on hbm alone they would both go at 5/6 of that.
    """
    timeline = simulate(
        transfer("a", bytes=100, uses=(("x", 1), ("hbm", 1))),
        transfer("b", bytes=450, uses=HBM),
        transfer("c", bytes=100, uses=(("x", 1),)),
        hbm=100,
        x=20,
    )
    assert spans(timeline) == {"a": (0, 10), "b": (0, 5), "c": (0, 10)}


def test_a_transfer_slows_the_computation_that_needs_the_hbm() -> None:
    """Alone the task draws 60 B/us and the transfer 100: 160 on 100 B/us, so both go at 5/8.

    The transfer takes 4 us, at 62.5 B/us. Of the task's 600 B, 150 are drained by then, at 37.5;
    the other 450 take 7.5 us at its cap.
    """
    timeline = simulate(
        transfer("load", bytes=250, uses=HBM), task("dot", 10, bytes=600, uses=HBM), hbm=100
    )
    assert spans(timeline) == {"load": (0, 4), "dot": (0, 11.5)}


def test_a_transfer_that_fits_beside_a_computation_slows_nothing() -> None:
    timeline = simulate(
        transfer("load", 10, bytes=200, uses=HBM), task("dot", 10, bytes=800, uses=HBM), hbm=100
    )
    assert spans(timeline) == {"load": (0, 10), "dot": (0, 10)}


def test_a_flow_that_starts_in_the_middle_finds_what_is_left() -> None:
    """b starts after 3 us, when a has 200 of 500 B left; both then get 50 B/us."""
    timeline = simulate(
        transfer("a", bytes=500, uses=HBM),
        transfer("b", delay_s=3e-6, bytes=250, uses=HBM),
        hbm=100,
    )
    assert spans(timeline) == {"a": (0, 7), "b": (0, 7.5)}


def test_a_task_after_a_crowd_is_as_fast_as_ever() -> None:
    crowd = [transfer(f"t{at}", bytes=37 + at, uses=HBM) for at in range(9)]
    last = task("last", delay_s=1e-6, bytes=333, uses=HBM, deps=tuple(Dep(t.name) for t in crowd))
    record = simulate(*crowd, last, hbm=100).tasks[-1]
    assert record.name == "last"
    assert record.duration_ps == 4_330_000


@pytest.mark.parametrize(("compute", "load"), [(5, 3), (3, 5), (4, 4)])
def test_prefetch_of_depth_one_hides_the_shorter_of_the_two(compute: int, load: int) -> None:
    trips = 6
    timeline = simulate(
        loop(
            trips,
            transfer("load", load, deps=(Dep("dot", 1), Dep("load", 1))),
            task("dot", compute, deps=(Dep("load", 1),)),
        )
    )
    # The first computation waits for nothing, and the last load is waited for at the end.
    hidden = trips * min(compute, load)
    assert timeline.total_ps == (trips * (compute + load) - hidden) * 1_000_000


def test_a_wait_names_what_the_core_waits_for() -> None:
    timeline = simulate(
        transfer("a", 3), transfer("b", 5), task("dot", 1, deps=(Dep("a"), Dep("b"))), task("c", 1)
    )
    assert waits(timeline) == [("a", 0, 3), ("b", 3, 5)]


def flow(cap: int, uses: dict[int, int]) -> TaskStep:
    return TaskStep(
        task=task("a"), index=0, stream=0, delay_ps=0, work_ps=0, volume=1, cap=cap,
        uses=tuple(uses.items()), alone_ps=1,
    )  # fmt: skip


def drawn(steps: list[TaskStep], rates: list[int], link: int) -> int:
    return sum(dict(each.uses).get(link, 0) * rate for each, rate in zip(steps, rates, strict=True))


LINKS = range(4)
SLACK = 64 * 4 * 7 * 4  # a unit of 64, on each of 4 weights, 7 flows and 4 links

uses = st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1)
# The smallest share of the smallest cap is then more than 1 nB/ps, so no rate is rounded up.
step = st.builds(flow, st.integers(10**6, 10**9), uses)
capacities = st.lists(st.integers(10**6, 10**9), min_size=4, max_size=4)


@examples(600)
@given(st.lists(step, min_size=1, max_size=8), capacities)
def test_rates_are_max_min_fair(steps: list[TaskStep], rooms: list[int]) -> None:
    """No link is overdrawn, and a flow below its cap has the largest share of it on a full link.

    To rounding: a rate is less than 1 nB/ps below what is due, and a link as much for each weight.
    """
    rates = fair_rates(steps, rooms)
    flows = list(zip(steps, rates, strict=True))
    left = [rooms[link] - drawn(steps, rates, link) for link in LINKS]
    weights = [drawn(steps, [1] * len(steps), link) for link in LINKS]
    assert min(left) >= 0
    for each, rate in flows:
        assert rate == each.cap or any(
            left[link] < weights[link]
            and all(r * each.cap < (rate + 1) * s.cap for s, r in flows if link in dict(s.uses))
            for link, _ in each.uses
        )


@settings(max_examples=300)
@given(st.lists(step, max_size=6), st.integers(10**5, 10**7), uses, capacities)
def test_the_unit_of_a_rate_does_not_matter(
    others: list[TaskStep], cap: int, weights: dict[int, int], rooms: list[int]
) -> None:
    """A flow of 1/64 of the rate and 64 times the weights leaves all shares as they were.

    Its rate is rounded to 1 nB/ps, 64 of before, and the room that this leaves goes to the others.
    """
    coarse = {link: 64 * weight for link, weight in weights.items()}
    fine = fair_rates([flow(64 * cap, weights), *others], rooms)
    scaled = fair_rates([flow(cap, coarse), *others], rooms)
    assert 64 * scaled[0] == pytest.approx(fine[0], abs=SLACK)
    assert scaled[1:] == pytest.approx(fine[1:], abs=SLACK)


@given(st.lists(step, min_size=1, max_size=6))
def test_the_order_of_flows_does_not_matter(steps: list[TaskStep]) -> None:
    rooms = [3 * 10**7, 10**8, 5 * 10**8, 10**9]
    assert fair_rates(steps, rooms) == fair_rates(steps[::-1], rooms)[::-1]

"""Who gets how much of a link, in closed form (links in bytes a microsecond)."""

import pytest
from engine_programs import loop, simulate, spans, task, transfer, waits
from hypothesis import given
from hypothesis import strategies as st

from tpusim.engine.code import Step
from tpusim.engine.filling import fair_rates
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


def test_a_weight_counts_on_its_link() -> None:
    """Weights 1 and 4 on 100 B/us: both rise to 20 B/us."""
    timeline = simulate(
        transfer("a", bytes=200, uses=HBM), transfer("b", bytes=200, uses=(("hbm", 4),)), hbm=100
    )
    assert spans(timeline) == {"a": (0, 10), "b": (0, 10)}
    assert timeline.links[0].volume_nb == 1000 * 10**9


def test_a_link_named_twice_is_used_twice() -> None:
    timeline = simulate(transfer("a", bytes=200, uses=(*HBM, *HBM)), hbm=100)
    assert spans(timeline) == {"a": (0, 4)}


def test_what_a_cap_leaves_goes_to_the_others() -> None:
    """a: 100 B over 10 us, a cap of 10 B/us; b gets the other 90 B/us."""
    timeline = simulate(
        transfer("a", 10, bytes=100, uses=HBM), transfer("b", bytes=450, uses=HBM), hbm=100
    )
    assert spans(timeline) == {"a": (0, 10), "b": (0, 5)}


def test_a_flow_held_back_elsewhere_leaves_its_share() -> None:
    """a crosses x and hbm and gets 20 of x; b gets the other 80 of hbm, not half of it."""
    timeline = simulate(
        transfer("a", bytes=200, uses=(("x", 1), ("hbm", 1))),
        transfer("b", bytes=400, uses=HBM),
        hbm=100,
        x=20,
    )
    assert spans(timeline) == {"a": (0, 10), "b": (0, 5)}


def test_a_transfer_slows_the_computation_that_needs_the_hbm() -> None:
    """The task draws 80 B/us alone; with a transfer beside it for 4 us at 50 each, 120 B are late.

    Of its 800 B, 200 are drained when the transfer ends; the other 600 take 7.5 us at its cap.
    """
    timeline = simulate(
        transfer("load", bytes=200, uses=HBM), task("dot", 10, bytes=800, uses=HBM), hbm=100
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


step = st.builds(
    lambda cap, uses: Step(
        task=task("a"),
        index=0,
        stream=0,
        delay_ps=0,
        work_ps=0,
        volume=1,
        cap=cap,
        uses=tuple(uses.items()),
        alone_ps=1,
    ),
    st.integers(1, 10**9),
    st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1),
)


@given(st.lists(step, min_size=1, max_size=8), st.lists(st.integers(10**6, 10**9), min_size=4))
def test_rates_are_max_min_fair(steps: list[Step], capacities: list[int]) -> None:
    """No link is overdrawn, and a flow below its cap has the highest rate on some full link."""
    rates = fair_rates(steps, capacities)
    drawn = [0] * len(capacities)
    for each, rate in zip(steps, rates, strict=True):
        for link, weight in each.uses:
            drawn[link] += weight * rate
    assert all(used <= room for used, room in zip(drawn, capacities, strict=True))
    for each, rate in zip(steps, rates, strict=True):
        assert rate == each.cap or any(
            capacities[link] - drawn[link] < 4 * len(steps)
            and rate == max(r for s, r in zip(steps, rates, strict=True) if link in dict(s.uses))
            for link, _ in each.uses
        )


@given(st.lists(step, min_size=1, max_size=6))
def test_the_order_of_flows_does_not_matter(steps: list[Step]) -> None:
    capacities = [3 * 10**7, 10**8, 5 * 10**8, 10**9]
    assert fair_rates(steps, capacities) == fair_rates(steps[::-1], capacities)[::-1]

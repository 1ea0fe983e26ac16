"""Requests that are held until each data-parallel rank can begin one."""

import pytest
from servers import MS, AffineCosts, traffic

from tpusim.server import Policy, Served, serve

LONG = 10**13


def served(arrival: list[int], output: list[int], hold_ps: int) -> Served:
    policy = Policy(ranks=2, pages=100, page_size=16, max_num_seqs=8, hold_ps=hold_ps)
    asked = traffic([64] * len(arrival), output, arrival)
    return serve(asked, policy, AffineCosts())


def test_a_request_waits_for_one_more_where_all_ranks_decode() -> None:
    """Both ranks decode when the third request comes; the fourth lets both go."""
    found = served([0, 0, 20 * MS, 60 * MS], [100, 100, 5, 5], LONG)
    assert found.scheduled_ps[2] == found.scheduled_ps[3] >= 60 * MS
    assert found.scheduled_ps[2] < 65 * MS
    at_once = served([0, 0, 20 * MS, 60 * MS], [100, 100, 5, 5], 0)
    assert at_once.scheduled_ps[2] < 25 * MS


def test_a_request_goes_to_an_idle_rank_at_once() -> None:
    found = served([0, 20 * MS], [100, 5], LONG)
    assert found.scheduled_ps[1] < 25 * MS


@pytest.mark.parametrize("hold", [30 * MS, 70 * MS])
def test_no_request_is_held_longer_than_that(hold: int) -> None:
    """Counted from the last time that requests went, which is the start."""
    found = served([0, 0, 20 * MS], [100, 100, 5], hold)
    assert hold <= found.scheduled_ps[2] < hold + 5 * MS


def test_the_last_request_goes_when_a_rank_is_idle() -> None:
    """The rank of the shorter answer is idle once it is complete."""
    found = served([0, 0, 20 * MS], [100, 30, 5], LONG)
    assert found.last_ps[1] <= found.scheduled_ps[2] <= found.last_ps[1] + 5 * MS
    assert (found.output == [100, 30, 5]).all()

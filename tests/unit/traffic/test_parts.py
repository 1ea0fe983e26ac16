"""Traffic made shorter and longer."""

import numpy as np

import tpusim as ts
from tpusim.traffic import Requests
from tpusim.traffic.parts import first_requests, repeated


def test_the_first_requests_are_those_of_the_traffic() -> None:
    traffic = ts.Traffic.poisson(rate=2.0, requests=50, prompt=ts.Lengths.uniform(1, 9), output=3)
    first = first_requests(traffic, 7)
    assert len(first.requests) == 7
    assert (first.requests.arrival_ps == traffic.requests.arrival_ps[:7]).all()
    assert (first.requests.prompt == traffic.requests.prompt[:7]).all()
    assert (first.rate, first.users) == (2.0, 0)
    assert len(first_requests(traffic, 99).requests) == 50


def test_rounds_follow_at_the_mean_interval_and_share_no_prefix() -> None:
    given = Requests(
        arrival_ps=np.array([0, 10**12], np.int64), prompt=np.array([4, 8], np.int64),
        output=np.array([1, 2], np.int64), prefixes=((1,), (1, 2)), block=4,
    )  # fmt: skip
    longer = repeated(ts.Traffic(requests=given, rate=1.0), 5).requests
    assert longer.arrival_ps.tolist() == [each * 10**12 for each in range(6)]
    assert longer.prompt.tolist() == [4, 8] * 3
    assert longer.prefixes == ((1,), (1, 2), (4,), (4, 5), (7,), (7, 8))


def test_a_closed_loop_stays_one() -> None:
    traffic = ts.Traffic.closed_loop(users=3, requests=10, prompt=4, output=2)
    longer = repeated(traffic, 25)
    assert (len(longer.requests), longer.users) == (30, 3)
    assert not longer.requests.arrival_ps.any()
    assert repeated(traffic, 10) is traffic

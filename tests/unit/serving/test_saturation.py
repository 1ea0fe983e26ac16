"""Saturation of a server with one request at a time, each of one second (M/D/1)."""

import numpy as np
import pytest
from small_servers import SECOND, by_hand

from tpusim.server import Served
from tpusim.serving.saturation import load_of


def one_at_a_time(rate: float, count: int, seed: int, spread: float = 0.0) -> Served:
    """Requests of a Poisson process, served in order for a second each, or more and less."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(SECOND / rate, count)).astype(np.int64)
    lengths = (SECOND * (1 + spread * random.uniform(-1, 1, count))).astype(np.int64)
    end, start = 0, np.zeros(count, np.int64)
    for number in range(count):
        start[number] = max(end, arrival[number])
        end = start[number] + lengths[number]
    last = start + lengths
    return by_hand(arrival_ps=arrival, scheduled_ps=start, first_ps=last, last_ps=last)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rate", [0.5, 0.9, 0.98])
@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_a_stable_server_is_not_saturated(rate: float, spread: float, seed: int) -> None:
    for count in (100, 1000, 5000):
        served = one_at_a_time(rate, count, seed, spread)
        assert not load_of(served, rate).saturated
        assert not load_of(served).saturated


@pytest.mark.parametrize("seed", range(20))
def test_requests_that_outrun_a_server_saturate_it(seed: int) -> None:
    for rate, count in ((1.1, 1000), (1.5, 200), (2.0, 100)):
        load = load_of(one_at_a_time(rate, count, seed), rate)
        assert load.saturated, (rate, count)
        assert load.sustainable == pytest.approx(1, rel=0.02)
        assert load.offered == rate


@pytest.mark.parametrize("seed", range(4))
def test_two_percent_too_many_are_seen_in_long_traffic(seed: int) -> None:
    served = one_at_a_time(1.02, 50_000, seed)
    assert load_of(served, 1.02).saturated
    assert load_of(served, 1.02).sustainable == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_without_a_rate_the_growth_of_the_queue_decides(seed: int) -> None:
    served = one_at_a_time(1.5, 1000, seed)
    found = load_of(served)
    assert found.saturated
    assert found.offered == pytest.approx(1.5, rel=0.15)
    assert found.sustainable == pytest.approx(1, rel=0.01)


def test_a_closed_loop_and_a_burst_saturate_nothing() -> None:
    served = one_at_a_time(2.0, 1000, 0)
    assert not load_of(served, users=8).saturated
    zero = np.zeros(1000, np.int64)
    burst = by_hand(arrival_ps=zero, scheduled_ps=served.scheduled_ps)
    assert load_of(burst).offered == float("inf")
    assert not load_of(burst).saturated
    assert not load_of(by_hand(arrival_ps=zero[:0])).saturated

"""The metrics of serving on requests by hand: each number follows from its definition."""

import numpy as np
import pytest
from small_servers import MILLISECOND, SECOND, by_hand, column, spans

from tpusim.base import PlanError
from tpusim.base.quantiles import weighted_quantiles
from tpusim.server import Policy
from tpusim.serving import NUMBERS, TIMES, goodput
from tpusim.serving.metrics import measure
from tpusim.serving.server_time import bounds_of, time_of

TWO = by_hand(
    arrival_ps=column(SECOND, 2 * SECOND),
    scheduled_ps=column(SECOND, 3 * SECOND),
    first_ps=column(2 * SECOND, 5 * SECOND),
    last_ps=column(4 * SECOND, 11 * SECOND),
    prompt=column(100, 300),
    output=column(3, 7),
    cached=column(0, 100),
    preemptions=column(0, 2),
    gaps=(column(SECOND, 2 * SECOND), column(8, 2)),
    spans=spans(
        (SECOND, 4 * SECOND, 3 * SECOND, 3, 0, 1, 100, 4, 1),
        (4 * SECOND, 11 * SECOND, 5 * SECOND, 5, 0, 3, 0, 2, 0),
    ),
)  # fmt: skip


def test_times_follow_from_their_definitions() -> None:
    times = measure(TWO, pages=10).times
    assert set(times) == set(TIMES)
    assert times["ttft"].p50 == pytest.approx((1 + 3) / 2)
    assert times["tpot"].p50 == pytest.approx((2 / 2 + 6 / 6) / 2)
    assert times["e2e"].maximum == pytest.approx(9)
    assert times["queue"].mean == pytest.approx(0.5)
    assert times["ttft"].p90 == pytest.approx(np.quantile([1, 3], 0.9))


def test_gaps_are_those_of_the_histogram_written_out() -> None:
    found = measure(TWO, pages=10).times["itl"]
    written = np.array([1.0] * 8 + [2.0] * 2)
    assert found.mean == pytest.approx(written.mean())
    expected = np.quantile(written, [0.5, 0.9, 0.95, 0.99])
    assert (found.p50, found.p90, found.p95, found.p99) == pytest.approx(expected)


def test_numbers_follow_from_their_definitions() -> None:
    found = measure(TWO, pages=10)
    assert set(found.numbers) == set(NUMBERS)
    assert found.duration_s == pytest.approx(10)
    assert found.numbers == pytest.approx({
        "refused": 0, "requests_per_s": 0.2, "input_tokens_per_s": 40, "output_tokens_per_s": 1,
        "total_tokens_per_s": 41, "batch": (3 * 1 + 5 * 3) / 8,
        "cache_use": (3 * 0.4 + 7 * 0.2) / 10, "cache_peak": 0.4, "utilisation": 0.8,
        "preemptions": 2, "prefix_hit_rate": 100 / 400,
    })  # fmt: skip


def test_a_request_of_one_token_has_no_tpot() -> None:
    served = by_hand(
        arrival_ps=column(0, 0), first_ps=column(SECOND, SECOND),
        last_ps=column(SECOND, 5 * SECOND), output=column(1, 3),
    )  # fmt: skip
    assert measure(served, pages=1).times["tpot"].p50 == pytest.approx(2)


def test_refused_requests_are_counted_and_nothing_else_of_them() -> None:
    served = by_hand(
        arrival_ps=column(0, SECOND), scheduled_ps=column(-1, SECOND),
        first_ps=column(-1, 3 * SECOND), last_ps=column(-1, 3 * SECOND),
        prompt=column(10**6, 10), output=column(0, 1),
    )  # fmt: skip
    found = measure(served, pages=1)
    assert (found.requests, found.numbers["refused"]) == (1, 1)
    assert found.times["ttft"].p50 == found.times["ttft"].maximum == pytest.approx(2)
    assert found.numbers["input_tokens_per_s"] == pytest.approx(5)
    assert goodput(served, {"ttft": 5.0}) == (1.0, pytest.approx(0.5))


def test_nothing_served_is_no_division_by_zero() -> None:
    found = measure(by_hand(arrival_ps=column()), pages=0)
    assert found.requests == 0
    assert np.isnan(found.times["itl"].mean)
    assert np.isnan(found.times["ttft"].p99)


def test_replicas_share_the_cache_and_the_time() -> None:
    found = measure(TWO, pages=10, replicas=2).numbers
    assert found["utilisation"] == pytest.approx(0.4)
    assert found["cache_use"] == pytest.approx(0.13)


def test_goodput_counts_requests_that_meet_every_target() -> None:
    assert goodput(TWO, {"ttft": 1.0}) == (0.5, pytest.approx(0.1))
    assert goodput(TWO, {"ttft": 3.0, "tpot": 1.0}).share == 1
    assert goodput(TWO, {"ttft": 3.0, "tpot": 0.9}).share == 0
    assert goodput(TWO, {"e2e": 3.0}).share == 0.5
    with pytest.raises(PlanError, match=r"no request has a 'ttfp'; did you mean 'ttft'"):
        goodput(TWO, {"ttfp": 1.0})


def test_the_time_of_a_server_is_that_of_its_parts() -> None:
    policy = Policy(pages=1, page_size=16, host_ps=100 * MILLISECOND)
    time = time_of(TWO, policy)
    assert time.facts() == pytest.approx(
        {"prefill": 3 - 0.3, "decode": 5 - 0.5, "host": 0.8, "idle": 2}
    )
    assert sum(time.facts().values()) == pytest.approx(10)
    bounds = bounds_of(time, None, None)
    assert bounds == pytest.approx({"steps": 7.2 / 8, "host": 0.1})


@pytest.mark.parametrize("seed", range(5))
def test_weighted_quantiles_are_those_of_numpy(seed: int) -> None:
    random = np.random.default_rng(seed)
    values, counts = random.integers(0, 1000, 30), random.integers(1, 9, 30)
    shares = [0.0, 0.1, 0.5, 0.9, 0.99, 1.0]
    written = np.repeat(values, counts)
    assert weighted_quantiles(values, counts, shares) == pytest.approx(np.quantile(written, shares))

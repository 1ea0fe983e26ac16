"""Traffic that is drawn: its arrivals, its lengths, its words, and what it refuses."""

import math
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tpusim import TpusimError
from tpusim.traffic import Lengths, Requests, Traffic

SEEDS = 60
COUNT = 4000
LENGTHS: dict[str, Any] = {"prompt": Lengths.uniform(500, 1500), "output": 128}


def intervals(rate: float, burstiness: float, seed: int) -> Any:
    traffic = Traffic.poisson(
        rate=rate, burstiness=burstiness, requests=COUNT + 1, prompt=1, output=1, seed=seed
    )
    return np.diff(traffic.requests.arrival_ps) / 1e12


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_have_the_mean_and_the_variation_of_a_gamma_distribution(
    burstiness: float,
) -> None:
    """Over all seeds; the bounds are five standard errors of the mean and of the variance."""
    found = np.concatenate([intervals(5.0, burstiness, seed) for seed in range(SEEDS)])
    many, cv = len(found), 1 / math.sqrt(burstiness)
    assert found.mean() * 5 == pytest.approx(1, abs=5 * cv / math.sqrt(many))
    kurtosis = 3 + 6 / burstiness
    error = cv**2 * math.sqrt((kurtosis - 1) / many)
    assert (found * 5).var() == pytest.approx(cv**2, abs=5 * error)


@pytest.mark.parametrize("seed", range(5))
def test_poisson_intervals_are_exponential(seed: int) -> None:
    """Kolmogorov and Smirnov's distance, below its 0.9999 quantile."""
    found = np.sort(intervals(3.0, 1.0, seed))
    expected = 1 - np.exp(-3.0 * found)
    steps = np.arange(COUNT + 1) / COUNT
    distance = max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())
    assert distance * math.sqrt(COUNT) < 2.23


def test_intervals_do_not_depend_on_one_another() -> None:
    found = np.concatenate([intervals(2.0, 1.0, seed) for seed in range(SEEDS)])
    correlation = np.corrcoef(found[1:], found[:-1])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(len(found))


def test_an_infinite_burstiness_makes_equal_intervals() -> None:
    traffic = Traffic.poisson(rate=8, burstiness=math.inf, requests=5, prompt=1, output=1)
    assert traffic.requests.arrival_ps.tolist() == [125_000_000_000 * at for at in range(5)]
    assert str(traffic) == "equal intervals, 8 requests/s: 5 requests of 1 tokens in, 1 out"


def columns(traffic: Traffic) -> list[bytes]:
    requests = traffic.requests
    return [each.tobytes() for each in (requests.arrival_ps, requests.prompt, requests.output)]


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    given = {"requests": 1000, "prompt": Lengths.vllm(900, 0.5), "output": Lengths.uniform(1, 99)}
    first, again, other = (Traffic.poisson(rate=2, seed=seed, **given) for seed in (7, 7, 8))
    assert columns(first) == columns(again)
    assert all(one != two for one, two in zip(columns(first), columns(other), strict=True))


ARRIVALS = [0, 104651619558, 698218360703, 1082031746155]
PROMPTS = [1212, 600, 659, 1133]


def test_bytes_of_today_are_those_of_tomorrow() -> None:
    """A seed means the same traffic in every release of tpusim."""
    requests = Traffic.poisson(rate=2, requests=4, seed=3, **LENGTHS).requests
    assert requests.arrival_ps.tolist() == ARRIVALS
    assert requests.prompt.tolist() == PROMPTS


def test_arrivals_prompts_and_outputs_are_drawn_independently() -> None:
    given = {"requests": 1000, "output": Lengths.uniform(1, 1000), "seed": 1}
    slow = Traffic.poisson(rate=1, prompt=Lengths.uniform(1, 1000), **given).requests
    fast = Traffic.poisson(rate=4, prompt=7, **given).requests
    assert slow.output.tolist() == fast.output.tolist()
    assert np.abs(slow.arrival_ps - 4 * fast.arrival_ps).max() <= 4
    assert abs(np.corrcoef(slow.prompt, slow.output)[0, 1]) < 5 / math.sqrt(1000)


def test_a_burst_and_a_closed_loop_have_no_arrival_times() -> None:
    burst = Traffic.burst(requests=3, prompt=1024, output=128)
    loop = Traffic.closed_loop(users=64, requests=3, prompt=1024, output=128)
    assert burst.requests.arrival_ps.tolist() == loop.requests.arrival_ps.tolist() == [0, 0, 0]
    assert (burst.users, loop.users, burst.rate, loop.rate) == (0, 64, 0, 0)
    assert str(burst) == "all at once: 3 requests of 1,024 tokens in, 128 out"
    assert str(loop) == "closed loop, 64 users: 3 requests of 1,024 tokens in, 128 out"


def test_traffic_says_its_rate_its_burstiness_and_its_lengths() -> None:
    traffic = Traffic.poisson(
        rate=0.5, burstiness=0.25, requests=2, pairs=[(100, 10), (300, 10)], seed=1
    )
    assert traffic.said == str(traffic)
    assert str(traffic) == (
        "gamma intervals with burstiness 0.25, 0.5 requests/s: "
        "2 requests of 100 to 300 (mean 200) tokens in, 10 out"
    )


def test_pairs_stay_together_and_are_all_drawn_before_one_is_drawn_again() -> None:
    pairs = [(at, 1000 + at) for at in range(1, 11)]
    requests = Traffic.burst(requests=25, pairs=pairs, seed=2).requests
    assert (requests.output - requests.prompt == 1000).all()
    rounds = [sorted(requests.prompt[at : at + 10]) for at in (0, 10)]
    assert rounds == [list(range(1, 11))] * 2
    assert len(set(requests.prompt[20:].tolist())) == 5
    assert requests.prompt[:10].tolist() != requests.prompt[10:20].tolist()


def test_pairs_of_other_traffic_keep_their_prefixes() -> None:
    known = Requests(
        arrival_ps=np.array([0, 5]),
        prompt=np.array([600, 40]),
        output=np.array([1, 2]),
        prefixes=((7, 8), (9,)),
        block=512,
    )
    drawn = Traffic.closed_loop(users=1, requests=6, pairs=Traffic(requests=known)).requests
    assert drawn.block == 512
    expected = {600: (7, 8), 40: (9,)}
    assert [expected[tokens] for tokens in drawn.prompt.tolist()] == list(drawn.prefixes)


@pytest.mark.parametrize("factor", [0.5, 3])
def test_scaled_traffic_has_the_same_requests_at_another_rate(factor: float) -> None:
    traffic = Traffic.poisson(rate=2, requests=500, **LENGTHS)
    scaled = traffic.scaled(factor)
    assert scaled.rate == 2 * factor
    assert scaled.requests.prompt is traffic.requests.prompt
    wanted = traffic.requests.arrival_ps / factor
    assert np.abs(scaled.requests.arrival_ps - wanted).max() <= 0.5
    assert f"{2 * factor:g} requests/s" in scaled.said


def test_a_million_requests_take_under_a_second_and_200_mb() -> None:
    lengths = {"prompt": Lengths.log_normal(1000, p90=3000), "output": Lengths.vllm(128, 0.8)}
    began = time.process_time()
    Traffic.poisson(rate=100, burstiness=0.5, requests=1_000_000, **lengths)
    assert time.process_time() - began < 1
    tracemalloc.start()
    Traffic.poisson(rate=100, burstiness=0.5, requests=1_000_000, **lengths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6


EMPTY = np.array([], dtype=np.int64)
NONE = Requests(arrival_ps=EMPTY, prompt=EMPTY, output=EMPTY)
OPEN: dict[str, Any] = {"rate": 1, "requests": 10, "prompt": 8, "output": 8}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 0}, "rate is 0; write a number from 1e-12 to 1e+12 requests per second;"),
        ({"rate": math.nan}, "rate is nan"),
        ({"rate": -1}, "rate is -1"),
        ({"rate": math.inf}, "Traffic.burst sends all at once"),
        ({"rate": "4"}, "rate is '4'"),
        ({"rate": 1e-7}, "the last of 10 requests arrives after"),
        ({"burstiness": 0}, "burstiness is 0"),
        ({"burstiness": math.nan}, "burstiness is nan"),
        ({"requests": 0}, "requests is 0; write a whole number from 1 to 50,000,000"),
        ({"requests": 10**12}, "requests is 1000000000000"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"prompt": 0}, "prompt is 0"),
        ({"output": None}, "no output; write tokens, such as output=128"),
        ({"pairs": [(1, 2)]}, "pairs beside prompt or output"),
        ({"promt": 3}, "poisson has no argument 'promt'; did you mean 'prompt'?"),
    ],
)
def test_traffic_that_cannot_be_is_refused_in_a_sentence(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(TpusimError) as caught:
        Traffic.poisson(**(OPEN | changes))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Traffic.closed_loop(users=0, requests=1, prompt=1, output=1), "users is 0"),
        (lambda: Traffic.poisson(requests=1), "poisson needs rate; write poisson(rate=..., "),
        (lambda: Traffic.burst(requests=1, pairs=[]), "pairs is no list of lengths"),
        (lambda: Traffic.burst(requests=1, pairs=[(1, 2, 3)]), "pairs is no list of lengths"),
        (lambda: Traffic.burst(requests=1, pairs=[(1, 0)]), "output of a pair is 0"),
        (lambda: Traffic.burst(requests=1, pairs=5), "pairs is no list of lengths"),
        (lambda: Traffic.burst(requests=1, pairs=Traffic(requests=NONE)), "pairs is no list of"),
        (
            lambda: Traffic.burst(requests=2, prompt=1, output=1).scaled(2),
            "has no arrival times",
        ),
        (lambda: Traffic.poisson(**OPEN).scaled(0), "factor of the rate is 0"),
        (lambda: Traffic.poisson(**(OPEN | {"rate": 0.1})).scaled(1e-6), "after 106 days"),
    ],
)
def test_other_calls_that_cannot_be_are_refused_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(TpusimError) as caught:
        make()
    assert words in str(caught.value)


def test_traffic_of_columns_is_scaled_as_well() -> None:
    two = np.array([2, 4])
    traffic = Traffic(requests=Requests(arrival_ps=two, prompt=two, output=two))
    assert traffic.scaled(2).requests.arrival_ps.tolist() == [1, 2]
    assert str(traffic) == "columns: 2 requests of 2 to 4 (mean 3) tokens in, 2 to 4 (mean 3) out"
    assert str(Traffic(requests=NONE)) == "no requests"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrival_ps": np.array([5, 4])}, "not in ascending order"),
        ({"arrival_ps": np.array([-1, 4])}, "arrival_ps has -1; write at least 0"),
        ({"prompt": np.array([1, 0])}, "prompt has 0; write at least 1"),
        ({"output": np.array([1.0, 2.0])}, "output is not a column of int64"),
        ({"output": [1, 2]}, "output is not a column of int64"),
        ({"output": np.array([1])}, "output has 1 elements and prompt 2"),
        ({"prefixes": ((1,), ())}, "or neither"),
        ({"prefixes": ((1,),), "block": 16}, "1 prefixes of blocks of 16 tokens for 2 requests"),
        ({"block": 16}, "or neither"),
    ],
)
def test_columns_that_are_no_requests_are_refused(changes: dict[str, Any], words: str) -> None:
    two = np.array([1, 2])
    requests = Requests(arrival_ps=two, prompt=two, output=two)
    with pytest.raises(TpusimError) as caught:
        replace(requests, **changes)
    assert words in str(caught.value)

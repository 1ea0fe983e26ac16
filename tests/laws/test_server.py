"""Laws of the server: what it must agree with, whatever the traffic and the policy."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from extent import seeds, thorough
from servers import MS, AffineCosts, poisson, random_server, rows, traffic
from token_by_token import token_by_token

from tpusim.server import DecodePool, Outage, Policy, StepLoad, serve
from tpusim.server.moments import Moment


@pytest.mark.parametrize("hundred", [thorough(at) if at else at for at in range(10)])
def test_runs_of_decode_steps_equal_single_steps(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + (20 if not hundred else 100)):
        asked, policy, more = random_server(seed)
        folded = serve(asked, policy, AffineCosts(), **more)
        single = serve(asked, policy, AffineCosts(), fold=False, **more)
        assert rows(folded) == rows(single), seed
        assert folded.present_ps == single.present_ps
        assert folded.gaps[1].sum() == single.gaps[1].sum()
        assert folded.spans.steps.sum() == single.spans.steps.sum()


@pytest.mark.parametrize("share", [0.95, 1.0, 1.05])
def test_near_capacity_runs_equal_single_steps(share: float) -> None:
    policy = Policy(pages=400, page_size=16, max_num_seqs=16, max_num_batched_tokens=512)
    busy = serve(poisson(1000, 1e6), policy, AffineCosts())
    capacity = 1000 / (busy.last_ps.max() / 1e12)
    asked = poisson(1000, share * capacity, seed=1)
    folded = serve(asked, policy, AffineCosts())
    single = serve(asked, policy, AffineCosts(), fold=False)
    assert rows(folded) == rows(single)
    assert len(folded.spans.steps) < 0.8 * len(single.spans.steps)


class TableCosts(AffineCosts):
    """Steps padded to 8, 16, 32, ... sequences, and runs interpolated between their ends."""

    def one(self, decodes: int, context: int) -> int:
        padded = 1 << max(3, (decodes - 1).bit_length())
        return self.step + self.decode * padded + int(max(context, 0) ** 1.2 * self.key)

    def step_ps(self, load: StepLoad) -> int:
        return self.one(load.decodes, load.context) + self.prompt * load.prefills

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        last = self.one(decodes, context + (steps - 1) * growth)
        return steps * (self.one(decodes, context) + last) // 2


@pytest.mark.parametrize("share", [thorough(0.5), 0.95, thorough(1.0), 1.05])
def test_interpolated_runs_agree_within_one_percent(share: float) -> None:
    policy = Policy(pages=400, page_size=16, max_num_seqs=16, max_num_batched_tokens=512)
    busy = serve(poisson(1500, 1e6), policy, TableCosts())
    asked = poisson(1500, share * 1500 / (busy.last_ps.max() / 1e12), seed=2)
    folded = serve(asked, policy, TableCosts())
    single = serve(asked, policy, TableCosts(), fold=False)
    tokens = np.maximum(asked.requests.output - 1, 1)
    for of in (
        lambda served: served.last_ps.max(),
        lambda served: (served.first_ps - served.arrival_ps).mean(),
        lambda served: ((served.last_ps - served.first_ps) / tokens).mean(),
    ):
        assert of(folded) == pytest.approx(of(single), rel=0.01)


@pytest.mark.parametrize("output", [20, 2000])
def test_events_follow_requests_and_not_tokens(
    output: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def count(moment: Moment, *args: Any) -> None:
        nonlocal made
        made += 1
        plain(moment, *args)

    plain = Moment.__init__
    monkeypatch.setattr(Moment, "__init__", count)
    asked = poisson(500, 1_000 / output, output=output)
    served = serve(asked, Policy(pages=10_000), AffineCosts())
    assert served.output.sum() > 400 * output
    assert made <= 5 * 500
    assert len(served.spans.steps) <= 3 * 500


@pytest.mark.parametrize("hundred", [thorough(at) if at else at for at in range(5)])
def test_nothing_is_lost(hundred: int) -> None:
    """Tokens and requests are conserved, and Little's law holds to the picosecond."""
    preempted = 0
    for seed in range(100 * hundred, 100 * hundred + (30 if not hundred else 100)):
        asked, policy, more = random_server(seed)
        served = serve(asked, policy, AffineCosts(), **more)
        assert (served.output == asked.requests.output).all(), seed
        assert served.present_ps == (served.last_ps - served.arrival_ps).sum(), seed
        assert (served.arrival_ps <= served.scheduled_ps).all()
        assert (served.scheduled_ps < served.first_ps).all()
        assert (served.first_ps <= served.last_ps).all()
        assert ((served.first_ps == served.last_ps) == (served.output == 1)).all()
        assert (served.spans.pages <= policy.pages * policy.ranks).all()
        assert (served.spans.decodes <= policy.max_num_seqs * policy.ranks).all()
        preempted += int(served.preemptions.sum())
    assert preempted > 100


@pytest.mark.parametrize("seed", seeds(40, default=12))
def test_a_scheduler_that_visits_each_sequence_agrees(seed: int) -> None:
    draw = random.Random(seed)
    asked = poisson(
        80, draw.choice([2, 10, 50, 1000]), seed, draw.choice([10, 200]), draw.choice([5, 50])
    )
    page = draw.choice([1, 4, 16])
    longest = int((asked.requests.prompt + asked.requests.output).max())
    policy = Policy(
        page_size=page,
        pages=-(-longest // page) * draw.choice([1, 2, 4]),
        max_num_seqs=draw.choice([2, 8, 64]),
        max_num_batched_tokens=draw.choice([64, 300]),
        host_ps=draw.choice([0, MS]),
    )
    served = serve(asked, policy, AffineCosts())
    got = list(
        zip(
            *(column.tolist() for column in (served.first_ps, served.last_ps, served.preemptions)),
            strict=True,
        )
    )
    assert got == token_by_token(asked, policy, AffineCosts())


@pytest.mark.parametrize(
    ("load", "count"),
    [(0.5, 60_000), thorough(0.3, 60_000), thorough(0.7, 400_000), thorough(0.8, 900_000)],
)
def test_one_server_with_equal_times_is_m_d_1(load: float, count: int) -> None:
    """The mean wait is `load x service / (2 (1 - load))` (Pollaczek-Khinchine)."""
    service = 10 * MS
    draw = np.random.default_rng(5)
    gaps = draw.exponential(service / load, count)
    arrival = np.cumsum(gaps).astype(np.int64)
    asked = traffic([8] * count, [1] * count, arrival.tolist())
    costs = AffineCosts(step=service, prompt=0, pair=0)
    served = serve(asked, Policy(pages=1, page_size=8, max_num_seqs=1), costs)
    wait = served.scheduled_ps - served.arrival_ps
    expected = load * service / (2 * (1 - load))
    assert wait.mean() == pytest.approx(expected, rel=0.02)
    lindley, free = [], 0
    for time in arrival.tolist():
        lindley.append(max(0, free - time))
        free = max(free, time) + service
    assert wait.tolist() == lindley


def test_the_same_input_gives_the_same_bytes() -> None:
    for seed in range(5):
        asked, policy, more = random_server(seed)
        first, second = (serve(asked, policy, AffineCosts(), **more) for _ in range(2))
        assert repr(first) == repr(second)


def test_devices_compute_each_token_once() -> None:
    """Prompts once, and answers but for their first token, which comes with the prompt."""
    asked = poisson(300, 20)
    costs = AffineCosts()
    served = serve(asked, Policy(pages=10_000, page_size=16), costs, fold=False)
    steps = served.spans
    assert steps.prefills.sum() == asked.requests.prompt.sum()
    assert (steps.decodes * steps.steps).sum() == (asked.requests.output - 1).sum()
    assert sum(load.prefills for load in costs.loads) == asked.requests.prompt.sum()
    prompt = asked.requests.prompt
    assert sum(load.prefill_pairs for load in costs.loads) == (prompt * (prompt + 1) // 2).sum()


@pytest.mark.parametrize("drafted", [1, 3])
def test_drafts_that_cost_nothing_and_are_rejected_change_nothing(drafted: int) -> None:
    asked, free = poisson(200, 20), AffineCosts(decode=0, key=0)
    policy = Policy(pages=10_000, page_size=16, max_num_seqs=8)
    plain = serve(asked, policy, free)
    assert rows(serve(asked, replace(policy, drafted=drafted), free)) == rows(plain)


@pytest.mark.parametrize("accepted", [1.0, 1.5, 2.3, 3.0])
def test_speculation_divides_the_steps(accepted: float) -> None:
    """A sequence alone needs `(output - 1) / accepted` decode steps, rounded up."""
    policy = Policy(pages=1000, page_size=16, drafted=2, accepted=accepted)
    served = serve(traffic([100], [601]), policy, AffineCosts(key=0, decode=0))
    steps = -(-600 * 10 // round(accepted * 10))
    assert served.last_ps[0] - served.first_ps[0] == pytest.approx(2 * MS * steps, abs=2 * MS)
    assert served.output[0] == 601


def test_fractions_of_tokens_agree_within_a_thousandth() -> None:
    policy = Policy(pages=4000, page_size=16, drafted=3, accepted=2.37)
    asked = poisson(500, 12)
    folded = serve(asked, policy, AffineCosts())
    single = serve(asked, policy, AffineCosts(), fold=False)
    for name in ("first_ps", "last_ps"):
        a, b = (getattr(each, name) - each.arrival_ps for each in (folded, single))
        assert a.mean() == pytest.approx(b.mean(), rel=1e-3)


def test_replicas_in_turn_are_servers_of_every_other_request() -> None:
    asked, policy = poisson(200, 30), Policy(pages=600, page_size=16, max_num_seqs=8)
    both = serve(asked, policy, AffineCosts(), replicas=2)
    for start in (0, 1):
        part = asked.requests
        half = traffic(
            part.prompt[start::2].tolist(),
            part.output[start::2].tolist(),
            part.arrival_ps[start::2].tolist(),
        )
        assert rows(serve(half, policy, AffineCosts())) == rows(both)[start::2]


def test_ranks_with_equal_requests_are_one_rank_with_a_larger_step() -> None:
    """Two ranks with the same requests compute twice the load of one."""
    part = poisson(60, 5).requests
    twice = traffic(
        np.repeat(part.prompt, 2).tolist(),
        np.repeat(part.output, 2).tolist(),
        np.repeat(part.arrival_ps, 2).tolist(),
    )
    policy = Policy(pages=600, page_size=16, max_num_seqs=8)
    costs = AffineCosts()
    half = AffineCosts(decode=5_000_000, key=1_000, prompt=4_000_000, pair=50)
    two = serve(twice, replace(policy, ranks=2), half)
    one = serve(replace(twice, requests=part), policy, costs)
    assert rows(two)[::2] == rows(one)
    assert rows(two)[1::2] == rows(one)


def test_users_send_when_they_are_answered() -> None:
    asked = replace(poisson(100, 10), users=3)
    served = serve(asked, Policy(pages=600, page_size=16), AffineCosts())
    assert sorted(served.arrival_ps)[3:] == sorted(served.last_ps)[:-3]
    alone = serve(replace(asked, users=1), Policy(pages=600, page_size=16), AffineCosts())
    assert (alone.arrival_ps[1:] == alone.last_ps[:-1]).all()
    assert (alone.scheduled_ps == alone.arrival_ps).all()


def test_an_idle_request_takes_the_time_of_its_steps() -> None:
    policy = Policy(
        pages=100, page_size=16, max_num_batched_tokens=64, host_ps=MS, request_ps=7 * MS
    )
    costs = AffineCosts()
    served = serve(traffic([100], [21]), policy, costs)
    first = costs.step_ps(StepLoad(0, 0, 64, 64, 64 * 65 // 2))
    second = costs.step_ps(StepLoad(0, 0, 36, 100, 36 * 64 + 36 * 37 // 2))
    decodes = sum(costs.step_ps(StepLoad(1, 100 + token)) for token in range(1, 21))
    assert served.scheduled_ps[0] == 7 * MS
    assert served.first_ps[0] == 9 * MS + first + second
    assert served.last_ps[0] - served.first_ps[0] == 20 * MS + decodes


def test_a_transfer_lies_between_prompt_and_answer() -> None:
    policy = Policy(pages=100, page_size=16)
    pool = DecodePool(policy=policy, costs=AffineCosts(), transfer_ps=lambda tokens: tokens * 1000)
    apart = serve(traffic([100], [21]), policy, AffineCosts(), decode=pool)
    alone = serve(traffic([100], [21]), policy, AffineCosts())
    assert apart.first_ps[0] == alone.first_ps[0] + 100_000
    assert apart.last_ps[0] == alone.last_ps[0] + 100_000
    assert apart.spans.replica.tolist() == [0, 1]


def test_prompts_no_longer_delay_answers_of_a_decode_pool() -> None:
    policy = Policy(pages=2000, page_size=16)
    pool = DecodePool(policy=policy, costs=AffineCosts(), transfer_ps=lambda tokens: 0)
    asked = poisson(300, 20)
    apart = serve(asked, policy, AffineCosts(), decode=pool)
    alone = serve(asked, policy, AffineCosts())

    def longest(gaps: tuple[np.ndarray, np.ndarray]) -> int:
        return int(gaps[0].max())

    assert longest(apart.gaps) < longest(alone.gaps)


def test_a_cold_start_delays_the_first_request() -> None:
    policy = Policy(pages=100, page_size=16)
    cold = serve(traffic([100], [5]), policy, AffineCosts(), ready_ps=40 * MS, replicas=2)
    warm = serve(traffic([100], [5]), policy, AffineCosts())
    assert cold.last_ps[0] == 40 * MS + warm.last_ps[0]


def test_requests_of_a_replica_that_goes_down_are_computed_again() -> None:
    policy = Policy(pages=100, page_size=16)
    asked = traffic([100], [21])
    calm = serve(asked, policy, AffineCosts())
    down = int(calm.first_ps[0]) + 5 * MS  # in the third decode step
    outages = (Outage(0, down, down + 50 * MS),)
    hit = serve(asked, policy, AffineCosts(), outages=outages)
    costs = AffineCosts()
    again = costs.step_ps(StepLoad(0, 0, 103, 103, 103 * 104 // 2))
    left = sum(costs.step_ps(StepLoad(1, 103 + token)) for token in range(1, 18))
    assert hit.first_ps[0] == calm.first_ps[0]
    assert hit.last_ps[0] == down + 50 * MS + again + left
    assert hit.preemptions[0] == 1
    moved = serve(asked, policy, AffineCosts(), outages=outages, replicas=2)
    assert moved.last_ps[0] == down + again + left


def test_gaps_are_all_times_between_tokens() -> None:
    for seed in range(30):
        asked, policy, more = random_server(seed)
        policy = replace(policy, drafted=0, accepted=1.0)
        if "decode" in more:
            more["decode"] = replace(more["decode"], policy=policy)
        served = serve(asked, policy, AffineCosts(), **more)
        values, counts = served.gaps
        assert counts.sum() == (served.output - 1).sum()
        spent = (served.last_ps - served.first_ps).sum()
        assert (values * counts).sum() == pytest.approx(spent, rel=0.005, abs=1)

"""The knee of a server: the same load as a scan finds, and one sentence for what has none."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from extent import thorough
from small_servers import MODEL, POD

import tpusim as ts
from tpusim.serving import knee as knee_module
from tpusim.serving.configuration import Configuration
from tpusim.serving.full_load import closed_form_rate, slots
from tpusim.serving.knee import TOLERANCE, knee_of
from tpusim.serving.saturation import FULL, load_of, start_rate
from tpusim.traffic.parts import repeated

LENGTHS = {"prompt": ts.Lengths.uniform(100, 400), "output": ts.Lengths.uniform(20, 60)}
OPEN = ts.Traffic.poisson(rate=10.0, requests=300, **LENGTHS)
CLOSED = ts.Traffic.closed_loop(users=4, requests=300, **LENGTHS)


def server(replicas: int = 1, **settings: int) -> Configuration:
    """A server of a small model, with 16 sequences at a time."""
    given = {"max_num_seqs": 16, "max_num_batched_tokens": 512, **settings}
    engine = ts.Engine.of("vllm-tpu", chip="v6e", **given)
    plan = ts.ServingPlan(mesh={"tensor": 4}, page_size=16)
    return Configuration(pod=POD, plan=plan, engine=engine, replicas=replicas)


FEW, MANY = 1500, knee_module.LEAST_REQUESTS
"""Requests of each simulation: by default, and as the knee has them."""


@pytest.fixture(autouse=True)
def _few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knee_module, "LEAST_REQUESTS", FEW)


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        (server(), FEW),
        (server(max_num_seqs=4), FEW),
        thorough(server(), MANY),
        thorough(server(2), MANY),
        thorough(server(max_num_seqs=4), MANY),
    ],
)
def test_the_knee_of_an_open_loop_is_that_of_a_scan(
    given: Configuration, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knee_module, "LEAST_REQUESTS", requests)
    found = knee_of(given, MODEL, OPEN)
    replica = given.server(MODEL, OPEN)
    long = repeated(OPEN, requests)
    rates = found.load * np.arange(0.8, 1.2, 0.04)
    saturated = [
        load_of(given.served(replica, long.scaled(rate / 10.0)), rate).saturated for rate in rates
    ]
    assert not saturated[0]
    assert saturated[-1]
    scanned = rates[saturated.index(True)]
    assert found.load == pytest.approx(scanned, rel=0.1)
    assert found.below <= found.load <= found.above <= found.below * (1 + TOLERANCE)
    assert len(found.loads) <= 12
    assert found.closed_form == pytest.approx(found.load, rel=0.3)


@pytest.mark.parametrize("requests", [FEW, thorough(MANY)])
def test_the_knee_of_a_closed_loop_is_that_of_a_scan(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default only the loads about the knee are scanned."""
    monkeypatch.setattr(knee_module, "LEAST_REQUESTS", requests)
    given = server()
    found = knee_of(given, MODEL, CLOSED)
    replica = given.server(MODEL, CLOSED)

    def rate(users: int) -> float:
        return start_rate(given.served(replica, replace(repeated(CLOSED, requests), users=users)))

    full = rate(32)
    apart = max(1, int(0.1 * found.load))
    first = int(found.load) - apart - 1 if requests == FEW else 1
    scanned = next(users for users in count(first) if rate(users) >= FULL * full)
    assert found.unit == "users"
    assert abs(found.load - scanned) <= apart


def test_a_knee_prints_saturated_beyond_it() -> None:
    found = knee_of(server(), MODEL, OPEN)
    assert str(found).startswith("knee        transformer on v6e:2x2 saturates at ")
    assert "saturated" in str(found)
    assert [over for _, over in sorted(found.loads.items())] == sorted(found.loads.values())
    assert found.facts()["simulated"][-1]["saturated"]


def test_twice_the_replicas_saturate_at_twice_the_load() -> None:
    one, two = (knee_of(server(count), MODEL, OPEN).load for count in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.08)


def test_requests_that_arrive_at_once_have_no_load() -> None:
    burst = ts.Traffic.burst(requests=10, prompt=10, output=10)
    with pytest.raises(ts.TpusimError, match="has no load, as all requests arrive at once"):
        ts.knee(MODEL, ts.ServingPlan(mesh={"tensor": 4}), POD, burst)


def test_a_full_server_has_no_more_sequences_than_pages() -> None:
    replica = server(max_num_seqs=16).server(MODEL, OPEN)
    assert slots(replica, OPEN) == 16
    pages = replace(replica, policy=replace(replica.policy, pages=100))
    mean = float(OPEN.requests.prompt.mean() + OPEN.requests.output.mean() / 2)
    assert slots(pages, OPEN) == int(100 // -(-mean // 16))


def test_more_sequences_answer_more_requests_in_closed_form() -> None:
    replica = server().server(MODEL, OPEN)
    rates = [closed_form_rate(replica, OPEN, batch) for batch in (1, 4, 16)]
    assert rates == sorted(rates)

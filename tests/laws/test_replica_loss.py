"""Laws of a server that loses a replica: what is conserved, what is equal, how busy others are."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from small_servers import MILLISECOND, POD, SECOND, LinearCosts, by_hand, column, small_traffic

from tpusim.base.errors import PlanError
from tpusim.base.json_text import json_text
from tpusim.server import Outage, Policy, Served, StepLoad, serve
from tpusim.serving.metrics import answered
from tpusim.serving.replica_loss import (
    Queue,
    ReplicaLoss,
    ServerFailures,
    failures_per_day,
    lose_replica,
)
from tpusim.traffic import Traffic

POLICY = Policy(max_num_seqs=16, pages=400, host_ps=2 * MILLISECOND)
COLD = ServerFailures(cold_start_s=5.0)
Serve = Callable[[int, Sequence[Outage]], Served]


def server(traffic: Traffic) -> Serve:
    return lambda count, outages: serve(
        traffic, POLICY, LinearCosts(), replicas=count, outages=outages
    )


def loss_of(
    rate: float = 8.0, replicas: int = 2, failures: ServerFailures = COLD, requests: int = 240
) -> ReplicaLoss:
    run = server(small_traffic(rate=rate, requests=requests))
    return lose_replica(failures, run, POD, replicas=replicas)[1]


@pytest.mark.parametrize("replicas", [1, 2, 5])
@pytest.mark.parametrize("spares", [0, 1])
def test_requests_and_tokens_are_conserved(replicas: int, spares: int) -> None:
    loss = loss_of(replicas=replicas, failures=replace(COLD, spares=spares))
    asked = small_traffic(rate=8.0, requests=240).requests
    for served in (loss.served, loss.calm):
        assert served.output.tolist() == asked.output.tolist()
        assert (served.last_ps >= served.first_ps).all()
        assert (served.first_ps > served.scheduled_ps).all()
    assert loss.retried > 0
    again = loss.served.resumed_ps >= 0
    assert (loss.served.resumed_ps[again] >= loss.lost_ps).all()
    assert (loss.served.scheduled_ps[again] <= loss.lost_ps).all()
    assert not (loss.calm.resumed_ps >= 0).any()


def test_the_same_traffic_has_the_same_bytes() -> None:
    assert json_text(loss_of().facts()) == json_text(loss_of().facts())
    assert [*loss_of().lines()] == [*loss_of().lines()]


def test_before_the_loss_nothing_differs() -> None:
    loss = loss_of()
    early = loss.calm.last_ps < loss.lost_ps
    assert early.any()
    assert loss.served.last_ps[early].tolist() == loss.calm.last_ps[early].tolist()


def test_an_outage_of_no_time_is_none() -> None:
    loss = loss_of(failures=ServerFailures(cold_start_s=0.0))
    for name in ("scheduled_ps", "first_ps", "last_ps", "resumed_ps"):
        assert getattr(loss.served, name).tolist() == getattr(loss.calm, name).tolist()
    assert (loss.retried, loss.met) == (0, (1.0, 1.0))


def test_of_many_replicas_one_is_not_missed() -> None:
    """The load of each is the same: the part of the requests that are delayed tends to nothing."""
    found = [loss_of(rate=4.0 * n, replicas=n, requests=120 * n) for n in (2, 4, 8, 32)]
    delayed = [1 - loss.met[0] for loss in found]
    assert delayed == sorted(delayed, reverse=True)
    assert delayed[-1] < 0.05 < delayed[0]


class PromptCosts:
    """Steps that take 50 us for each token of a prompt, and nothing for what decodes."""

    def step_ps(self, load: StepLoad) -> int:
        """Picoseconds of one step."""
        return load.prefills * 50_000_000

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Picoseconds of decode steps in a row."""
        return 0 * decodes


@pytest.mark.parametrize("replicas", [2, 3, 6])
def test_the_others_are_busy_n_over_n_less_one_times_as_long(replicas: int) -> None:
    traffic = Traffic.poisson(rate=8.0 * replicas, requests=6000, prompt=1000, output=1)
    policy = Policy(max_num_seqs=4, pages=400)
    run = partial(_served, traffic, policy)
    cold = 3000 / (8 * replicas)
    found, loss = lose_replica(ServerFailures(cold_start_s=cold), run, POD, replicas=replicas)
    start, end = loss.lost_ps, loss.back_ps
    calm = _busy(run(replicas, ()), start, end) / replicas
    assert _busy(found, start, end) / (replicas - 1) == pytest.approx(
        calm * replicas / (replicas - 1), rel=0.02
    )


def _served(traffic: Traffic, policy: Policy, count: int, outages: Sequence[Outage]) -> Served:
    return serve(traffic, policy, PromptCosts(), replicas=count, outages=outages)


def _busy(served: Served, start: int, end: int) -> float:
    """Time in steps of all replicas between two times."""
    spans = served.spans
    inside = (spans.start_ps >= start) & (spans.end_ps <= end)
    return float(spans.busy_ps[inside].sum())


def test_a_spare_takes_over_at_once() -> None:
    loss, without = (loss_of(rate=12.0, failures=replace(COLD, spares=spares)) for spares in (1, 0))
    assert loss.back_ps == loss.lost_ps
    assert loss.retried == without.retried
    assert loss.delayed.sum() < without.delayed.sum()
    assert next(loss.lines()).startswith("loss        a spare takes over from one of 2")


def test_replicas_needed_are_the_fewest() -> None:
    failures = ServerFailures(cold_start_s=8.0, ttft_s=0.5, share=0.97)
    traffic = small_traffic(rate=16.0, requests=400)
    loss = lose_replica(failures, server(traffic), POD, replicas=4)[1]
    assert loss.needed is not None
    assert loss.needed_with_loss in (loss.needed, loss.needed + 1)
    alone = [
        lose_replica(failures, server(traffic), POD, replicas=n)[1].met
        for n in (loss.needed - 1, loss.needed)
    ]
    assert alone[0][1] < 0.97 <= alone[1][1]
    assert (alone[1][0] >= 0.97) == (loss.needed_with_loss == loss.needed)


def test_in_the_long_run_losses_come_once_for_each_failure_of_a_replica() -> None:
    rare, often = (
        loss_of(rate=14.0, failures=replace(COLD, ttft_s=0.2, mtbf_s=mtbf_s))
        for mtbf_s in (1e6, 1e5)
    )
    met, calm = rare.met
    span = np.ptp(rare.calm.arrival_ps) * 1e-12
    assert rare.availability == pytest.approx(calm - (calm - met) * span * 2 / 1e6)
    assert calm - often.availability == pytest.approx(10 * (calm - rare.availability))


def test_the_queue_by_hand() -> None:
    served = by_hand(
        arrival_ps=column(0, 1, 2, 3), scheduled_ps=column(0, 4, 5, 6),
        first_ps=column(9, 9, 9, 9), resumed_ps=column(7, -1, -1, -1),
    )  # fmt: skip
    queue = Queue.of(served, 2)
    assert queue.peak() == 4  # three that wait, and one that has lost its replica
    assert queue.peak(until_ps=2) == 1
    assert queue.drained_ps(3, most=1) == 6
    assert queue.drained_ps(8, most=0) == 8


def test_a_replica_fails_as_often_as_its_machines_and_cables() -> None:
    from tpusim.hardware import Slice

    assert failures_per_day(Slice("v6e", "2x2")) == pytest.approx(0.0008)
    assert failures_per_day(Slice("v4", "4x4x4")) == pytest.approx(16 * 0.0008 + 96 * 0.00005)
    assert ServerFailures(mtbf_s=7.0).mean_time(POD) == 7.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cold_start_s": -1.0}, "failures.cold_start_s is -1; write a number from 0 up"),
        ({"mtbf_s": float("nan")}, "failures.mtbf_s is nan; write a number from 0 up"),
        ({"mtbf_s": 0.0}, "failures.mtbf_s is 0; write seconds above 0"),
        ({"share": 1.5}, "failures.share is 1.5; write the fraction"),
        ({"spares": 3}, "failures.spares is 3, and serving.replicas 2: more spares than replicas"),
        ({"cold_start_s": 900.0}, "is 900, and requests arrive for 30.* s: nobody would see"),
        ({"cold_start_s": 5.0, "at_s": 28.0}, "is 5 from 28 s on, and requests arrive for"),
        ({}, "failures.cold_start_s is 840, and requests arrive"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, float], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        loss_of(failures=ServerFailures(**given))  # type: ignore[arg-type]


def test_without_an_answered_request_nothing_is_lost() -> None:
    policy = replace(POLICY, max_model_len=10)
    run = partial(_served, small_traffic(), policy)
    with pytest.raises(PlanError, match="no request is answered"):
        lose_replica(COLD, run, POD, replicas=2)


def test_the_cold_start_of_the_server_is_that_of_the_loss() -> None:
    run = server(small_traffic(rate=8.0, requests=240))
    loss = lose_replica(ServerFailures(), run, POD, replicas=2, ready_s=4.0)[1]
    assert loss.back_ps - loss.lost_ps == 4 * SECOND
    assert answered(loss.calm) is loss.calm

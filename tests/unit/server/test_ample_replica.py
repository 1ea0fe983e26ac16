"""A replica that never lacks pages does what one does that may."""

import random
from typing import Any

import pytest
from servers import MS, AffineCosts, traffic

from tpusim.server import Policy, serve
from tpusim.server.ample_replica import AmpleReplica
from tpusim.traffic import Traffic


def ample_server(seed: int) -> tuple[Traffic, Policy, dict[str, Any]]:
    """Return a random server with room for all that it runs; whole milliseconds bring ties."""
    draw = random.Random(seed)
    count, unit = draw.choice([5, 60]), draw.choice([1, MS])
    prompts = [draw.randrange(1, draw.choice([20, 600])) for _ in range(count)]
    outputs = [draw.randrange(1, draw.choice([3, 80])) for _ in range(count)]
    until = count * draw.choice([1, 10, 100, 1000]) * MS // 10
    arrival = sorted(draw.randrange(until) // unit * unit for _ in range(count))
    users = draw.choice([0, 0, 1, 8])
    page, most = draw.choice([1, 16]), draw.choice([1, 4, 64])
    budget = draw.choice([max(most, 8), 64, 2048])
    longest = max(map(sum, zip(prompts, outputs, strict=True)))
    policy = Policy(
        max_num_seqs=most,
        max_num_batched_tokens=budget,
        max_model_len=draw.choice([0, 0, longest // 2 + 1]),
        page_size=page,
        pages=-(-longest // page) * min(most, budget),
        host_ps=draw.choice([0, 3 * MS]),
        schedule_ps=draw.choice([0, 0, 4 * MS]),
        sequence_ps=draw.choice([0, 30_100]),
        request_ps=draw.choice([0, MS]),
    )
    more = {
        "replicas": draw.choice([1, 1, 2]),
        "router": draw.choice(["round-robin", "least-loaded"]),
    }
    return traffic(prompts, outputs, None if users else arrival, users=users), policy, more


@pytest.mark.parametrize("twenty", range(5))
def test_it_does_what_a_replica_does(twenty: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20 * twenty, 20 * twenty + 20):
        asked, policy, more = ample_server(seed)
        longest = int((asked.requests.prompt + asked.requests.output).max())
        assert AmpleReplica.suits(policy, longest)
        found = serve(asked, policy, AffineCosts(), **more)
        with monkeypatch.context() as patch:
            patch.setattr(AmpleReplica, "suits", lambda policy, longest: False)
            expected = serve(asked, policy, AffineCosts(), **more)
        assert repr(found) == repr(expected), seed


def test_one_page_less_than_all_may_need_is_no_ample_room() -> None:
    policy = Policy(pages=12, page_size=16, max_num_seqs=4)
    assert AmpleReplica.suits(policy, 48)
    assert not AmpleReplica.suits(policy, 49)

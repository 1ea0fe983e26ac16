from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from servers import MS, AffineCosts, poisson, rows, traffic

from tpusim.base.errors import ServerError
from tpusim.server import DecodePool, Policy, Served, serve

POLICY = Policy(pages=100, page_size=16)


def one(policy: Policy = POLICY, prompt: int = 100, output: int = 10, **more: Any) -> Served:
    return serve(traffic([prompt], [output]), policy, AffineCosts(), **more)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"pages": 6}, "needs a cache of 109 tokens, and a data-parallel rank has pages for 96"),
        ({"pages": 0}, "pages must be at least 1, not 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, not 0"),
        ({"host_ps": -1}, "host_ps must be at least 0, not -1"),
        ({"drafted": 1, "accepted": 2.5}, "accepted is 2.5 tokens of a step, which must be from 1"),
        ({"priority": "prefill"}, "priority = 'prefill' needs steps of one kind"),
        ({"max_num_batched_tokens": 4, "drafted": 4}, "must be above the 4 drafted tokens"),
        ({"reserve": -0.5}, "reserve must be at least 0, not -0.5"),
        (
            {"chunked_prefill": False, "max_num_batched_tokens": 64},
            "may need a step of 109 tokens without chunked prefill",
        ),
    ],
)
def test_a_policy_that_cannot_work_is_refused(policy: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError, match=text):
        one(replace(POLICY, **policy))


def test_arguments_that_cannot_work_are_refused() -> None:
    with pytest.raises(ServerError, match="replicas must be at least 1, not 0"):
        one(replicas=0)
    with pytest.raises(ServerError, match="router must be one of round-robin, least-loaded"):
        one(router="random")
    with pytest.raises(ServerError, match="router = 'prefix' needs prefix_cache = true"):
        one(router="prefix")
    with pytest.raises(ServerError, match="outage of replica 2, and there are 2"):
        one(replicas=2, outages=((2, 0, 5),))
    with pytest.raises(ServerError, match="outage from 5 to 3 ps"):
        one(outages=((0, 5, 3),))
    one_block = traffic([100], [1], prefixes=((1, 2, 3, 4),), block=24)
    with pytest.raises(ServerError, match="one has to divide the other"):
        serve(one_block, replace(POLICY, prefix_cache=True), AffineCosts())


def test_the_longest_request_that_fits_is_served() -> None:
    assert one(replace(POLICY, pages=7), 100, 13).output[0] == 13
    with pytest.raises(ServerError, match="needs a cache of 113 tokens"):
        one(replace(POLICY, pages=7), 100, 14)


def test_requests_above_the_length_of_the_model_are_refused() -> None:
    policy = replace(POLICY, max_model_len=110)
    asked = traffic([100, 101, 50], [10, 10, 5])
    served = serve(asked, policy, AffineCosts())
    assert served.output.tolist() == [10, 0, 5]
    assert served.last_ps[1] == served.first_ps[1] == served.scheduled_ps[1] == -1
    closed = serve(replace(asked, users=1), policy, AffineCosts())
    assert closed.arrival_ps.tolist() == [0, closed.last_ps[0], closed.last_ps[0]]


def test_pages_are_those_of_the_tokens_rounded_up() -> None:
    served = one(POLICY, 100, 30)
    ends = zip(served.spans.steps.cumsum().tolist(), served.spans.pages.tolist(), strict=True)
    for steps, pages in ends:
        assert pages == -(-(100 + steps - 1) // 16)
    assert serve(traffic([96, 97], [1, 1]), POLICY, AffineCosts()).spans.pages.max() == 6 + 7


def test_a_prompt_takes_the_steps_of_its_chunks() -> None:
    costs = AffineCosts()
    serve(traffic([1000], [1]), replace(POLICY, max_num_batched_tokens=300), costs)
    assert [load.prefills for load in costs.loads] == [300, 300, 300, 100]
    assert [load.prefill_keys for load in costs.loads] == [300, 600, 900, 1000]
    assert sum(load.prefill_pairs for load in costs.loads) == 1000 * 1001 // 2


def test_decoding_sequences_come_before_prompts_in_a_mixed_step() -> None:
    costs = AffineCosts()
    policy = replace(POLICY, max_num_batched_tokens=64)
    serve(traffic([60, 500], [100, 1], [0, 1]), policy, costs)
    assert [(load.decodes, load.prefills) for load in costs.loads[:3]] == [
        (0, 60),
        (1, 63),
        (1, 63),
    ]


def test_steps_of_one_kind_have_prompts_first() -> None:
    costs = AffineCosts()
    policy = replace(POLICY, max_num_batched_tokens=64, mixed=False, priority="prefill")
    served = serve(traffic([60, 500], [100, 1], [0, 1]), policy, costs)
    assert [load.prefills for load in costs.loads] == [60, *[64] * 7, 52]
    assert not any(load.decodes for load in costs.loads)
    assert served.last_ps[1] < served.last_ps[0]
    assert served.gaps[0].max() > 8 * 2 * MS


def test_a_static_batch_is_decoded_to_its_end() -> None:
    policy = replace(POLICY, mixed=False, max_num_seqs=4)
    served = serve(traffic([10] * 3, [5, 9, 3], [0, 0, MS]), policy, AffineCosts())
    assert served.scheduled_ps[2] == served.last_ps[:2].max()


def test_an_arrival_is_in_the_step_that_begins_at_its_time() -> None:
    busy = one(POLICY, 100, 50)
    third = int(busy.first_ps[0]) + 3 * (2 * MS + 10_000_000) + 2_000 * (101 + 102 + 103)
    for arrival, step in ((third, third), (third - 1, third)):
        served = serve(traffic([100, 8], [50, 2], [0, arrival]), POLICY, AffineCosts())
        assert served.scheduled_ps[1] == step
    served = serve(traffic([100, 8], [50, 2], [0, third + 1]), POLICY, AffineCosts())
    assert served.scheduled_ps[1] > third + 2 * MS


def test_the_youngest_loses_its_pages_and_is_computed_again() -> None:
    policy = replace(POLICY, pages=16)
    served = serve(traffic([112, 112], [60, 60]), policy, AffineCosts())
    assert served.preemptions[0] == 0
    assert served.preemptions[1] >= 1
    assert served.last_ps[0] == served.last_ps.min()


def test_reserved_pages_spare_preemptions() -> None:
    asked = poisson(200, 100, prompt=100, output=100)
    tight = replace(POLICY, pages=640, page_size=1, mixed=False, priority="prefill")
    assert serve(asked, tight, AffineCosts()).preemptions.sum() > 0
    assert serve(asked, replace(tight, reserve=1.0), AffineCosts()).preemptions.sum() == 0


def test_a_cached_prefix_is_not_computed_again() -> None:
    policy = replace(POLICY, prefix_cache=True)
    asked = traffic(
        [128, 128, 100],
        [1, 1, 1],
        [0, 10**12, 2 * 10**12],
        prefixes=((1, 2), (1, 2), (1, 3)),
        block=64,
    )
    served = serve(asked, policy, AffineCosts())
    assert served.cached.tolist() == [0, 112, 64]
    assert serve(asked, POLICY, AffineCosts()).cached.tolist() == [0, 0, 0]


def test_a_prompt_that_fills_the_cache_is_computed_from_a_whole_block_on() -> None:
    """All but its last page could be had, but the block of that holds two pages of four."""
    policy = replace(POLICY, prefix_cache=True, pages=4, page_size=16)
    twice = traffic([64, 64], [1, 1], [0, 10**12], prefixes=((1, 2), (1, 2)), block=32)
    served = serve(twice, policy, AffineCosts())
    assert served.output.tolist() == [1, 1]
    assert served.cached.tolist() == [0, 32]
    roomy = serve(twice, replace(policy, pages=5), AffineCosts())
    assert roomy.cached.tolist() == [0, 48]


def test_a_prefix_router_keeps_equal_prompts_together() -> None:
    policy = replace(POLICY, prefix_cache=True)
    count = 20
    asked = traffic(
        [128] * count,
        [1] * count,
        [at * 10**12 for at in range(count)],
        prefixes=tuple((at % 4 // 2, 9) for at in range(count)),
        block=64,
    )
    found = {
        router: serve(asked, policy, AffineCosts(), replicas=2, router=router).cached.sum()
        for router in ("round-robin", "prefix")
    }
    assert found["prefix"] == (count - 2) * 112
    assert found["round-robin"] == (count - 4) * 112


def test_the_least_loaded_replica_is_chosen() -> None:
    asked = traffic([16] * 3, [1000, 2, 2], [0, 1, 10**10])
    served = serve(asked, POLICY, AffineCosts(), replicas=2, router="least-loaded")
    assert served.spans.replica[np.argmax(served.spans.start_ps >= 10**10)] == 1


def test_pages_stay_with_the_prompt_until_they_are_transferred() -> None:
    slow = DecodePool(policy=POLICY, costs=AffineCosts(), transfer_ps=lambda tokens: 10**12)
    tight = replace(POLICY, pages=8)
    served = serve(traffic([100, 100], [5, 5]), tight, AffineCosts(), decode=slow)
    assert served.scheduled_ps[1] == served.first_ps[0]


def test_outages_overlap() -> None:
    asked = poisson(50, 20)
    times = ((0, 10**11, 3 * 10**11), (0, 2 * 10**11, 4 * 10**11))
    merged = ((0, 10**11, 4 * 10**11),)
    policy = replace(POLICY, pages=1000)
    two, once = (serve(asked, policy, AffineCosts(), outages=each) for each in (times, merged))
    assert rows(two) == rows(once)

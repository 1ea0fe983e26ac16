"""Orders of layouts and of servers that published measurements show, for the reasons they give."""

import pytest

import tpusim as ts
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.server import StepLoad
from tpusim.serving.capacity import cache_room
from tpusim.serving.decode_server import DecodeServer
from tpusim.simulation.serving_run import serve_step

PALM = ts.models.load("palm-540b")
POD = ts.Slice("v4", "4x4x4")
STATIONARY = ServingPlan(mesh={"embed": 4, "tensor": 16}, kernel="dot", attention="tokens")
GATHERED = ServingPlan(mesh={"embed": 4, "tensor": 16}, kernel="dot", gather_weights=True)
BY_HEADS = ServingPlan(mesh={"embed": 4, "tensor": 16}, kernel="dot")


def prefill(plan: ServingPlan, sequences: int, length: int = 2048) -> float:
    tokens = sequences * length
    load = StepLoad(0, 0, tokens, tokens, sequences * length * (length + 1) // 2)
    return serve_step(PALM, plan, POD, load, StepShape(tokens=tokens, rows=sequences)).step_time_s


def decode(plan: ServingPlan, sequences: int, keys: int) -> float:
    load = StepLoad(sequences, sequences * keys)
    shape = StepShape(tokens=sequences, rows=sequences)
    return serve_step(PALM, plan, POD, load, shape).step_time_s


def test_weights_are_gathered_for_large_batches_alone() -> None:
    """Pope et al. (arXiv:2211.05102), figure 7: weight-gathered layouts win at large batches."""
    assert prefill(STATIONARY, 1) < prefill(GATHERED, 1)
    assert prefill(GATHERED, 512) < prefill(STATIONARY, 512)


def test_long_contexts_want_a_cache_divided_by_sequences() -> None:
    """The same, figure 8: of multi-query attention, by heads each device has the whole cache."""
    near = decode(BY_HEADS, 64, 128) / decode(STATIONARY, 64, 128)
    far = decode(BY_HEADS, 64, 8192) / decode(STATIONARY, 64, 8192)
    assert far > 1.5 > near


def test_the_longest_context_of_multi_query_attention() -> None:
    """The same, table 1: divided by sequences, 32 times the context fits, and more on 64 chips."""
    rooms = [
        cache_room(PALM, plan, POD, tokens=512, rows=512).tokens for plan in (STATIONARY, BY_HEADS)
    ]
    assert rooms[0] >= 32 * rooms[1] or rooms[0] / rooms[1] == pytest.approx(64, rel=0.3)


def test_attention_by_heads_for_few_users_and_by_sequences_for_many() -> None:
    """Qwen3.5-397B on 7x: TP 8 for 4 users, DP 4 x TP 2 for 32 (vllm-project/tpu-inference)."""
    model, pod = ts.models.load("qwen3.5-397b-a17b"), ts.Slice("7x", "2x2x1")
    keys = {
        "expert_parallel": True,
        "weight_dtype": "fp8",
        "matmul_dtype": "fp8",
        "kv_dtype": "fp8",
        "page_size": 256,
    }
    by_heads = ServingPlan(mesh={"tensor": 8}, **keys)  # type: ignore[arg-type]
    by_ranks = ServingPlan(mesh={"attn_data": 4, "tensor": 2}, **keys)  # type: ignore[arg-type]
    few, many = StepLoad(4, 4 * 8700), StepLoad(256, 256 * 8700)

    def seconds(plan: ServingPlan, load: StepLoad) -> float:
        rows = load.decodes // plan.ranks
        shape = StepShape(tokens=rows, rows=rows, routed=load.decodes)
        return serve_step(model, plan, pod, load, shape).step_time_s

    assert seconds(by_heads, few) < seconds(by_ranks, few)
    assert seconds(by_ranks, many) < seconds(by_heads, many)


def test_a_lone_request_has_nothing_of_disaggregation() -> None:
    """At low load the transfer of the cache comes on top (SGLang-JAX, prefill and decode apart)."""
    plan, pod = ServingPlan(mesh={"tensor": 4}), "v6e:2x2"
    traffic = ts.Traffic.closed_loop(users=1, requests=8, prompt=2048, output=64)
    one = ts.serve("qwen3-8b", plan, pod, traffic)
    apart = ts.serve("qwen3-8b", plan, pod, traffic, decode=DecodeServer(transfer_bandwidth=1.2e9))
    assert one.metrics.times["ttft"].p50 < apart.metrics.times["ttft"].p50
    busy = ts.Traffic.poisson(rate=20, requests=400, prompt=2048, output=64, seed=2)
    one = ts.serve("qwen3-8b", plan, pod, busy, replicas=2)
    apart = ts.serve("qwen3-8b", plan, pod, busy, decode=DecodeServer())
    assert apart.metrics.times["itl"].p99 < one.metrics.times["itl"].p99


@pytest.mark.parametrize(("accepted", "faster"), [(1.0, False), (2.5, True)])
def test_speculation_pays_by_what_is_accepted(accepted: float, faster: bool) -> None:
    """A step verifies the drafted tokens, so it takes longer, and yields `accepted` tokens."""
    plan, pod = ServingPlan(mesh={"tensor": 4}), "v6e:2x2"
    traffic = ts.Traffic.closed_loop(users=4, requests=16, prompt=512, output=256)
    plain = ts.serve("qwen3-8b", plan, pod, traffic)
    drafted = ts.serve("qwen3-8b", plan, pod, traffic, drafted=3, accepted=accepted)
    rates = [result.metrics.times["tpot"].p50 for result in (plain, drafted)]
    assert (rates[1] < rates[0]) is faster
    assert rates[1] >= rates[0] / accepted

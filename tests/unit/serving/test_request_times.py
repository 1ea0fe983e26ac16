"""The time of the host for a request, which decides the step that it is scheduled in."""

import tpusim as ts
from tpusim.serving.engines import Engine

MODEL = ts.models.Transformer(layers=4, embed=2048, mlp=8192, heads=16, vocab=32000)
PLAN = ts.ServingPlan()


def first_tokens(request_s: float) -> tuple[float, float]:
    """Return the median times to the first token and between tokens of a closed loop, in s."""
    engine = Engine.of(
        "vllm-tpu", max_num_seqs=8, max_model_len=1024, prefix_cache=False, request_s=request_s
    )
    traffic = ts.Traffic.closed_loop(
        users=8, requests=200, prompt=64, output=ts.Lengths.uniform(32, 96)
    )
    times = ts.serve(MODEL, PLAN, "v6e-1", traffic, engine).metrics.times
    return times["ttft"].p50, times["itl"].p50


def test_a_request_that_is_sent_when_a_step_ends_misses_the_next() -> None:
    """However short its time is: it waits for a step of the others, and is computed in another."""
    (at_once, step), (late, _) = first_tokens(0.0), first_tokens(1e-7)
    assert 0.8 * step < late - at_once < 1.3 * step


def test_a_longer_time_waits_for_whole_steps() -> None:
    _, step = first_tokens(0.0)
    short, long = (first_tokens(share * step)[0] for share in (0.3, 0.6))
    assert abs(short - long) < 0.1 * step
    assert first_tokens(1.5 * step)[0] - short > 0.8 * step

"""The traffic of `vllm bench serve`."""

import pytest

from tpusim.base.errors import PlanError
from tpusim.serving.engines.benchmark import benchmark_traffic


def test_a_closed_loop_of_ranges() -> None:
    """A ratio of 0.8 means lengths from 0.2 L to 1.8 L."""
    line = (
        "vllm bench serve --model m --random-input-len 1000 --random-output-len 100 "
        "--random-range-ratio 0.8 --max-concurrency 16 --num-prompts 3000"
    )
    traffic = benchmark_traffic(line)
    prompt, output = traffic.requests.prompt, traffic.requests.output
    assert (traffic.users, len(traffic.requests)) == (16, 3000)
    assert (prompt.min() - 200, prompt.max() - 1800) == pytest.approx((0, 0), abs=5)
    assert (output.min(), output.max()) == (19, 180)  # vLLM rounds 100 x (1 - 0.8) down


def test_an_open_loop() -> None:
    traffic = benchmark_traffic("vllm bench serve --request-rate 4 --num-prompts 50 --seed 3")
    assert (traffic.rate, traffic.users) == (4.0, 0)
    assert set(traffic.requests.prompt) == {1024}
    assert set(traffic.requests.output) == {128}


def test_requests_that_arrive_at_once() -> None:
    traffic = benchmark_traffic("vllm bench serve --model m")
    assert (len(traffic.requests), traffic.rate, traffic.users) == (1000, 0, 0)
    assert traffic.requests.arrival_ps.max() == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vllm serve m", "vllm-serve sends no requests"),
        ("vllm bench serve --dataset-name sonnet", "'sonnet', whose lengths are not known"),
        ("vllm bench serve --request-rate 2 --max-concurrency 4", "neither an open nor a closed"),
    ],
)
def test_traffic_that_cannot_be_made(line: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        benchmark_traffic(line)

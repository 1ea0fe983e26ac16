"""What the result of a server says: its text, its JSON, cost and energy."""

import json

import pytest
from small_servers import POD, by_hand, column, small_result, small_traffic

from tpusim.base.json_text import json_text
from tpusim.server import Policy
from tpusim.serving import ServingResult
from tpusim.serving.result import number
from tpusim.traffic import Traffic

STEADY = small_result()
SATURATED = small_result(small_traffic(rate=16.0, requests=400))

FIRST_SCREEN = """\
serving     transformer on v6e:2x2 (4 chips)
traffic     Poisson, 4 requests/s: 120 requests of 212 to 1,500 (mean 840) tokens in, 21 to 200
            (mean 119) out; all count; 33.9 s from the first request to the last token

throughput  3.54 requests/s, 2,973 tokens/s in, 421 tokens/s out
latency             p50        p90        p95        p99       mean    maximum
  TTFT          48.9 ms    67.6 ms    83.3 ms    95.9 ms    49.6 ms     108 ms
  TPOT          15.4 ms    17.8 ms    18.3 ms    18.8 ms    15.7 ms    18.9 ms
  ITL           14.1 ms    15.9 ms    23.2 ms    53.3 ms    15.7 ms    74.9 ms
  end to end     1.91 s     3.04 s     3.12 s     3.34 s      1.9 s     3.58 s
  queueing      7.31 ms    13.2 ms    19.4 ms      37 ms    8.48 ms      55 ms
"""


def test_the_first_screen() -> None:
    text = str(STEADY)
    assert text.split("\nload ")[0] == FIRST_SCREEN
    heads = [line.split("  ")[0] for line in text.splitlines() if line and line[0] != " "]
    assert heads == [
        "serving", "traffic", "throughput", "latency", "load", "HBM", "cache", "bound by", "cost",
        "energy", "plan", "engine", "prefill", "decode", "note",
    ]  # fmt: skip
    assert "51,200 tokens in pages of 128" in text


def test_a_saturated_server_has_no_waiting_times() -> None:
    lines = str(SATURATED).splitlines()
    assert lines[0].startswith("SATURATED   16 requests/s arrive, and ")
    rows = {line[:12].strip(): line[12:].split() for line in lines if line.startswith("  ")}
    for name in ("TTFT", "end to end", "queueing"):
        assert rows[name] == ["saturated"]
    assert rows["TPOT"][1] == "ms"
    facts = SATURATED.facts()
    assert facts["saturated"] is True
    assert facts["sustainable_requests_per_s"] == pytest.approx(7, rel=0.05)
    assert [facts["metrics"][f"{key}_s"] for key in ("ttft", "e2e", "queue")] == [None] * 3
    assert facts["metrics"]["tpot_s"]["p50"] > 0


def test_json_has_plain_numbers_and_the_same_bytes() -> None:
    text = json_text(STEADY.facts())
    assert json_text(small_result().facts()) == text
    facts = json.loads(text)
    assert facts["sustainable_requests_per_s"] is None
    assert facts["metrics"]["requests"] == 120
    assert sum(facts["bounds"].values()) == pytest.approx(1)
    assert sum(facts["time_s"].values()) == pytest.approx(facts["metrics"]["duration_s"])


def test_cost_and_energy_are_those_of_the_slice_over_the_tokens() -> None:
    two = small_result(replicas=2)
    seconds = two.metrics.duration_s
    tokens = int(two.served.prompt.sum() + two.served.output.sum())
    assert POD.chip.price is not None
    usd = POD.chip.price * 4 * 2 * seconds / 3600
    assert two.cost is not None
    assert two.output_cost is not None
    assert two.cost.usd == pytest.approx(usd / tokens * 1e6)
    assert two.output_cost.usd == pytest.approx(usd / int(two.served.output.sum()) * 1e6)
    assert two.energy_j == pytest.approx(POD.chip.power * 4 * 2 * seconds / tokens)
    assert two.chips == 8
    assert two.title == "transformer on 2 x v6e:2x2"


def test_refused_requests_are_said() -> None:
    found = small_result(max_model_len=1000)
    assert found.metrics.numbers["refused"] > 0
    assert f"{found.metrics.numbers['refused']:,} refused" in str(found)


def test_a_server_that_refuses_everything_has_no_cost() -> None:
    refused = by_hand(arrival_ps=column(0, 1), output=column(0, 0))
    traffic, policy = Traffic.burst(requests=2, prompt=5, output=5), Policy(pages=1)
    found = ServingResult.of(
        refused, traffic, policy, model=STEADY.model, plan=STEADY.plan, pod=POD, prefill=None,
        decode=None,
    )  # fmt: skip
    assert found.cost is found.energy_j is None
    text = str(found)
    assert "0 count, 2 refused" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.123456, "0.123"), (7, "7"), (99.97, "100"), (12345.6, "12,346")]
)
def test_rates_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text

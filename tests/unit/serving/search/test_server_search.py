"""The search for servers: the answer of brute force, its bounds, and one sentence a mistake."""

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from extent import sample
from small_servers import MODEL

import tpusim as ts
from tpusim.serving.configuration import Configuration
from tpusim.serving.saturation import load_of
from tpusim.serving.search.found_server import ServerSearch, objective_value
from tpusim.serving.search.server_bounds import begun_bounds, server_bounds
from tpusim.serving.search.targets import LATENCIES, OUTPUT, latency, metric_values
from tpusim.traffic.parts import first_requests

LENGTHS: dict[str, Any] = {
    "requests": 600, "prompt": ts.Lengths.uniform(100, 900), "output": ts.Lengths.uniform(2, 60)
}  # fmt: skip
SPACE = ts.ServerSpace(
    slices=["v5e-1", "v6e-1", "v6e-4"],
    axes=["attn_data", "tensor"],
    vary={"max_num_seqs": [2, 16], "max_num_batched_tokens": [128, 1024], "replicas": [1, 2]},
)
TRAFFICS = {
    "light": ts.Traffic.poisson(rate=40.0, **LENGTHS),
    "heavy": ts.Traffic.poisson(rate=900.0, **LENGTHS),
    "closed": ts.Traffic.closed_loop(users=24, **LENGTHS),
}


def servers() -> list[Configuration]:
    return list(SPACE.configurations(Counter()))


@cache
def results(kind: str) -> list[tuple[Configuration, dict[str, float], bool]]:
    """All servers with the metrics of a traffic, and whether they are saturated."""
    found = ((each, each.result(MODEL, TRAFFICS[kind])) for each in servers())
    return [(each, dict(metric_values(one.metrics)), one.saturated) for each, one in found]


def brute_force(kind: str, targets: ts.Targets, objective: str) -> list[tuple[float, float]]:
    """The ranks of all servers that meet the targets, in order."""
    found = []
    for each, values, saturated in results(kind):
        strain = targets.strain(values)
        if strain <= 1 and not saturated:
            found.append((objective_value(objective, each, values), strain))
    return sorted(found)


CASES = [
    ("light", "cost", {"ttft_p99_s": 0.05, "tpot_s": 0.004}),
    ("light", "token_cost", {"ttft_p50_s": 0.02}),
    ("light", "tpot_s", {"e2e_p99_s": 0.5}),
    ("heavy", "cost", {"ttft_p99_s": 0.2}),
    ("heavy", "chips", {"output_tokens_per_s": 20_000, "tpot_p99_s": 0.02}),
    ("closed", "cost", {"ttft_p99_s": 0.1, "output_tokens_per_s": 2_000}),
    ("closed", "token_cost", {"e2e_p50_s": 0.3}),
]


@pytest.mark.parametrize(("kind", "objective", "given"), sample(CASES, 2))
def test_a_search_finds_what_brute_force_finds(
    kind: str, objective: str, given: dict[str, float]
) -> None:
    traffic, targets = TRAFFICS[kind], ts.Targets(**given)
    ranks = brute_force(kind, targets, objective)
    found = ts.search_servers(MODEL, SPACE, traffic, targets, objective=objective, top=3)
    assert [each.rank for each in found.best] == [pytest.approx(rank) for rank in ranks[:3]]
    assert found.servers == len(SPACE) == len(servers())


@pytest.mark.parametrize("kind", TRAFFICS)
def test_no_simulated_server_is_below_its_bounds(kind: str) -> None:
    traffic = TRAFFICS[kind]
    for each, values, saturated in results(kind):
        replica = each.server(MODEL, traffic)
        bounds = server_bounds(replica, traffic, each.replicas)
        first = each.served(replica, first_requests(traffic, 120))
        bounds = bounds.raised(begun_bounds(first))
        least = bounds.values()
        for name in LATENCIES:
            assert least[name] <= values[name] * (1 + 1e-9), (str(each), name)
        assert least[OUTPUT] >= values[OUTPUT] * (1 - 1e-9)
        assert saturated or not bounds.saturated


def test_bounds_rule_servers_out_without_their_simulation() -> None:
    found = ts.search_servers(MODEL, SPACE, TRAFFICS["light"], ts.Targets(tpot_s=1e-6))
    assert not found.best
    assert sum(found.left_out.values()) == found.servers
    assert len(found.tried) < found.servers / 2
    assert found.nearest is not None
    assert str(found.nearest.configuration) in found.verdict
    assert "misses TPOT" in found.verdict


def test_two_objectives_give_the_front_of_brute_force() -> None:
    traffic, targets = TRAFFICS["light"], ts.Targets(ttft_p99_s=0.5)
    found = ts.search_servers(MODEL, SPACE, traffic, targets, objective=("token_cost", "tpot_s"))
    points = []
    for each, values, saturated in results("light"):
        if targets.strain(values) <= 1 and not saturated:
            points.append((objective_value("token_cost", each, values), values["tpot_s"]))
    front = {
        one
        for one in points
        if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in points)
    }
    assert [each.objectives for each in found.best] == [pytest.approx(one) for one in sorted(front)]


def test_a_saturated_server_is_no_answer() -> None:
    flood = ts.Traffic.poisson(rate=5000.0, **{**LENGTHS, "requests": 3000})
    found = ts.search_servers(MODEL, SPACE, flood, ts.Targets(tpot_s=10.0))
    for each in found.best:
        served = each.configuration.result(MODEL, flood).served
        assert not load_of(served, flood.rate).saturated


def test_the_best_server_is_written_as_settings_and_command() -> None:
    found: ServerSearch = ts.search_servers(
        MODEL, SPACE, TRAFFICS["light"], ts.Targets(ttft_p99_s=0.5)
    )
    best = found.best[0]
    assert any(each.startswith("serving.max_num_seqs=") for each in best.configuration.settings)
    command = str(best.configuration.command("some/model"))
    assert f"--max-num-seqs {best.configuration.engine.max_num_seqs}" in command
    assert "nodeSelector" in best.configuration.manifest("some/model")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slices": []}, "search.slices is"),
        ({"axes": ["fsdp"]}, "search.axes has 'fsdp', which no server has"),
        ({"axes": []}, "search.axes and search.meshes are both missing"),
        ({"vary": {"kv_dtype": "fp8"}}, "search.vary.kv_dtype is 'fp8'; write a list"),
        ({"vary": {"mesh": [{"tensor": 1}]}}, "search.vary has mesh"),
    ],
)
def test_a_space_that_is_none_is_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ts.TpusimError, match="^" + said.replace("[", r"\[")):
        ts.ServerSpace(**{"slices": ["v6e-1"], "axes": ["tensor"], **given})


def test_targets_are_numbers_above_0() -> None:
    with pytest.raises(ts.TpusimError, match="no target is given"):
        ts.Targets()
    with pytest.raises(ts.TpusimError, match=r"targets\.tpot_s is 0"):
        ts.Targets(tpot_s=0)
    with pytest.raises(ts.TpusimError, match=r"search\.objective is 'price'"):
        ts.search_servers(
            MODEL, SPACE, TRAFFICS["light"], ts.Targets(tpot_s=1.0), objective="price"
        )


def test_unknown_values_are_left_out_with_their_reason() -> None:
    space = ts.ServerSpace(slices=["v6e-1"], axes=["tensor"], vary={"kv_dtype": ["bf16", "fp9"]})
    found = ts.search_servers(MODEL, space, TRAFFICS["light"], ts.Targets(tpot_s=1.0))
    assert found.servers == 1
    (reason,) = found.left_out
    assert "fp9" in reason


def test_a_latency_grows_with_each_request() -> None:
    times = {"ttft": np.array([1.0, 2.0]), "tpot": np.array([]), "e2e": np.array([3.0, 5.0])}
    assert latency("ttft_p50_s", times) == 1.5
    assert latency("tpot_s", times) == 0.0
    assert latency("e2e_p99_s", times) == pytest.approx(4.98)

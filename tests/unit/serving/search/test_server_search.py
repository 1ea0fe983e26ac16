"""The search for servers: the answer of brute force, its bounds, and one sentence a mistake."""

from collections import Counter, defaultdict
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from extent import sample, thorough
from small_servers import MODEL

import tpusim as ts
from tpusim.server import Begun, Served, Watch
from tpusim.serving.configuration import Configuration
from tpusim.serving.metrics import measure
from tpusim.serving.saturation import load_of
from tpusim.serving.search.found_server import ServerSearch, objective_value
from tpusim.serving.search.known_runs import KnownRuns, found_in, same_run
from tpusim.serving.search.server_bounds import begun_bounds, server_bounds
from tpusim.serving.search.targets import LATENCIES, OUTPUT, latency, metric_values
from tpusim.serving.serve import Server
from tpusim.serving.step_table import SharedSteps

LENGTHS: dict[str, Any] = {
    "requests": 500, "prompt": ts.Lengths.uniform(100, 900), "output": ts.Lengths.uniform(2, 40)
}  # fmt: skip
SPACE = ts.ServerSpace(
    slices=["v5e-1", "v6e-4"],
    axes=["attn_data", "tensor"],
    most={"attn_data": 2},
    vary={"max_num_seqs": [2, 16], "max_num_batched_tokens": [128, 1024]},
)
WHOLE = ts.ServerSpace(
    slices=["v5e-1", "v6e-1", "v6e-4"],
    axes=["attn_data", "tensor"],
    vary={"max_num_seqs": [2, 16], "max_num_batched_tokens": [128, 1024], "replicas": [1, 2]},
)
SPACES = {"few": SPACE, "whole": WHOLE}
TRAFFICS = {
    "light": ts.Traffic.poisson(rate=40.0, **LENGTHS),
    "heavy": ts.Traffic.poisson(rate=900.0, **LENGTHS),
    "closed": ts.Traffic.closed_loop(users=24, **LENGTHS),
}


def servers(space: str = "few") -> list[Configuration]:
    return list(SPACES[space].configurations(Counter()))


KNOWN: defaultdict[Any, SharedSteps] = defaultdict(SharedSteps)


def replica_of(each: Configuration, traffic: ts.Traffic) -> Server:
    """A replica before its traffic; its steps are simulated once for all tests."""
    return each.server(MODEL, traffic, KNOWN[each.step_key])


@cache
def results(kind: str, space: str = "few") -> list[tuple[Configuration, dict[str, float], bool]]:
    """All servers with the metrics of a traffic, and whether they are saturated."""
    traffic, found = TRAFFICS[kind], []
    for each in servers(space):
        served = each.served(replica_of(each, traffic), traffic)
        values = dict(metric_values(measure(served, pages=1)))
        saturated = load_of(served, traffic.rate, traffic.users).saturated
        found.append((each, values, saturated))
    return found


def brute_force(
    kind: str, space: str, targets: ts.Targets, objective: str
) -> list[tuple[float, float]]:
    """The ranks of all servers that meet the targets, in order."""
    found = []
    for each, values, saturated in results(kind, space):
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


@pytest.mark.parametrize(
    ("space", "kind", "objective", "given"),
    [
        *sample([("few", *case) for case in CASES], 9),
        *(thorough("whole", *case) for case in CASES),
    ],
)
def test_a_search_finds_what_brute_force_finds(
    space: str, kind: str, objective: str, given: dict[str, float]
) -> None:
    traffic, targets = TRAFFICS[kind], ts.Targets(**given)
    ranks = brute_force(kind, space, targets, objective)
    found = ts.search_servers(MODEL, SPACES[space], traffic, targets, objective=objective, top=3)
    assert [each.rank for each in found.best] == [pytest.approx(rank) for rank in ranks[:3]]
    assert found.servers == len(SPACES[space]) == len(servers(space))


KINDS = [*((kind, "few") for kind in TRAFFICS), *(thorough(kind, "whole") for kind in TRAFFICS)]


@pytest.mark.parametrize(("kind", "space"), sample(KINDS, 3))
def test_no_simulated_server_is_below_its_bounds(kind: str, space: str) -> None:
    traffic = TRAFFICS[kind]
    for each, values, saturated in results(kind, space):
        replica = replica_of(each, traffic)
        bounds = server_bounds(replica, traffic, each.replicas)
        looks: list[Begun] = []
        each.served(replica, traffic, Watch((120, 300, 450), lambda now: looks.append(now)))  # noqa: B023
        assert [len(now.arrival_ps) for now in looks] == [120, 300, 450]
        for now in (None, *looks):
            if now is not None:
                bounds = bounds.raised(begun_bounds(now, traffic, replica.policy))
            least = bounds.values()
            for name in LATENCIES:
                assert least[name] <= values[name] * (1 + 1e-9), (str(each), name)
            assert least[OUTPUT] >= values[OUTPUT] * (1 - 1e-9)
            assert saturated or not bounds.saturated


def equal(one: Served, other: Served) -> bool:
    """Whether all columns of the requests and of the spans are the same."""
    parts = ((one, other), (one.spans, other.spans))
    return all(
        np.array_equal(getattr(a, each.name), getattr(b, each.name))
        for a, b in parts
        for each in fields(a)
        if each.name not in ("spans", "peak")
    )


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_servers_whose_limits_are_not_reached_do_the_same(kind: str, space: str) -> None:
    """Each server is simulated with larger limits too, where its own are above its peak."""
    traffic, alike = TRAFFICS[kind], 0
    for each in servers(space):
        replica = replica_of(each, traffic)
        engine = each.engine.changed(max_num_seqs=64, max_num_batched_tokens=4096)
        steps = replace(replica.steps, buckets=engine.buckets(replica.policy.ranks))
        policy = replace(
            replica.policy, max_num_seqs=64, max_num_batched_tokens=4096, pages=100_000
        )
        larger = Server(steps, replica.room, policy)
        served = each.served(larger, traffic)
        if same_run(larger, replica, served.peak):
            alike += 1
            assert equal(each.served(replica, traffic), served)
    assert alike or kind != "light"


def test_a_limit_that_is_reached_is_no_other() -> None:
    """Next to the peak, each limit changes what may happen, so the run counts as another."""
    traffic = TRAFFICS["light"]
    each = next(one for one in servers() if one.engine.max_num_seqs == 16)
    replica = replica_of(each, traffic)
    peak = each.served(replica, traffic).peak
    for key, most in (
        ("max_num_seqs", peak.sequences),
        ("max_num_batched_tokens", peak.tokens),
        ("pages", peak.pages),
    ):
        at, above = (
            replace(replica, policy=replace(replica.policy, **{key: size}))
            for size in (most, most + 1)
        )
        assert not same_run(at, replica, peak), key
        assert same_run(above, replica, peak) or key == "max_num_batched_tokens", key


def test_simulations_are_not_repeated_for_limits_that_are_not_reached() -> None:
    traffic = TRAFFICS["light"]
    space = replace(SPACE, vary={"max_num_seqs": [16, 32], "max_num_batched_tokens": [2048, 4096]})
    runs, found = KnownRuns(traffic, []), []
    for each in space.configurations(Counter()):
        replica = replica_of(each, traffic)
        found.append(runs.of(each, replica, lambda _: False))
        assert found[-1] == found_in(each.served(replica, traffic), traffic)
    assert len({id(each) for each in found}) < len(found)


def test_bounds_rule_servers_out_without_their_simulation() -> None:
    found = ts.search_servers(MODEL, SPACE, TRAFFICS["light"], ts.Targets(tpot_s=1e-6))
    assert not found.best
    assert sum(found.left_out.values()) == found.servers
    assert len(found.tried) < found.servers / 2
    assert found.nearest is not None
    assert str(found.nearest.configuration) in found.verdict
    assert "misses TPOT" in found.verdict


FRONTS = [
    ("light", "token_cost", "tpot_s"),
    ("heavy", "chips", "e2e_p50_s"),
    ("closed", "e2e_p99_s", "token_cost"),
    ("light", "ttft_p99_s", "cost"),
]


@pytest.mark.parametrize(
    ("space", "kind", "first", "second"),
    [
        *sample([("few", *front) for front in FRONTS], 4),
        *(thorough("whole", *front) for front in FRONTS),
    ],
)
def test_two_objectives_give_the_front_of_brute_force(
    space: str, kind: str, first: str, second: str
) -> None:
    traffic, targets = TRAFFICS[kind], ts.Targets(ttft_p99_s=0.5)
    found = ts.search_servers(MODEL, SPACES[space], traffic, targets, objective=(first, second))
    points = []
    for each, values, saturated in results(kind, space):
        if targets.strain(values) <= 1 and not saturated:
            points.append(tuple(objective_value(n, each, values) for n in (first, second)))
    front = {
        one
        for one in points
        if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in points)
    }
    assert [each.objectives for each in found.best] == [pytest.approx(one) for one in sorted(front)]


def test_a_saturated_server_is_no_answer() -> None:
    flood = ts.Traffic.poisson(rate=5000.0, **{**LENGTHS, "requests": 1000})
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

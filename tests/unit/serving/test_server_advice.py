"""Advice on a server: each gain is that of the run file with the settings of its sentence."""

from pathlib import Path

import pytest
from extent import thorough
from small_servers import MODEL, small_traffic

import tpusim as ts
from tpusim.runfile import read_serving
from tpusim.serving.advice import PER_DOLLAR, changes_of, server_advice
from tpusim.serving.configuration import Configuration
from tpusim.serving.search.targets import metric_values
from tpusim.serving.serve import serve

SERVER = """
[slice]
chip = "v6e"
topology = "2x2"
[model]
layers = 2
embed = 512
mlp = 2048
heads = 4
vocab = 1000
[serving]
mesh = { tensor = 4 }
max_num_seqs = 16
max_num_batched_tokens = 512
request_s = 0.0
[traffic]
rate = 300.0
requests = 300
prompt = { uniform = [100, 300] }
output = 16
"""


def of_file(path: Path, settings: tuple[str, ...] = ()) -> ts.ServingResult:
    run = read_serving(path, settings)
    assert run.traffic is not None
    traffic = run.traffic.traffic(run.folder)
    return serve(run.model, run.plan, run.pod, traffic, run.engine, replicas=run.options.replicas)


@pytest.mark.parametrize(
    ("rate", "targets", "goal"),
    [
        thorough(300.0, None, "e2e_p50_s"),
        thorough(20_000.0, None, PER_DOLLAR),
        thorough(300.0, ts.Targets(tpot_s=1e-4), "tpot_s"),
    ],
)
def test_the_gain_is_that_of_the_run_file(
    rate: float, targets: ts.Targets | None, goal: str, tmp_path: Path
) -> None:
    path = tmp_path / "server.toml"
    path.write_text(SERVER.replace("rate = 300.0", f"rate = {rate}"), "utf-8")
    run = read_serving(path)
    assert run.traffic is not None
    given = Configuration(pod=run.pod, plan=run.plan, engine=run.engine)
    found = server_advice(given, run.model, run.traffic.traffic(run.folder), targets)
    assert found.goal.name == goal
    base = of_file(path)
    assert len(found.changes) >= 10
    for change in found.changes:
        result = of_file(path, change.settings)
        if goal == PER_DOLLAR:
            assert result.output_cost is not None
            assert base.output_cost is not None
            gain = base.output_cost.usd / result.output_cost.usd - 1
        else:
            before, after = (dict(metric_values(each.metrics))[goal] for each in (base, result))
            gain = 1 - after / before
        assert change.gain == pytest.approx(gain, abs=1e-3), str(change)
    gains = [each.gain for each in found.changes if not each.saturated]
    assert gains == sorted(gains, reverse=True)
    assert all(setting in str(found).replace("'", "") for setting in found.changes[0].settings)


@pytest.mark.thorough
def test_changes_are_of_all_kinds_and_refused_ones_have_a_reason() -> None:
    given = Configuration(
        pod=ts.Slice("v6e", "2x2"),
        plan=ts.ServingPlan(mesh={"tensor": 4}),
        engine=ts.Engine.of("sglang-jax", chip="v6e"),
    )
    found = server_advice(given, MODEL, small_traffic())
    keys = {key for each in found.changes for key in each.configuration.keys}
    assert keys >= {
        "kv_dtype", "weight_dtype", "mesh", "max_num_seqs", "max_num_batched_tokens",
        "replicas", "slice",
    }  # fmt: skip
    assert all(reason for _, reason in found.refused)
    facts = found.facts()
    assert len(facts["changes"]) == len(found.changes)


def test_other_slices_have_the_shape_of_their_name() -> None:
    """256 chips of v5p are 4x8x8, not 4x4x16."""
    half = Configuration(
        pod=ts.Slice("v5p", "8x8x8"),
        plan=ts.ServingPlan(mesh={"tensor": 512}),
        engine=ts.Engine.of("vllm-tpu"),
    )
    named = {what for what, keys in changes_of(half, MODEL, small_traffic()) if "slice" in keys}
    assert {"slice v5p:4x8x8", "slice v5p:8x8x16", "slice v4:8x8x8"} <= named

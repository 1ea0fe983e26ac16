"""The sections [serving] and [traffic]: what they mean, round trips, and a sentence a mistake."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inputs import wanted

import tpusim as ts
from tpusim.base import PlanError, TpusimError
from tpusim.base.errors import TrafficError
from tpusim.runfile import ServerOptions, TrafficKeys, read_serving
from tpusim.runfile.serving_fields import KINDS, SERVING_FIELDS
from tpusim.traffic import Lengths, Traffic

FILE = """
[slice]
name = "v6e-4"
[model]
name = "llama3.1-8b"
[serving]
mesh = { attn_data = 2, tensor = 2 }
engine = "sglang-jax"
weight_dtype = "fp8"
page_size = 64
max_num_seqs = 32
replicas = 2
[traffic]
rate = 4
requests = 50
prompt = { uniform = [10, 20] }
output = 5
seed = 3
"""
MODEL = ts.models.load("llama3.1-8b")
POD = ts.Slice.from_name("v6e-4")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "server.toml"
    file.write_text(FILE, "utf-8")
    return file


def test_a_file_is_a_plan_an_engine_and_traffic(path: Path) -> None:
    run = read_serving(path)
    assert (run.model, run.pod, run.options.replicas) == (MODEL, POD, 2)
    assert run.engine == ts.Engine.of("sglang-jax", chip="v6e", max_num_seqs=32)
    assert run.plan == ts.ServingPlan(
        mesh={"attn_data": 2, "tensor": 2}, weight_dtype="fp8", page_size=64,
        memory_fraction=run.engine.memory_fraction, page_s=run.engine.page_s,
    )  # fmt: skip
    assert run.traffic is not None
    found = run.traffic.traffic(path.parent).requests
    lengths = Lengths.uniform(10, 20)
    made = Traffic.poisson(rate=4, requests=50, prompt=lengths, output=5, seed=3).requests
    assert np.array_equal(found.arrival_ps, made.arrival_ps)
    assert np.array_equal(found.prompt, made.prompt)


def test_pages_and_memory_are_the_engine_s_unless_the_file_says(path: Path) -> None:
    path.write_text(FILE.replace("page_size = 64\n", ""), "utf-8")
    run = read_serving(path)
    assert run.plan.page_size == run.engine.page_tokens()
    changed = read_serving(path, ["serving.memory_fraction=0.5"])
    assert changed.plan.memory_fraction == 0.5


def test_every_field_is_a_key() -> None:
    """A new field of a plan, or of the traffic's keys, is a key as soon as it exists."""
    planned = {each.name for each in fields(ts.ServingPlan)}
    assert planned <= set(SERVING_FIELDS["serving"])
    rest = set(SERVING_FIELDS["serving"]) - planned - {"engine"}
    rest -= {each.name for each in fields(ServerOptions)}
    assert rest <= {each.name for each in fields(ts.Engine)}
    assert set(SERVING_FIELDS["traffic"]) == {each.name for each in fields(TrafficKeys)}
    assert set(SERVING_FIELDS["failures"]) == {each.name for each in fields(ts.ServerFailures)}


@pytest.mark.parametrize("path", [(s, key) for s, keys in SERVING_FIELDS.items() for key in keys])
def test_every_key_says_what_to_write(path: tuple[str, str]) -> None:
    assert len(wanted(path)) > 5


LENGTHS: list[tuple[Any, Any]] = [
    (7, 7),
    ({"uniform": [3, 9]}, Lengths.uniform(3, 9)),
    ({"vllm": [100, 0.5]}, Lengths.vllm(100, 0.5)),
    ({"inferencex": [100, 0.8]}, Lengths.inferencex(100, 0.8)),
    ({"median": 100, "p99": 900}, Lengths.log_normal(100, p99=900)),
]


@pytest.mark.parametrize(("written", "meant"), LENGTHS)
def test_lengths_are_those_of_the_library(written: Any, meant: Any) -> None:
    found = TrafficKeys(rate=1.0, requests=20, prompt=written, output=1).traffic(Path())
    made = Traffic.poisson(rate=1.0, requests=20, prompt=meant, output=1)
    assert found.requests.prompt.tolist() == made.requests.prompt.tolist()


def test_every_kind_is_the_constructor_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,prompt,output\n0,5,6\n1,7,8\n", "utf-8")
    lengths: dict[str, Any] = {"requests": 9, "prompt": 3, "output": 2}
    given: dict[str, dict[str, Any]] = {
        "poisson": {"rate": 2.0, **lengths},
        "burst": {"requests": 9, "pairs": "trace.csv"},
        "closed_loop": {"users": 3, **lengths},
        "trace": {"path": "trace.csv", "rate_scale": 2.0},
    }
    assert set(given) == set(KINDS)
    for kind, keys in given.items():
        assert len(TrafficKeys(kind=kind, **keys).traffic(tmp_path).requests) in (2, 9)
    even = TrafficKeys(burstiness=float("inf"), **given["poisson"]).traffic(tmp_path)
    assert np.diff(even.requests.arrival_ps).tolist() == [5 * 10**11] * 8
    read = TrafficKeys(kind="trace", **given["trace"]).traffic(tmp_path)
    assert read.requests.arrival_ps.tolist() == [0, 500 * 10**9]


TRAFFICS = [
    None,
    TrafficKeys(rate=4.0, requests=10, prompt={"uniform": [1, 5]}, output=3),
    TrafficKeys(kind="closed_loop", users=4, requests=10, prompt=5, output=3, seed=2),
    TrafficKeys(kind="trace", path="a.csv", window=(0.0, 5.0), rate_scale=2.0),
]


@pytest.mark.parametrize("traffic", TRAFFICS)
@pytest.mark.parametrize("name", ["vllm-tpu", "sglang-jax"])
def test_a_server_reads_as_it_was_written(
    name: str, traffic: TrafficKeys | None, tmp_path: Path
) -> None:
    engine = ts.Engine.of(name, chip="v6e", max_num_seqs=17, host_s=0.003, prefix_cache=False)
    plan = ts.ServingPlan(
        mesh={"tensor": 4}, kv_dtype="fp8", attention="tokens", rules={"act_embed": "tensor"},
        memory_fraction=0.8,
    )  # fmt: skip
    path = tmp_path / "server.toml"
    options = ServerOptions(replicas=3, drafted=2, accepted=1.5, router="least-loaded")
    ts.write_run(path, MODEL, plan, POD, engine=engine, traffic=traffic, options=options)
    found = read_serving(path)
    assert (found.model, found.plan, found.pod) == (MODEL, plan, POD)
    assert (found.traffic, found.options) == (traffic, options)
    assert found.engine.max_num_seqs == 17
    assert str(found.engine).splitlines()[0] == str(engine).splitlines()[0]


def test_a_server_of_defaults_is_short(tmp_path: Path) -> None:
    engine = ts.Engine.of("vllm-tpu", chip="v6e")
    plan = ts.ServingPlan(
        page_size=engine.page_tokens(), memory_fraction=engine.memory_fraction, page_s=engine.page_s
    )
    path = tmp_path / "server.toml"
    ts.write_run(path, MODEL, plan, POD)
    assert path.read_text("utf-8").split("[serving]")[1] == "\nmesh = { tensor = 1 }\n"


BAD = [
    ("serving.max_num_seq=3", PlanError, "did you mean 'max_num_seqs'"),
    ("serving.mesh={fsdp=4}", PlanError, "serving.mesh has the axis 'fsdp'"),
    ("serving.mesh=4", PlanError, "write a table of axes and sizes, such as"),
    ("serving.attention=x", PlanError, "serving.attention is 'x': valid are heads, tokens"),
    ("serving.weight_dtype=3", PlanError, "write one of bf16, f32, int8"),
    ("serving.priority=x", PlanError, "serving.priority is 'x'; valid are decode, prefill"),
    ("serving.engine=vlm", PlanError, "no serving engine 'vlm' is known"),
    ("serving.host_s=nan", PlanError, "serving.host_s is nan; write a number"),
    ("serving.replicas=0", PlanError, "serving.replicas is 0; write a whole number"),
    ("serving.router=x", PlanError, "serving.router is 'x'"),
    ("serving.accepted=2.0", PlanError, "write a mean from 1 to drafted"),
    ("serving.ready_s=inf", PlanError, "serving.ready_s is inf; write a number"),
    ("serving.rate=3", PlanError, r"it belongs to \[traffic\]"),
    ("traffic.kind=poison", TrafficError, "did you mean 'poisson'"),
    ("traffic.users=3", TrafficError, "write kind = 'closed_loop'"),
    ("traffic.rate=true", TrafficError, "traffic.rate is true; write a number"),
    ("traffic.prompt={a=1}", TrafficError, "traffic.prompt: the length is a table of a; write"),
    ("traffic.prompt={uniform=[9,1]}", TrafficError, "traffic.prompt: low is 9"),
    ("traffic.prompt={}", TrafficError, "a table of nothing"),
    ("traffic.requests=0", TrafficError, "traffic.requests is 0"),
    ("traffic.window=[1]", TrafficError, "does not have; leave it out, or write kind = 'trace'"),
    ("trafic.rate=1", TpusimError, r"unknown section \[trafic\]; did you mean 'traffic'"),
    ("input.kind=jpeg", PlanError, r"\[serving\] and \[input\]; leave one of them out"),
]


@pytest.mark.parametrize(("setting", "kind", "sentence"), BAD)
def test_a_mistake_is_one_sentence(
    setting: str, kind: type[TpusimError], sentence: str, path: Path
) -> None:
    def read() -> None:
        run = read_serving(path, [setting])
        assert run.traffic is not None
        run.traffic.traffic(run.folder)

    with pytest.raises(kind, match=sentence) as found:
        read()
    assert "\n" not in str(found.value)


def test_a_missing_key_of_the_traffic_is_named(path: Path) -> None:
    for key in ("rate", "requests", "prompt", "output"):
        text = "\n".join(line for line in FILE.splitlines() if not line.startswith(f"{key} = "))
        path.write_text(text, "utf-8")
        with pytest.raises(TrafficError, match=f"traffic.{key} is missing"):
            read_serving(path)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TpusimError, match=r"none\.csv"):
        TrafficKeys(kind="trace", path="none.csv").traffic(tmp_path)

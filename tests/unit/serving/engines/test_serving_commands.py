"""Command lines of servers: read, printed, and what they mean."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base.errors import ModelError, PlanError
from tpusim.hardware import Slice
from tpusim.plan import ServingPlan
from tpusim.serving.engines import Engine
from tpusim.serving.engines.command import ServingCommand, programs
from tpusim.serving.engines.launch import serving_command
from tpusim.serving.engines.manifest import kubernetes_manifest
from tpusim.serving.engines.parallelism import Parallelism
from tpusim.serving.engines.served_models import served_name
from tpusim.serving.engines.setup import serving_setup

ATTENTION = json.dumps(
    {"sharding": {"sharding_strategy": {"enable_dp_attention": True, "attn_dp_size": 4}}}
)
QWEN = (
    "vllm serve Qwen/Qwen3.5-397B-A17B-FP8 -tp 8 --enable-expert-parallel --block-size=256 "
    f"--max-model-len 10k --kv-cache-dtype fp8 --no-enable-prefix-caching --port 8000 "
    f"--additional-config '{ATTENTION}'"
)
LING = (
    "python3 -m sgl_jax.launch_server --model-path inclusionAI/Ling-2.6-1T --tp 32 --dp-size 8 "
    "--ep-size 32 --moe-backend fused --chunked-prefill-size 2048 --page-size 256 "
    "--disable-radix-cache --trust-remote-code --quantization w8a8_fp8"
)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-1, 10**6),
    "float": st.floats(0, 1e6),
    "text": st.from_regex(r"[A-Za-z0-9_./' ]+", fullmatch=True),
    "switch": st.booleans(),
    "ints": st.lists(st.integers(0, 9999), min_size=1, max_size=4).map(tuple),
    "json": st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
}


@st.composite
def commands(draw: st.DrawFn) -> ServingCommand:
    program = draw(st.sampled_from(list(programs().values())))

    def values(kinds: Any) -> dict[str, Any]:
        flags = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=5, unique=True))
        return {flag: draw(VALUES[kinds[flag]]) for flag in flags}

    return ServingCommand(program.name, values(program.kinds), values(program.idle))


@given(commands())
def test_a_printed_command_reads_the_same(command: ServingCommand) -> None:
    assert ServingCommand.read(str(command)) == command


def test_other_spellings() -> None:
    plain = "vllm serve m --tensor-parallel-size 4 --max-model-len 8192 --trust-remote-code"
    other = "X=1 vllm serve --trust_remote_code --max_model_len=8K \\\n -tp 4 --model m"
    assert ServingCommand.read(other) == ServingCommand.read(plain)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vllm serve m --tensor-paralel-size 4", "is not known; did you mean '--tensor-parallel"),
        ("vllm run m", "the command begins with 'vllm run m'; write `vllm serve"),
        ("vllm serve m --max-num-seqs many", "--max-num-seqs is 'many'; write a whole number"),
        ("vllm serve m --max-num-seqs", "--max-num-seqs has no value"),
        ("vllm serve m -tp 2 -tp 4", "--tensor-parallel-size is written twice"),
        ("vllm serve 'm", "cannot be read: No closing quotation"),
        ("vllm serve m --additional-config 3", "is 3; write a JSON object"),
        ("vllm serve m --additional-config {", "is no JSON"),
        ("vllm serve m --async-scheduling=2", "--async-scheduling is '2'; write it alone"),
        ("vllm serve m --gpu-memory-utilization x", "is 'x'; write a number, such as 0.9"),
        ("python -m sgl_jax.launch_server m", "'m' has no flag before it"),
    ],
)
def test_a_command_that_cannot_be_read(line: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ServingCommand.read(line)


def test_what_a_command_of_vllm_means() -> None:
    setup = serving_setup(QWEN, "7x")
    assert setup.parallelism == Parallelism(tensor=2, attention_data=4, experts=8)
    assert setup.plan_keys() == {
        "mesh": {"attn_data": 4, "tensor": 2},
        "expert_parallel": True,
        "weight_dtype": "fp8",
        "matmul_dtype": "",
        "kv_dtype": "fp8",
        "page_size": 256,
        "page_s": setup.engine.page_s,
        "expert_s": 0.0,
        "memory_fraction": 0.92,
        "kernel": "paged",
        "on_chip": True,
        "moe_backend": "epmoe",
    }
    assert (setup.engine.max_model_len, setup.engine.prefix_cache) == (10_000, False)
    assert setup.idle == ("--port",)


def test_what_a_command_of_sglang_means() -> None:
    """Its tensor parallel size counts the devices of all attention groups."""
    setup = serving_setup(LING, "7x")
    assert setup.parallelism == Parallelism(tensor=4, attention_data=8, experts=32)
    assert (setup.weight_dtype, setup.matmul_dtype) == ("fp8", "fp8")
    assert (setup.engine.max_num_batched_tokens, setup.engine.prefix_cache) == (2048, False)
    plan = ServingPlan(**setup.plan_keys())
    assert (plan.moe_backend, plan.least_tokens) == ("fused", 64)
    assert setup.engine.buckets(plan.ranks, plan.least_tokens).decodes[0] == 8


@pytest.mark.parametrize(
    ("flag", "backend"),
    [
        ("", "epmoe"),
        (" --moe-backend epmoe", "epmoe"),
        (" --moe-backend fused_v2", "fused"),
        (" --moe-backend auto", "fused"),
    ],
)
def test_the_experts_of_a_command(flag: str, backend: str) -> None:
    """A command says what its server runs; the recipes' choice is for plans without a command."""
    line = "python -m sgl_jax.launch_server --model m --tp 16 --ep 16"
    setup = serving_setup(line + flag)
    plan = ServingPlan(**setup.plan_keys())
    assert plan.moe_backend == backend
    assert Engine.of("sglang-jax").backend(16) == "fused"
    again = serving_setup(serving_command("m", plan, setup.engine))
    assert ServingPlan(**again.plan_keys()) == plan


def test_the_fused_kernel_of_vllm_has_no_flag() -> None:
    plan = ServingPlan(mesh={"tensor": 8}, expert_parallel=True, moe_backend="fused")
    with pytest.raises(PlanError, match="no flag says it; write moe_backend = 'epmoe'"):
        serving_command("m", plan, Engine.of("vllm-tpu"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vllm serve", "the command names no model; write --model"),
        ("vllm serve m --dtype float32", "--dtype is 'float32', which is not simulated"),
        ("vllm serve m --kv-cache-dtype fp9", "--kv-cache-dtype is 'fp9'; valid are"),
        ("vllm serve m --quantization gguf", "--quantization is 'gguf'; valid are"),
        ("vllm serve m --speculative-config {}", "num_speculative_tokens is None"),
        ('vllm serve m --kv-transfer-config \'{"kv_role": "x"}\'', "kv_role is 'x'"),
        ("python -m sgl_jax.launch_server --model m --tp 8 --dp 3", "cannot be divided into 3"),
        ("python -m sgl_jax.launch_server --model m --moe-backend x", "moe-backend is 'x'; valid"),
        ("python -m sgl_jax.launch_server --model m --tp 8 --ep 4", "divided over 4 of 8 devices"),
        ("vllm bench serve --model m", "`vllm bench serve` starts no server"),
    ],
)
def test_a_command_that_cannot_be_simulated(line: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        serving_setup(line)


def test_speculation_and_roles() -> None:
    config = '{"method": "mtp", "num_speculative_tokens": 3}'
    role = '{"kv_connector": "TPUConnector", "kv_role": "kv_producer"}'
    line = f"vllm serve m --speculative-config '{config}' --kv-transfer-config '{role}'"
    setup = serving_setup(line)
    assert (setup.drafted, setup.role) == (3, "prefill")
    eagle = "python -m sgl_jax.launch_server --model m --speculative-algorithm EAGLE"
    assert serving_setup(f"{eagle} --speculative-num-draft-tokens 4").drafted == 3


PLANS = [
    (ServingPlan(mesh={"tensor": 2}, kv_dtype="fp8", page_size=256), "vllm-tpu"),
    (ServingPlan(mesh={"data": 2, "tensor": 2}, weight_dtype="int8"), "vllm-tpu"),
    (ServingPlan(mesh={"attn_data": 4, "tensor": 2}, expert_parallel=True), "vllm-tpu"),
    (ServingPlan(mesh={"attn_data": 4, "tensor": 4}, weight_dtype="fp8"), "sglang-jax"),
    (ServingPlan(mesh={"tensor": 8}, expert_parallel=True, memory_fraction=0.7), "sglang-jax"),
]


@pytest.mark.parametrize(("plan", "name"), PLANS)
def test_the_command_of_a_plan_means_the_plan(plan: ServingPlan, name: str) -> None:
    engine = Engine.of(name, max_num_seqs=96, prefix_cache=False)
    line = str(serving_command("Qwen/Qwen3-8B", plan, engine, drafted=2))
    setup = serving_setup(line)
    assert ServingPlan(**setup.plan_keys()) == replace(plan, page_s=engine.page_s)
    own = {"moe_backend": plan.moe_backend} if name == "sglang-jax" else {}
    assert setup.engine == engine.changed(
        memory_fraction=plan.memory_fraction,
        page_size=plan.page_size,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        **own,
    )
    assert setup.drafted == 2


@pytest.mark.parametrize(
    ("plan", "name", "message"),
    [
        (ServingPlan(mesh={"tensor": 2, "embed": 2}), "vllm-tpu", "divides the width of the"),
        (ServingPlan(mesh={"data": 2}), "sglang-jax", "SGLang-JAX has no copies of all weights"),
        (ServingPlan(), "jax", "no command of jax is known"),
        (ServingPlan(weight_dtype="fp4"), "vllm-tpu", "weights in fp4 have no flag"),
    ],
)
def test_a_plan_without_a_command(plan: ServingPlan, name: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        serving_command("m", plan, Engine.of(name))


def test_the_manifest_of_one_host() -> None:
    deployment, service = yaml.safe_load_all(
        kubernetes_manifest(ServingCommand.read("vllm serve m -tp 8"), Slice("7x", "2x2x1"))
    )
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["kind"] == "Deployment"
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "2x2x1",
    }
    (container,) = pod["containers"]
    assert container["command"] == ["vllm", "serve", "m", "--tensor-parallel-size", "8"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert service["spec"]["ports"] == [{"port": 8000}]


def test_the_manifest_of_several_hosts() -> None:
    line = "python -m sgl_jax.launch_server --model-path m --tp-size 16"
    job_set, _ = yaml.safe_load_all(
        kubernetes_manifest(ServingCommand.read(line), Slice("v6e", "4x4"), replicas=3)
    )
    (job,) = job_set["spec"]["replicatedJobs"]
    assert (job_set["kind"], job["replicas"]) == ("JobSet", 3)
    assert job["template"]["spec"]["parallelism"] == 4
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"google.com/tpu": 4}
    assert container["command"][-6:-2] == ["--nnodes", "4", "--node-rank", "$(NODE_RANK)"]


def test_eight_chips_of_a_server_are_one_host() -> None:
    made = kubernetes_manifest(ServingCommand.read("vllm serve m -tp 8"), Slice("v6e", "2x4"))
    deployment, _ = yaml.safe_load_all(made)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 8}


@pytest.mark.parametrize("shape", ["2x4", "4x4"])
def test_a_manifest_leaves_names_as_they_are(shape: str) -> None:
    """Kubernetes writes no variable into them, and none ends the comment at the top."""
    command = ServingCommand("vllm-serve", {"--model": "$(NODE_RANK)\nkind: Other"})
    first, _ = yaml.safe_load_all(kubernetes_manifest(command, Slice("v6e", shape)))
    assert first["kind"] == ("Deployment" if shape == "2x4" else "JobSet")
    spec = first["spec"]
    if shape == "4x4":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert "$$(NODE_RANK)\nkind: Other" in container["command"][2]


def test_what_has_no_manifest() -> None:
    with pytest.raises(PlanError, match="has no v3 slices to serve from"):
        kubernetes_manifest(ServingCommand.read("vllm serve m"), Slice("v3", "2x2"))
    with pytest.raises(PlanError, match="vllm-bench starts no server"):
        kubernetes_manifest(ServingCommand.read("vllm bench serve"), Slice("v6e", "1x1"))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3.3-70b"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "qwen3-480b-a35b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("google/gemma-2-27b-it", "gemma2-27b"),
        ("EleutherAI/gpt-j-6b", "gpt-j-6b"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
        ("PaLM 62B", "palm-62b"),
    ],
)
def test_names_of_models(name: str, known: str) -> None:
    assert served_name(name) == known


def test_an_unknown_model() -> None:
    with pytest.raises(ModelError, match="no model 'qwen9-1b' in the zoo"):
        served_name("Qwen/Qwen9-1B-Instruct")

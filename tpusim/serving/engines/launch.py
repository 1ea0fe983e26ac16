"""The command that starts a server with a plan and the settings of an engine."""

from collections.abc import Callable, Mapping
from typing import Any

from tpusim.base.close_names import joined
from tpusim.base.errors import PlanError
from tpusim.plan import ServingPlan
from tpusim.plan.serving_plan import ATTENTION_DATA, DATA, EMBED, TENSOR
from tpusim.serving.engines.command import ServingCommand
from tpusim.serving.engines.engine import Engine
from tpusim.serving.engines.setup import checkpoint_dtype


def serving_command(
    model: str, plan: ServingPlan, engine: Engine, *, drafted: int = 0, role: str = ""
) -> ServingCommand:
    """Return the command of a server, which `serving_setup` reads as this plan and engine.

    model: the model's name on Hugging Face, or its folder.
    drafted, role: see `ServingSetup`.

    Raise PlanError for an engine without a command, and for a plan that its flags cannot state.
    """
    writer = _WRITERS.get(engine.name)
    if writer is None:
        raise PlanError(
            f"no command of {engine.name} is known; write the engine as {joined(_WRITERS, 'or')}"
        )
    _check(plan)
    return writer(model, plan, engine, drafted, role)


def _check(plan: ServingPlan) -> None:
    """Raise PlanError for what no engine can be told."""
    if plan.mesh.get(EMBED, 1) > 1 or plan.gather_weights or plan.attention == "tokens":
        raise PlanError(
            "serving engines divide heads, MLPs and experts, and the plan divides the width of the "
            "residual stream, or tokens within attention, or gathers weights; write a mesh of "
            f"{joined((DATA, ATTENTION_DATA, TENSOR))}, and attention by heads"
        )
    if plan.rules:
        raise PlanError("serving engines have no flags for sharding rules; leave rules out")


def _vllm(model: str, plan: ServingPlan, engine: Engine, drafted: int, role: str) -> ServingCommand:
    if plan.fused_experts:
        raise PlanError(
            "vLLM takes its fused kernel of experts by the environment (USE_MOE_EP_KERNEL=1), and "
            "no flag says it; write moe_backend = 'epmoe'"
        )
    groups, tensor = plan.mesh.get(ATTENTION_DATA, 1), plan.mesh.get(TENSOR, 1)
    strategy = {"enable_dp_attention": True, "attn_dp_size": groups}
    flags: dict[str, Any] = {"--model": model, "--tensor-parallel-size": groups * tensor}
    flags |= _given("--data-parallel-size", plan.mesh.get(DATA, 1), 1)
    flags |= _given("--enable-expert-parallel", plan.expert_parallel, False)
    flags |= _given("--max-model-len", engine.max_model_len, 0)
    flags["--max-num-seqs"] = engine.max_num_seqs
    flags["--max-num-batched-tokens"] = engine.max_num_batched_tokens
    flags["--block-size"] = plan.page_size
    flags["--gpu-memory-utilization"] = plan.memory_fraction
    flags |= _given("--kv-cache-dtype", plan.kv_dtype, "bf16")
    flags |= _quantisation(model, plan, {"fp8": "fp8", "int8": "tpu_int8", "int4": "awq"})
    flags["--enable-prefix-caching"] = engine.prefix_cache
    flags |= _given("--enable-chunked-prefill", engine.chunked_prefill, True)
    if drafted:
        flags["--speculative-config"] = {"num_speculative_tokens": drafted}
    if role:
        kind = {"prefill": "kv_producer", "decode": "kv_consumer"}[role]
        flags["--kv-transfer-config"] = {"kv_connector": "TPUConnector", "kv_role": kind}
    if groups > 1:
        flags["--additional-config"] = {"sharding": {"sharding_strategy": strategy}}
    return ServingCommand("vllm-serve", flags)


def _sglang(
    model: str, plan: ServingPlan, engine: Engine, drafted: int, role: str
) -> ServingCommand:
    groups, tensor = plan.mesh.get(ATTENTION_DATA, 1), plan.mesh.get(TENSOR, 1)
    if plan.mesh.get(DATA, 1) > 1:
        raise PlanError(
            f"SGLang-JAX has no copies of all weights, and the plan has {plan.mesh[DATA]}; start "
            "as many servers, or write attn_data"
        )
    if role:
        raise PlanError(f"the command of a {role} server of SGLang-JAX is not known; use vllm-tpu")
    devices = groups * tensor
    flags: dict[str, Any] = {"--model-path": model, "--tp-size": devices}
    flags |= _given("--dp-size", groups, 1)
    flags |= _given("--ep-size", devices if plan.expert_parallel else 1, 1)
    flags |= _given("--moe-backend", plan.moe_backend, "epmoe")
    flags |= _given("--context-length", engine.max_model_len, 0)
    flags["--max-running-requests"] = engine.max_num_seqs
    flags["--chunked-prefill-size"] = (
        engine.max_num_batched_tokens if engine.chunked_prefill else -1
    )
    flags["--page-size"] = plan.page_size
    flags["--mem-fraction-static"] = plan.memory_fraction
    flags |= _given("--kv-cache-dtype", plan.kv_dtype, "bf16")
    flags |= _quantisation(model, plan, {"fp8": "fp8", "int8": "w8a8_int8", "int4": "awq"})
    flags |= _given("--disable-radix-cache", not engine.prefix_cache, False)
    flags |= _given("--enable-mixed-chunk", engine.mixed, False)
    if drafted:
        flags["--speculative-algorithm"] = "EAGLE"
        flags["--speculative-num-draft-tokens"] = drafted + 1
    return ServingCommand("sglang-jax", flags)


_WRITERS: Mapping[str, Callable[[str, ServingPlan, Engine, int, str], ServingCommand]] = {
    "vllm-tpu": _vllm,
    "vllm-tpu-xla": _vllm,
    "sglang-jax": _sglang,
}


def _given(flag: str, value: Any, default: Any) -> dict[str, Any]:
    """Return a flag with its value, unless that is what the engine has without it."""
    return {} if value == default else {flag: value}


def _quantisation(model: str, plan: ServingPlan, methods: Mapping[str, str]) -> dict[str, str]:
    """Return the flag of weights in another dtype than the checkpoint's."""
    if plan.weight_dtype in ("bf16", checkpoint_dtype(model)):
        return {}
    if plan.weight_dtype not in methods:
        raise PlanError(
            f"weights in {plan.weight_dtype} have no flag; write weight_dtype as one of "
            f"{joined(methods, 'or')}"
        )
    return {"--quantization": methods[plan.weight_dtype]}

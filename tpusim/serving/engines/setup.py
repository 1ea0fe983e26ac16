"""What the command of a serving engine means: model, division of the devices, dtypes, engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shown_value import cut
from tpusim.serving.engines.command import ServingCommand, programs
from tpusim.serving.engines.engine import Engine
from tpusim.serving.engines.parallelism import Parallelism

KV_DTYPES = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8"),
    **dict.fromkeys(("auto", "bfloat16", "bf16"), "bf16"),
    "int8": "int8",
}
"""Dtypes of the cache by their names in commands."""

WEIGHT_DTYPES = {
    **dict.fromkeys(("fp8", "w8a8_fp8", "fp8.yaml", "fp8_w8a8.yaml", "fp8_per_tensor"), "fp8"),
    **dict.fromkeys(("int8", "tpu_int8", "w8a8_int8", "int8.yaml"), "int8"),
    **dict.fromkeys(("awq", "gptq", "auto_awq", "w4afp8"), "int4"),
}
"""Dtypes of weights by the names of quantisations."""

QUANTISED_MATMULS = {"w8a8_fp8": "fp8", "fp8_w8a8.yaml": "fp8", "w8a8_int8": "int8"}
"""Quantisations of activations too."""

BF16_NAMES = ("auto", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetup:
    """What a command says.

    model: the model's name on Hugging Face.
    engine: the engine with its settings.
    parallelism: the division of the devices.
    weight_dtype, matmul_dtype, kv_dtype: see `ServingPlan`; the first is empty where the command
        leaves it to the checkpoint.
    drafted: tokens that speculation drafts for each sequence and step; 0 for none.
    role: `prefill` or `decode` of disaggregated servers; empty for both.
    idle: flags of the command without effect on the prediction.
    """

    model: str
    engine: Engine
    parallelism: Parallelism
    weight_dtype: str = ""
    matmul_dtype: str = ""
    kv_dtype: str = "bf16"
    drafted: int = 0
    role: str = ""
    idle: tuple[str, ...] = ()

    def plan_keys(self, model_len: int = 0, latent: bool = False) -> dict[str, Any]:
        """Return the keys of the `ServingPlan` that the command means.

        model_len, latent: see `Engine.page_tokens`.
        """
        return {
            **self.parallelism.plan_keys(),
            "weight_dtype": self.weight_dtype or checkpoint_dtype(self.model),
            "matmul_dtype": self.matmul_dtype,
            "kv_dtype": self.kv_dtype,
            **self.engine.followed(self.parallelism.experts, model_len, latent),
        }


def serving_setup(command: ServingCommand | str, chip: str = "") -> ServingSetup:
    """Return what a command of `vllm serve` or SGLang-JAX means.

    command: a command line, or one that was read.
    chip: generation of the chips, as some defaults depend on it.

    Raise PlanError for a command without a model, and for values that cannot be simulated.
    """
    read = ServingCommand.read(command) if isinstance(command, str) else command
    if read.program == "vllm-serve":
        return _vllm(read, chip)
    if read.program == "sglang-jax":
        return _sglang(read, chip)
    raise PlanError(f"`{' '.join(programs()[read.program].words)}` starts no server")


def checkpoint_dtype(model: str) -> str:
    """Return the dtype of the weights of a checkpoint, by its name.

    >>> checkpoint_dtype("Qwen/Qwen3-32B-FP8"), checkpoint_dtype("Qwen/Qwen3-32B")
    ('fp8', 'bf16')
    """
    words = model.lower().replace("_", "-").split("-")
    named = (("fp8", "fp8"), ("int8", "int8"), ("w8a8", "int8"), ("awq", "int4"), ("gptq", "int4"))
    return next((dtype for word, dtype in named if word in words), "bf16")


_VLLM_ENGINE = {
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--block-size": "page_size",
    "--gpu-memory-utilization": "memory_fraction",
    "--enable-prefix-caching": "prefix_cache",
    "--enable-chunked-prefill": "chunked_prefill",
}

_SGLANG_ENGINE = {
    "--context-length": "max_model_len",
    "--max-running-requests": "max_num_seqs",
    "--page-size": "page_size",
    "--mem-fraction-static": "memory_fraction",
    "--enable-mixed-chunk": "mixed",
}

_SGLANG_OFF = {"--disable-radix-cache": "prefix_cache"}

_MOE_BACKENDS = {"epmoe": "epmoe", "fused": "fused", "fused_v2": "fused", "auto": "fused"}
"""Matmuls of experts by the words of `--moe-backend`."""

_SGLANG_SIZES = {
    "--precompile-token-paddings": "token_buckets",
    "--precompile-bs-paddings": "decode_buckets",
}


def _vllm(read: ServingCommand, chip: str) -> ServingSetup:
    changes = {key: read.flags[flag] for flag, key in _VLLM_ENGINE.items() if flag in read.flags}
    if changes.get("max_model_len") == -1:
        del changes["max_model_len"]
    strategy = _strategy(read)
    tensor = read.get("--tensor-parallel-size", 1)
    groups = strategy.get("attn_dp_size", 1) if strategy.get("enable_dp_attention") else 1
    data = read.get("--data-parallel-size", 1)
    experts = tensor if read.get("--enable-expert-parallel") else 1
    return ServingSetup(
        model=_model(read, "--model"),
        engine=Engine.of("vllm-tpu", chip=chip, **changes),
        parallelism=Parallelism.of_devices(
            tensor * data, tensor=tensor, attention_data=groups, data=data, ep=experts
        ),
        drafted=_drafted(read),
        role=_role(read.get("--kv-transfer-config", {})),
        idle=tuple(read.idle),
        **_dtypes(read, ("--quantization",)),
    )


def _sglang(read: ServingCommand, chip: str) -> ServingSetup:
    changes = {key: read.flags[flag] for flag, key in _SGLANG_ENGINE.items() if flag in read.flags}
    chunk = read.get("--chunked-prefill-size")
    if chunk == -1:
        changes["chunked_prefill"] = False
    elif chunk is not None:
        changes["max_num_batched_tokens"] = chunk
    for flag, key in _SGLANG_OFF.items():
        if flag in read.flags:
            changes[key] = not read.flags[flag]
    for flag, key in _SGLANG_SIZES.items():
        if sizes := read.get(flag):
            changes[key] = {"sizes": sorted(sizes), "with_limit": True}
    tensor = read.get("--tp-size", 1)
    changes["moe_backend"] = _moe_backend(read)
    return ServingSetup(
        model=_model(read, "--model-path"),
        engine=Engine.of("sglang-jax", chip=chip, **changes),
        parallelism=Parallelism.of_devices(
            tensor,
            tensor=tensor,
            attention_data=read.get("--dp-size", 1),
            ep=read.get("--ep-size", 1),
        ),
        drafted=_sglang_drafted(read),
        idle=tuple(read.idle),
        **_dtypes(read, ("--quantization", "--quantization-config-path")),
    )


def _moe_backend(read: ServingCommand) -> str:
    """Return the matmuls of experts; `auto` is the fused kernel (srt/configs/model_config.py)."""
    named = read.get("--moe-backend", "epmoe")
    if named not in _MOE_BACKENDS:
        raise PlanError(f"--moe-backend is {cut(named)!r}; {nearest(named, _MOE_BACKENDS)}")
    return _MOE_BACKENDS[named]


def _model(read: ServingCommand, flag: str) -> str:
    if model := read.get(flag):
        return str(model)
    raise PlanError(f"the command names no model; write {flag}, such as Qwen/Qwen3-8B")


def _strategy(read: ServingCommand) -> Mapping[str, Any]:
    """Return `sharding.sharding_strategy` of `--additional-config`."""
    sharding = read.get("--additional-config", {}).get("sharding", {})
    strategy = sharding.get("sharding_strategy", {}) if isinstance(sharding, dict) else {}
    if not isinstance(strategy, dict):
        raise PlanError("--additional-config: sharding.sharding_strategy is no object; write one")
    known = ("enable_dp_attention", "attn_dp_size")
    for key in strategy:
        if key not in known:
            raise PlanError(
                f"--additional-config: sharding_strategy.{cut(key)} is not simulated; "
                f"{nearest(key, known)}"
            )
    if strategy.get("enable_dp_attention") and "attn_dp_size" not in strategy:
        raise PlanError(
            "--additional-config: enable_dp_attention leaves the number of groups to the engine; "
            "write attn_dp_size beside it"
        )
    return strategy


def _drafted(read: ServingCommand) -> int:
    config = read.get("--speculative-config")
    if config is None:
        return 0
    drafted = config.get("num_speculative_tokens")
    if isinstance(drafted, bool) or not isinstance(drafted, int) or drafted < 1:
        raise PlanError(
            f"--speculative-config: num_speculative_tokens is {drafted!r}; write a whole number "
            "from 1 up"
        )
    return drafted


def _sglang_drafted(read: ServingCommand) -> int:
    """Return the drafted tokens; the engine counts the one that is sampled among them."""
    if not read.get("--speculative-algorithm"):
        return 0
    return max(int(read.get("--speculative-num-draft-tokens", 4)) - 1, 1)


def _role(transfer: Mapping[str, Any]) -> str:
    roles = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "", None: ""}
    role = transfer.get("kv_role")
    if role not in roles:
        known = [name for name in roles if name]
        raise PlanError(f"--kv-transfer-config: kv_role is {role!r}; {nearest(str(role), known)}")
    return roles[role]


def _dtypes(read: ServingCommand, quantisations: tuple[str, ...]) -> dict[str, Any]:
    """Return the dtypes that a command states."""
    if (dtype := read.get("--dtype", "auto")) not in BF16_NAMES:
        raise PlanError(f"--dtype is {cut(dtype)!r}, which is not simulated; write bfloat16")
    cache = read.get("--kv-cache-dtype", "auto")
    if cache not in KV_DTYPES:
        raise PlanError(f"--kv-cache-dtype is {cut(cache)!r}; {nearest(cache, KV_DTYPES)}")
    found = {"kv_dtype": KV_DTYPES[cache]}
    for flag in quantisations:
        if (method := read.get(flag)) is None:
            continue
        name = str(method).rsplit("/", 1)[-1]
        if name not in WEIGHT_DTYPES:
            raise PlanError(f"{flag} is {cut(name)!r}; {nearest(name, WEIGHT_DTYPES)}")
        found["weight_dtype"] = WEIGHT_DTYPES[name]
        found["matmul_dtype"] = QUANTISED_MATMULS.get(name, "")
    return found

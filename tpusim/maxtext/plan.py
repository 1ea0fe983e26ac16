"""The plan of a config: batch, dtypes, remat and lowering over its mesh."""

from collections.abc import Mapping
from typing import Any

from tpusim.hardware import Slice
from tpusim.maxtext.config import Config
from tpusim.maxtext.mesh import mesh_of
from tpusim.maxtext.model import known
from tpusim.maxtext.remat import remat_of
from tpusim.maxtext.rules import rules_of
from tpusim.models import Transformer
from tpusim.partition import Plan

DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16", "bf16": "bf16", "float32": "f32", "f32": "f32", "fp32": "f32",
}  # fmt: skip
MATMULS: Mapping[str, str] = {
    "": "", "int8": "int8", "fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8",
    "fp8_nanoo": "fp8",
}  # fmt: skip
OPTIMIZERS: Mapping[str, str] = {"adamw": "adam", "adam_pax": "adam", "adam": "adam", "sgd": "sgd"}
"""MaxText's optimizers, and what each costs like: adam_pax is Adam with its decay elsewhere."""


_NOT_YET: Mapping[str, tuple[Any, str]] = {
    "schedule": ("", "pipelines (ici_pipeline_parallelism)"),
    "context_exchange": ("gather", "context_parallel_strategy = {context_parallel_strategy}"),
    "capacity_factor": (0.0, "capacity_factor = {capacity_factor:g}"),
}
"""Fields of a plan, the value that asks for nothing, and what they are called where there are no
such plans."""

EXCHANGES = {"all_gather": "gather", "ring": "ring", "ulysses": "all-to-all"}
"""MaxText's ways to see the keys and values of a sharded sequence, and ours."""


def plan_of(config: Config, model: Transformer, pod: Slice) -> Plan:
    """The plan; `PlanError` with one sentence where there can be none."""
    policy, save, offload = remat_of(config, model)
    mesh = mesh_of(config, pod)
    given = {
        "mesh": mesh,
        "seq_len": config.size("max_target_length"),
        "global_batch": _batch(config, pod),
        "microbatches": config.size("gradient_accumulation_steps"),
        "vocab_tiles": config.size("num_vocab_tiling"),
        "remat": policy,
        "save": save,
        "offload": offload,
        "offload_optimizer": config.flag("optimizer_memory_host_offload"),
        "optimizer": config.choice("opt_type", OPTIMIZERS),
        "style": "maxtext",
        **_dtypes(config),
        **rules_of(config, mesh),
        **_experts(config),
        **_pipeline(config, mesh, model),
        **_context(config, mesh),
    }
    return Plan(**known(config, Plan, given, _NOT_YET))


def _batch(config: Config, pod: Slice) -> int:
    """Sequences a step: those of each device, of all devices, times the accumulated steps."""
    each = config.table["per_device_batch_size"]
    whole = each * pod.devices
    if whole < 1 or whole != int(whole):
        raise config.fault(
            f"per_device_batch_size is {each:g}, which makes {whole:g} sequences on the "
            f"{pod.devices} devices of {pod}; write one that makes a whole number of them"
        )
    return int(whole) * config.size("gradient_accumulation_steps")


def _dtypes(config: Config) -> dict[str, Any]:
    """Gradients come in the dtype of their matmul; what `grad_dtype` casts is not stored again.

    Moments have the weights' dtype, the first one `mu_dtype` where it is given, and so have the
    sums over accumulated steps.
    """
    weights = config.choice("weight_dtype", DTYPES)
    dtype = config.choice("dtype", DTYPES)
    first = config.choice("mu_dtype", DTYPES) if config.text("mu_dtype") else weights
    found = {
        "dtype": dtype, "matmul_dtype": config.choice("quantization", MATMULS),
        "param_dtype": weights, "grad_dtype": dtype,
        "moment_dtype": first, "second_moment_dtype": weights,
    }  # fmt: skip
    if config.size("gradient_accumulation_steps") > 1:
        found["accumulator_dtype"] = weights
    if config.flag("logits_dot_in_fp32"):
        found["loss_dtype"] = "f32"
    return found


def _experts(config: Config) -> dict[str, Any]:
    """How tokens find their experts: by a sort, or into slots up to a capacity, and drop beyond.

    Without a sort and without a capacity, MaxText gives every expert every token.
    """
    if config.size("num_experts") == 1:
        return {}
    if config.flag("sparse_matmul"):
        found = {"capacity_factor": 0.0, "dispatch": "sort"}
    elif config.table["capacity_factor"] > 0:
        found = {"capacity_factor": config.table["capacity_factor"], "dispatch": "one_hot"}
    else:
        raise config.fault(
            f"sparse_matmul is false and capacity_factor {config.table['capacity_factor']:g}, so "
            "that every expert computes every token, which cannot be simulated; write "
            "sparse_matmul=true, or a capacity_factor such as 1.25"
        )
    return {**found, "expert_exchange": "ring"} if config.flag("use_ring_of_experts") else found


def _pipeline(config: Config, mesh: Mapping[str, int], model: Transformer) -> dict[str, Any]:
    """The circular schedule, in which each stage has as many parts of the model as it repeats."""
    stages = mesh.get("stage", 1) * mesh.get("dcn_stage", 1)
    if stages == 1:
        return {}
    piped = config.table["pipeline_parallel_layers"]
    if piped not in (-1, model.layers) or config.size("first_num_dense_layers", least=0):
        raise config.fault("layers outside the pipeline cannot be simulated yet; pipeline them all")
    if config.size("gradient_accumulation_steps") > 1:
        raise config.fault(
            "gradient_accumulation_steps with a pipeline cannot be simulated yet; write more "
            "num_pipeline_microbatches"
        )
    parts = config.table["num_pipeline_microbatches"]
    parts = stages if parts == -1 else config.size("num_pipeline_microbatches")
    if parts % stages:
        raise config.fault(
            f"num_pipeline_microbatches is {parts}, which the {stages} stages do not divide; write "
            "a multiple of them"
        )
    repeats = _repeats(config, model.layers, stages)
    return {"schedule": "circular", "virtual_stages": repeats, "microbatches": parts}


def _repeats(config: Config, layers: int, stages: int) -> int:
    """How often each stage has a part of the model."""
    each = config.size("num_layers_per_pipeline_stage")
    repeats = config.table["num_pipeline_repeats"]
    repeats = layers // (stages * each) if repeats == -1 else config.size("num_pipeline_repeats")
    if stages * each * repeats != layers:
        raise config.fault(
            f"{stages} stages x num_layers_per_pipeline_stage={each} x {max(repeats, 1)} repeats "
            f"are not the {layers} layers; write numbers that are"
        )
    return repeats


def _context(config: Config, mesh: Mapping[str, int]) -> dict[str, Any]:
    if not {"context", "dcn_context"} & mesh.keys():
        return {}
    return {"context_exchange": config.choice("context_parallel_strategy", EXCHANGES)}

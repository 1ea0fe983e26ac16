"""The plan of a config: batch, dtypes, remat, experts, pipeline and context over its mesh."""

from collections.abc import Mapping
from typing import Any

from tpusim.hardware import Slice
from tpusim.maxtext.adapters import adapters_of
from tpusim.maxtext.config import MaxTextConfig
from tpusim.maxtext.logical_axes import rules_of
from tpusim.maxtext.mesh import mesh_of
from tpusim.maxtext.remat import remat_of
from tpusim.maxtext.shipped_tables import words
from tpusim.models import Transformer
from tpusim.plan import ONE_KERNEL, TWO_KERNELS, Plan
from tpusim.program import SPLASH, TOKAMAX

USP = "usp"
"""The exchange that combines a ring and an all-to-all."""


def plan_of(config: MaxTextConfig, model: Transformer, pod: Slice) -> Plan:
    """Return the plan. Raise PlanError with one sentence if there is none."""
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
        "scan_layers": config.flag("scan_layers"),
        "offload_optimizer": config.flag("optimizer_memory_host_offload"),
        "optimizer": config.choice("opt_type", words("opt_type")),
        "style": "maxtext",
        **_dtypes(config),
        **rules_of(config, mesh),
        **_experts_of(config),
        **_pipeline_of(config, mesh, model),
        **_context_of(config, mesh),
        **_attention_kernel_of(config),
        **_update_of(config, mesh),
        **adapters_of(config, model),
    }
    return Plan(**given)


def _update_of(config: MaxTextConfig, mesh: Mapping[str, int]) -> dict[str, Any]:
    """Return the axes over which weights are updated in parts (ZeRO-1); none without the key."""
    axes = tuple(axis for axis in ("dcn_data", "data") if axis in mesh)
    if not config.flag("shard_optimizer_over_data") or not axes:
        return {}
    if sharded := [axis for axis in mesh if "fsdp" in axis]:
        raise config.fault(
            f"shard_optimizer_over_data is true and the mesh has {sharded[0]}={mesh[sharded[0]]}, "
            "which MaxText does not combine; write ici_fsdp_parallelism=1, or leave it out"
        )
    return {"weight_update_axes": axes}


def _batch(config: MaxTextConfig, pod: Slice) -> int:
    """Return the sequences per step: those of all devices, times the accumulated steps."""
    each = config.table["per_device_batch_size"]
    whole = each * pod.devices
    if whole < 1 or whole != int(whole):
        raise config.fault(
            f"per_device_batch_size is {each:g}, which makes {whole:g} sequences on the "
            f"{pod.devices} devices of {pod}; write one that makes a whole number of them"
        )
    return int(whole) * config.size("gradient_accumulation_steps")


def _dtypes(config: MaxTextConfig) -> dict[str, Any]:
    """Return the dtypes: a gradient has that of its matmul, in the stacks of the layers that of
    its weight; a cast to `grad_dtype` is not stored.

    Moments have the weights' dtype, the first one `mu_dtype` where it is given, and the sums over
    accumulated steps have the weights' dtype too. int8 is AQT's, whose operands are gathered as
    they are multiplied, and whose gradients are rounded with noise (Qwix rounds to the nearest);
    without local shards it does not quantise the gradients of weights.
    """
    weights = config.choice("weight_dtype", words("dtype"))
    dtype = config.choice("dtype", words("dtype"))
    first = config.choice("mu_dtype", words("dtype")) if config.text("mu_dtype") else weights
    found = {
        "dtype": dtype,
        "matmul_dtype": config.choice("quantization", words("quantization")),
        "param_dtype": weights,
        "grad_dtype": dtype if dtype == "f32" else "",
        "moment_dtype": first,
        "second_moment_dtype": weights,
    }
    if found["matmul_dtype"] == "int8":
        qwix = config.flag("use_qwix_quantization")
        found |= {"gather_dtype": "int8", "quantisation_noise": "" if qwix else "u32"}
        if not qwix and config.table["quantization_local_shard_count"] == 0:
            if dtype != "bf16":
                raise config.fault(
                    "quantization_local_shard_count is 0 with quantization=int8 and dtype=float32, "
                    "so that f32 and int8 multiply beside each other, which cannot be simulated; "
                    "write dtype=bfloat16"
                )
            found["matmul_dtype_dw"] = dtype
    if config.size("gradient_accumulation_steps") > 1:
        found["accumulator_dtype"] = weights
    if config.flag("logits_dot_in_fp32"):
        found["logits_dtype"] = "f32"
    return found


def _experts_of(config: MaxTextConfig) -> dict[str, Any]:
    """Return the routing of tokens: by a sort, or into slots, of which a full one drops tokens.

    Without a sort and without a capacity, MaxText gives every expert every token. Its ring of
    experts gathers the tokens of all and scatters their results. Without a factor its buffers have
    capacity for all tokens that could arrive. Grouped kernels have the tiles of the first matmul
    forward; those of the others, which may differ, are not read. Tokamax's choose their own.
    """
    if config.size("num_experts") == 1:
        return {}
    capacity = 0.0 if config.flag("sparse_matmul") else config.table["capacity_factor"]
    if capacity < 0 or (not capacity and not config.flag("sparse_matmul")):
        raise config.fault(
            f"sparse_matmul is false and capacity_factor {capacity:g}, so that every expert "
            "computes every token, which cannot be simulated; write sparse_matmul=true, or a "
            "capacity_factor such as 1.25"
        )
    exchange = {"expert_exchange": "gather"} if config.flag("use_ring_of_experts") else {}
    buffer = 0.0 if capacity else max(config.table["ragged_buffer_factor"], 0.0)
    tiles = [config.size(f"wi_tile_fwd_{side}") for side in ("batch_seq", "embed_dim", "mlp_dim")]
    own = config.flag("use_tokamax_gmm")
    kernels: dict[str, Any] = {} if capacity else {"expert_tiles": [] if own else tiles}
    if config.flag("sparse_matmul") and not config.flag("use_custom_sort_vjp"):
        kernels |= {"expert_sort_gradient": "scatter"}
    return {"capacity_factor": capacity, "expert_buffer": buffer, **exchange, **kernels}


def _pipeline_of(
    config: MaxTextConfig, mesh: Mapping[str, int], model: Transformer
) -> dict[str, Any]:
    """Return the circular schedule, in which a stage has as many parts of the model as repeats."""
    stages = mesh.get("stage", 1) * mesh.get("dcn_stage", 1)
    if stages == 1:
        return {}
    piping = "pipeline_parallel_layers"
    piped = config.table[piping]
    dense = config.size("first_num_dense_layers", least=0)
    if piped not in (-1, model.layers) or dense:
        key, value = ("first_num_dense_layers", dense) if dense else (piping, piped)
        raise config.fault(
            f"{key} is {value}, but layers outside the pipeline cannot be simulated yet; write "
            f"{key}={0 if dense else -1}"
        )
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


def _repeats(config: MaxTextConfig, layers: int, stages: int) -> int:
    """Return the parts of the model that each stage has."""
    each = config.size("num_layers_per_pipeline_stage")
    repeats = config.table["num_pipeline_repeats"]
    repeats = layers // (stages * each) if repeats == -1 else config.size("num_pipeline_repeats")
    if stages * each * repeats != layers:
        raise config.fault(
            f"{stages} stages x num_layers_per_pipeline_stage={each} x {max(repeats, 1)} repeats "
            f"are not the {layers} layers; write numbers that are"
        )
    return repeats


def _context_of(config: MaxTextConfig, mesh: Mapping[str, int]) -> dict[str, Any]:
    """Return the exchange of keys and values of a sharded sequence, and the balance of its work.

    `usp` combines two: a ring over the axis `context`, and heads over another.
    """
    whole, heads = (
        [axis for axis in (f"dcn_{name}", name) if axis in mesh]
        for name in ("context", "context_usp_ulysses")
    )
    if not whole and not heads:
        return {}
    key = "context_parallel_strategy"
    strategy = config.choice(key, words(key))
    if heads and strategy != USP:
        raise config.fault(
            f"context_usp_ulysses is {mesh[heads[0]]}, which is for "
            f"context_parallel_strategy=usp; write usp, or 1"
        )
    if strategy == USP:
        strategy = dict.fromkeys(whole, "ring") | dict.fromkeys(heads, "all-to-all")
    return {
        "context_exchange": strategy,
        "context_balanced": config.flag("context_parallel_load_balance"),
    }


def _attention_kernel_of(config: MaxTextConfig) -> dict[str, Any]:
    """Return the blocks of the attention kernel and the kernels of its backward pass.

    The backward pass has the blocks of its kernel for keys and values.
    """
    forward, backward = (
        [config.size(f"sa_block_{side}{of}") for side in ("q", "kv")] for of in ("", "_dkv")
    )
    fused = config.flag("sa_use_fused_bwd_kernel")
    ring = config.text("context_parallel_strategy") == "ring"
    tokamax = config.flag("use_tokamax_splash") and not ring
    return {
        "attention_block": forward,
        "attention_block_backward": backward if backward != forward else (),
        "attention_backward": ONE_KERNEL if fused else TWO_KERNELS,
        "attention_library": TOKAMAX if tokamax else SPLASH,
    }

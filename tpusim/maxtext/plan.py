"""The plan of a config: batch, dtypes, remat and lowering over its mesh."""

from collections.abc import Mapping
from typing import Any

from tpusim.hardware import Slice
from tpusim.maxtext.config import Config
from tpusim.maxtext.mesh import mesh_of
from tpusim.maxtext.parallel import context_of, experts_of, pipeline_of
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
        **experts_of(config),
        **pipeline_of(config, mesh, model),
        **context_of(config, mesh),
    }
    return Plan(**given)


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

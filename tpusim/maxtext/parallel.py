"""Experts, pipelines and sharded sequences: the fields of a plan that they decide."""

from collections.abc import Mapping
from typing import Any

from tpusim.maxtext.config import Config
from tpusim.models import Transformer

USP = "usp"
EXCHANGES = {"all_gather": "gather", "ring": "ring", "ulysses": "all-to-all", USP: USP}
"""MaxText's ways to see the keys and values of a sharded sequence, and ours."""


def experts_of(config: Config) -> dict[str, Any]:
    """How tokens find their experts: by a sort, or into slots up to a capacity, and drop beyond.

    Without a sort and without a capacity, MaxText gives every expert every token. Its ring of
    experts gathers the tokens of all and scatters their results. Its buffers have room for all that
    could come where no factor says how much.
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
    room = 0.0 if capacity else max(config.table["ragged_buffer_factor"], 0.0)
    return {"capacity_factor": capacity, "expert_buffer": room, **exchange}


def pipeline_of(config: Config, mesh: Mapping[str, int], model: Transformer) -> dict[str, Any]:
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


def context_of(config: Config, mesh: Mapping[str, int]) -> dict[str, Any]:
    """How each device sees the keys and values of a sharded sequence, and the share of its work.

    `usp` goes two ways: round the axis `context`, and by heads over another.
    """
    whole, heads = (
        [axis for axis in (f"dcn_{name}", name) if axis in mesh]
        for name in ("context", "context_usp_ulysses")
    )
    if not whole and not heads:
        return {}
    strategy = config.choice("context_parallel_strategy", EXCHANGES)
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

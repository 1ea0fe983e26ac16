"""A MaxText config is the run that a person would write for it."""

from pathlib import Path
from typing import Any

import pytest
from inputs import counted_tflops, models

import tpusim as ts

MEASURED = Path(__file__).parents[2] / "measured" / "runs" / "calibration"

CUSTOM = ("remat_policy=custom", "attention=flash", "max_target_length=8192", "use_iota_embed=True")
LARGE_BLOCKS = (
    "sa_block_q=2048", "sa_block_kv=2048", "sa_block_q_dkv=2048", "sa_block_kv_dkv=2048",
)  # fmt: skip
FUSED = "sa_use_fused_bwd_kernel=True"
RECIPES = {
    "tr-v6e-llama3-1-70b-256": (
        "v6e-256", "model_name=llama3.1-70b", "per_device_batch_size=5", *CUSTOM,
        "decoder_layer_input=offload", "query_proj=offload", "key_proj=offload",
        "value_proj=offload", "dataset_type=synthetic", *LARGE_BLOCKS, FUSED,
    ),
    "tr-v6e-llama3-1-8b-8": (
        "v6e-8", "model_name=llama3.1-8b", "per_device_batch_size=3", *CUSTOM,
        "decoder_layer_input=offload", "out_proj=offload", "query_proj=offload",
        "key_proj=offload", "value_proj=offload", "profiler=xplane", *LARGE_BLOCKS, FUSED,
    ),
    "tr-v5p-llama3-1-405b": (
        "v5p-1024", "model_name=llama3.1-405b", "per_device_batch_size=2", *CUSTOM,
        "context=offload", "mlpwo=offload", "num_vocab_tiling=4", *LARGE_BLOCKS,
    ),
    "tr-v6e-gpt3-int8": (
        "v6e-256", "model_name=gpt3-175b", "per_device_batch_size=3", "remat_policy=full",
        "attention=flash", "quantization=int8", "sa_block_q=1024", "sa_block_q_dkv=2048",
    ),
    "tr-v6e-gemma3-12b-1x": (
        "v6e-256", "model_name=gemma3-12b", "per_device_batch_size=1", "num_vocab_tiling=16",
        "remat_policy=custom", "decoder_layer_input=device", "query_proj=remat", "key_proj=remat",
        "value_proj=remat", "max_target_length=32768", "attention=flash", "sa_block_q=1024",
        "sa_block_kv=1024", "sa_block_q_dkv=512", "sa_block_kv_dkv=2048",
    ),
    "tr-v7x-70b-128k-bf16-head": (
        "tpu7x-4x8x8", "model_name=llama3.1-70b", "dtype=bfloat16", "per_device_batch_size=0.125",
        "remat_policy=custom", "decoder_layer_input=device", "context=device", "query_proj=device",
        "key_proj=device", "value_proj=device", "mlpwo=device", "num_vocab_tiling=4",
        "ici_fsdp_parallelism=-1", "ici_context_parallelism=8", "opt_type=adam_pax",
        "max_target_length=131072", "attention=flash", "sa_block_q=2048", "sa_block_kv=2048",
        "sa_block_q_dkv=1024", "sa_block_kv_dkv=4096", FUSED,
    ),
    "tr-v6e-mixtral-8x7b-pdb8": (
        "v6e-256", "model_name=mixtral-8x7b", "per_device_batch_size=8", "ici_fsdp_parallelism=-1",
        "max_target_length=4096", "remat_policy=full", "attention=flash", "megablox=False",
        "sparse_matmul=False", "capacity_factor=1.25", "sa_block_q=2048", "sa_block_q_dkv=2048",
    ),
    "tr-v7x-dsv3-128-bf16-head": (
        "tpu7x-4x4x8", "model_name=deepseek3-671b", "per_device_batch_size=8.0",
        "max_target_length=4096", "remat_policy=custom", "decoder_layer_input=offload",
        "opt_type=adamw", "mu_dtype=bfloat16", "grad_dtype=bfloat16", "megablox=True",
        "sparse_matmul=True", "use_custom_sort_vjp=True", "use_tokamax_gmm=True", "attention=flash",
        *LARGE_BLOCKS, FUSED,
    ),
    "mt-v5e-128b-16x": (
        "v5e-256", "num_slices=16", "per_device_batch_size=1", "ici_tensor_parallelism=16",
        "global_parameter_scale=128", "base_emb_dim=2560", "base_mlp_dim=8192",
        "base_num_query_heads=8", "base_num_kv_heads=8", "head_dim=256", "vocab_size=32768",
        "base_num_decoder_layers=16", "decoder_block=default", "mlp_activations=[relu]",
        "logits_via_embedding=true",
    ),
}  # fmt: skip
"""The keys of published recipes (AI-Hypercomputer/tpu-recipes and maxtext, as the run files name
them): of 2023 with the defaults of then."""


WHOLE_KEYS = ("mistral-7b",)
"""Models that see a window of the keys, which MaxText leaves out (layers/decoders.py)."""


GPT_3 = {
    "fused_qkv": True, "norm": "layer", "positions": 16384,
    "qkv_bias": True, "out_bias": True, "mlp_bias": True,
}  # fmt: skip
"""What MaxText's GPT-3 has (models/gpt3.py), and the zoo's, of matrices alone, has not."""

BESIDES: dict[str, dict[str, Any]] = {"gpt3-175b": GPT_3}


OTHERWISE = {
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2",
    "deepseek3-671b": "deepseek-v3",
}  # fmt: skip
"""Models that the zoo calls otherwise."""


@pytest.mark.parametrize("name", RECIPES)
def test_the_keys_of_a_recipe_are_the_run_that_was_measured(name: str) -> None:
    pod, *overrides = RECIPES[name]
    run, file = ts.from_maxtext(None, overrides, pod=pod), ts.read_run(MEASURED / f"{name}.toml")
    assert shown(run.plan) == shown(file.plan)
    assert run.pod == file.pod
    besides = BESIDES.get(run.model.name, {})
    assert used(dims(run.model) | {"name": ""}) == used(dims(file.model) | besides | {"name": ""})


def shown(plan: ts.Plan) -> ts.Plan:
    """The plan without the name of what every policy saves, and without the compiler's flags.

    Those are no keys of a config: recipes for v6e switch collective matmuls off beside it. A dtype
    that a file leaves out is the one that it follows.
    """
    saved = tuple(name for name in plan.remat.save if name != "layer_in")
    second = plan.dtypes.of("second_moment")
    return plan.replace(save=saved, collective_matmul=True, second_moment_dtype=second)


def dims(model: ts.models.Transformer) -> dict[str, Any]:
    return model.flat()


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (n, z)
        for n in models()
        if (z := OTHERWISE.get(n, n)) in ts.models.names(ts.models.Transformer)
    ],
)
def test_a_model_name_is_the_model_of_the_zoo(name: str, known: str) -> None:
    run = ts.from_maxtext("defaults", {"model_name": name}, pod="v5e-16")
    zoo = dims(ts.models.load(known)) | {"name": name}
    whole = {"window": 0} if name in WHOLE_KEYS else {}
    assert used(dims(run.model)) == used(zoo | whole | BESIDES.get(name, {}))


def used(model: dict[str, Any]) -> dict[str, Any]:
    """The dimensions without the width of an MLP that no layer has, as all of them have experts."""
    if not model.get("experts") or model["dense_layers"] or model["expert_every"] > 1:
        return model
    return model | {"mlp": model["expert_mlp"] or model["mlp"], "expert_mlp": 0}


def test_the_defaults_alone_are_a_run() -> None:
    run = ts.from_maxtext(None, pod="v4-16")
    assert run.notes == ()
    assert (run.plan.global_batch, run.plan.seq_len, run.plan.mesh) == (96, 2048, {"fsdp": 8})
    assert ts.simulate(run.model, run.plan, run.pod).step_time_s > 0


@pytest.mark.parametrize(
    ("name", "whole"),
    [("llama2-7b", 1053.4), ("llama2-13b", 2018.7), ("mistral-7b", 1127.6),
     ("llama2-70b", 10528.0), ("gemma-7b", 1328.2), ("gemma-2b", 391.8)],
)  # fmt: skip
def test_flops_are_those_that_maxtext_prints(name: str, whole: float) -> None:
    """Of 12 x 2048 tokens a device, as versions print that count attention whole."""
    run = ts.from_maxtext(None, {"model_name": name}, pod="v5p-8")
    assert isinstance(run.model, ts.models.Transformer)
    _, counted = counted_tflops(run.model, run.plan, run.pod)
    assert round(counted, 1) == whole
    assert f"or {whole:,.1f} with whole attention" in run.counts


@pytest.mark.parametrize(
    ("name", "half"),
    [("llama2-7b", 1013.8), ("deepseek3-671b", 5777.8), ("mixtral-8x7b", 1919.4),
     ("qwen3-30b-a3b", 507.9), ("gpt3-175b", 26096.8), ("olmo3-7b", 1055.1)],
)  # fmt: skip
def test_causal_attention_counts_half_in_later_versions(name: str, half: float) -> None:
    """As `calculate_tflops_training_per_device` of maxtext 0.2.5, run on its own configs, says."""
    run = ts.from_maxtext(None, {"model_name": name}, pod="v5p-8")
    assert f"MaxText counts {half:,.1f} TFLOP per device and step" in run.counts


@pytest.mark.parametrize(
    ("keys", "library"),
    [
        ({}, "splash"),
        ({"use_tokamax_splash": True}, "tokamax"),
        ({"use_tokamax_splash": True, "context_parallel_strategy": "ring"}, "splash"),
    ],
)
def test_the_library_of_attention_is_a_key(keys: dict[str, Any], library: str) -> None:
    """A ring's kernels are taken as splash attention's, whatever the key says."""
    assert ts.from_maxtext(None, keys, pod="v5e-16").plan.attention_kernel.library == library


@pytest.mark.parametrize(
    ("keys", "tiles", "gradient"),
    [
        ({}, (512, 1024, 1024), "gather"),
        ({"wi_tile_fwd_mlp_dim": 512}, (512, 1024, 512), "gather"),
        ({"use_tokamax_gmm": True, "wi_tile_fwd_mlp_dim": 512}, (), "gather"),
        ({"use_custom_sort_vjp": False}, (512, 1024, 1024), "scatter"),
        ({"use_custom_sort_vjp": False, "sparse_matmul": False, "capacity_factor": 1.25},
         (512, 1024, 1024), "gather"),
    ],
)  # fmt: skip
def test_kernels_and_the_sort_of_experts_are_keys(
    keys: dict[str, Any], tiles: tuple[int, ...], gradient: str
) -> None:
    """Tokamax's kernels choose their tiles; without a sort nothing is scattered."""
    asked = {"model_name": "mixtral-8x7b"} | keys
    found = ts.from_maxtext(None, asked, pod="v5p-128").plan.experts
    assert (found.tiles, found.sort_gradient) == (tiles, gradient)

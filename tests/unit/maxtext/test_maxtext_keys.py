"""Each key of a MaxText config does what MaxText makes of it, or is named."""

from pathlib import Path
from typing import Any

import pytest
from inputs import ignored

import tpusim as ts
from tpusim import models
from tpusim.maxtext import from_maxtext
from tpusim.models import Transformer
from tpusim.runfile import SimulationRun

SMALL = {
    "base_num_decoder_layers": 2, "base_emb_dim": 512, "base_mlp_dim": 2048, "head_dim": 128,
    "base_num_query_heads": 4, "base_num_kv_heads": 4, "vocab_size": 1024,
    "per_device_batch_size": 2, "max_target_length": 256,
}  # fmt: skip
DOTS = ("k", "mlp_in_0", "mlp_in_1", "mlp_out", "out", "q", "v")


def run(pod: str = "v5e-16", **keys: Any) -> SimulationRun:
    return from_maxtext(None, {**SMALL, **keys}, pod=pod)


@pytest.mark.parametrize(
    ("policy", "remat", "save", "offload"),
    [
        ("full", "full", (), ()),
        ("none", "full", (), ()),
        ("minimal", "minimal", (), ()),
        ("minimal_flash", "minimal", ("context",), ()),
        ("minimal_with_context", "minimal", ("context",), ()),
        ("save_dot_with_context_except_mlp", "full", ("context", "k", "out", "q", "v"), ()),
        ("save_dot_except_mlp", "full", ("k", "out", "q", "v"), ()),
        ("save_dot_except_mlpwi", "full", ("k", "mlp_out", "out", "q", "v"), ()),
        ("save_qkv_proj", "full", ("k", "q", "v"), ()),
        ("save_out_proj", "full", ("out",), ()),
        ("minimal_offload", "full", (), DOTS),
        ("qkv_proj_offloaded", "full", (), ("k", "q", "v")),
        ("minimal_offloaded", "full", (), DOTS),
    ],
)
def test_a_policy_saves_what_maxtext_saves(
    policy: str, remat: str, save: tuple[str, ...], offload: tuple[str, ...]
) -> None:
    given = run(remat_policy=policy)
    assert (given.plan.remat.policy, given.plan.remat.save, given.plan.remat.offload) == (
        remat,
        save,
        offload,
    )
    ts.simulate(given.model, given.plan, given.pod)


def test_zero_1_updates_weights_in_parts_over_data() -> None:
    mesh = {"ici_fsdp_parallelism": 1, "ici_data_parallelism": 16}
    assert run(shard_optimizer_over_data=True, **mesh).plan.optimizer.axes == ("data",)
    assert run(**mesh).plan.optimizer.axes == ()


def test_muon_is_the_plans() -> None:
    assert run(opt_type="muon").plan.optimizer.name == "muon"


def test_the_custom_policy_puts_each_tensor_where_its_key_says() -> None:
    where = {"decoder_layer_input": "offload", "mlpwo": "device", "context": "offload",
             "mlpwi_0": "device", "out_proj": "remat", "attention_out": "device"}  # fmt: skip
    given = run(remat_policy="custom", **where).plan
    assert (given.remat.policy, given.remat.save, given.remat.offload) == (
        "full", ("attended", "mlp_in_0", "mlp_out"), ("context", "layer_in")
    )  # fmt: skip


def test_sorted_tokens_are_a_tensor_that_may_be_saved() -> None:
    keys = {"decoder_block": "mixtral", "num_experts": 8, "num_experts_per_tok": 2}
    given = run(remat_policy="custom", moe_x_sorted="device", **keys)
    assert given.plan.remat.save == ("dispatched",)
    ts.simulate(given.model, given.plan, given.pod)


def test_what_goes_to_the_host_by_one_name_is_not_kept_by_another() -> None:
    keys = {"remat_policy": "custom", "mlpwi": "offload", "mlpwi_0": "device"}
    given = run(**keys, fused_mlp=True).plan
    assert (given.save, given.offload) == ((), ("mlp_in_0", "mlp_in_1"))


def test_a_name_that_no_layer_makes_saves_nothing() -> None:
    """As in MaxText: a gated MLP has mlpwi_0 and mlpwi_1, and mlpwi only with fused_mlp."""
    keys = {"remat_policy": "custom", "mlpwi": "device", "qkv_proj": "offload"}
    assert (run(**keys).plan.remat.save, run(**keys).plan.remat.offload) == ((), ())
    assert run(**keys, fused_qkv=True).plan.remat.offload == ("qkv",)
    assert run(**keys, fused_mlp=True).plan.remat.save == ("mlp_in_0", "mlp_in_1")
    assert run(**keys, mlp_activations=["relu"]).plan.remat.save == ("mlp_in",)


@pytest.mark.parametrize(
    ("keys", "mesh"),
    [
        ({}, {"fsdp": 16}),
        ({"ici_tensor_parallelism": 4}, {"fsdp": 4, "tensor": 4}),
        ({"ici_fsdp_parallelism": 1, "ici_data_parallelism": -1}, {"data": 16}),
        ({"ici_fsdp_parallelism": 16}, {"fsdp": 16}),
        ({"num_slices": 2}, {"fsdp": 16, "dcn_data": 2}),
        ({"compile_topology_num_slices": 2, "dcn_data_parallelism": 1, "dcn_fsdp_parallelism": -1},
         {"fsdp": 16, "dcn_fsdp": 2}),
        ({"dcn_fsdp_parallelism": 2}, {"fsdp": 16, "dcn_fsdp": 2}),
    ],
)  # fmt: skip
def test_the_open_axis_is_filled_in(keys: dict[str, int], mesh: dict[str, int]) -> None:
    given = run(**keys)
    assert given.plan.mesh == mesh
    assert given.plan.devices == given.pod.devices


def test_the_batch_is_that_of_all_devices_and_of_all_accumulated_steps() -> None:
    given = run(per_device_batch_size=0.5, gradient_accumulation_steps=3, num_slices=2).plan
    assert (given.global_batch, given.microbatches, given.accumulator_dtype) == (48, 3, "f32")
    assert run("7x:4x4x4", per_device_batch_size=1).plan.global_batch == 128


@pytest.mark.parametrize(("name", "chips"), [("v5e-256", 256), ("v4-512", 256), ("v5p-8", 4)])
def test_a_topology_counts_as_its_generation_does(name: str, chips: int) -> None:
    assert from_maxtext(None, {**SMALL, "compile_topology": name}).pod.chips == chips


@pytest.mark.parametrize(
    ("scale", "factors"),
    [(1, (1, 1, 1)), (2, (1, 2, 1)), (4, (2, 2, 1)), (8, (2, 2, 2)), (32, (4, 4, 2))],
)
def test_the_scale_doubles_heads_and_mlp_then_embed_then_layers(
    scale: int, factors: tuple[int, int, int]
) -> None:
    small, large = run().model, run(global_parameter_scale=scale).model
    embed, wide, deep = factors
    assert (large.embed, large.mlp, large.heads, large.kv_heads, large.layers) == (
        embed * small.embed, wide * small.mlp, wide * small.heads, wide * small.kv_heads,
        deep * small.layers,
    )  # fmt: skip


def test_dtypes_and_optimizer() -> None:
    of_maxtext = {"weight_dtype": "bfloat16", "mu_dtype": "float32", "quantization": "fp8_full"}
    others = {"logits_dot_in_fp32": True, "optimizer_memory_host_offload": True}
    given = run(opt_type="sgd", **of_maxtext, **others).plan
    dtypes = given.dtypes
    assert (dtypes.param, dtypes.moment, dtypes.second_moment) == ("bf16", "f32", "bf16")
    assert (given.optimizer.name, dtypes.matmul, dtypes.logits) == ("sgd", "fp8", "f32")
    assert given.optimizer.offload
    assert run(dtype="float32").plan.dtypes.grad == "f32"
    assert {key: run(quantization=key).plan.dtypes.gather for key in ("", "int8", "fp8")} == {
        "": "", "int8": "int8", "fp8": "",
    }  # fmt: skip
    assert {key: run(quantization=key).plan.dtypes.noise for key in ("", "int8", "fp8")} == {
        "": "", "int8": "u32", "fp8": "",
    }  # fmt: skip
    assert run(quantization="int8", use_qwix_quantization=True).plan.dtypes.noise == ""
    whole = run(quantization="int8", quantization_local_shard_count=0).plan.dtypes
    assert (whole.of("matmul"), whole.of("matmul_dx"), whole.of("matmul_dw")) == (
        "int8", "int8", "bf16"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"decoder_block": "default"}, {"parallel": True}),
        ({"decoder_block": "gpt3", "mlp_activations": ["gelu"]},
         {"rotary": False, "gated": False, "activation": "gelu"}),
        ({"decoder_block": "gemma2", "sliding_window_size": 64, "use_post_attn_norm": True,
          "use_post_ffw_norm": True},
         {"layers": 4, "window": 64, "global_every": 2, "post_norms": True}),
        ({"decoder_block": "gemma3", "sliding_window_size": 64},
         {"qk_norm": True, "window": 64, "global_every": 6}),
        ({"decoder_block": "gemma4", "sliding_window_size": 64, "global_head_dim": 512,
          "global_num_kv_heads": 1, "share_kv_projections": True, "final_logits_soft_cap": 30.0,
          "logits_via_embedding": True},
         {"qk_norm": True, "window": 64, "global_every": 6, "global_head_dim": 512,
          "global_kv_heads": 1, "global_keys_as_values": True, "logit_cap": 30.0}),
        ({"decoder_block": "gemma4_small", "sliding_window_size": 64, "num_kv_shared_layers": 1,
          "hidden_size_per_layer_input": 16},
         {"global_every": 6, "layer_embed": 0, "wide_layers": 0, "wide_mlp": 0}),
        ({"decoder_block": "gemma4_small", "sliding_window_size": 64, "use_post_attn_norm": False,
          "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 1024},
         {"layer_embed": 16, "post_norms": True}),
        ({"use_post_attn_norm": True, "hidden_size_per_layer_input": 16, "global_head_dim": 8,
          "vocab_size_per_layer_input": 1024, "num_kv_shared_layers": 1, "share_kv_projections":
          True, "use_double_wide_mlp": True, "final_logits_soft_cap": 3.0},
         {"post_norms": False, "layer_embed": 0, "global_head_dim": 0, "wide_layers": 0,
          "logit_cap": 0.0}),
        ({"decoder_block": "gemma4_small", "sliding_window_size": 64, "num_kv_shared_layers": 1,
          "use_double_wide_mlp": True, "base_mlp_dim": 96}, {"wide_layers": 1, "wide_mlp": 192}),
        ({"decoder_block": "qwen3", "use_qk_norm": True}, {"qk_norm": True}),
        ({"use_qk_norm": True}, {"qk_norm": False}),
        ({"sliding_window_size": 64}, {"window": 0}),
        ({"attention": "dot_product", "float32_logits": True},
         {"attention": "dot", "softmax_dtype": "f32"}),
        ({"logits_via_embedding": True}, {"tied_embeddings": True}),
        ({"trainable_position_size": 4096}, {"positions": 4096}),
        ({"dropout_rate": 0.1}, {"dropout": 0.1}),
        ({"dropout_rate": 0.1, "enable_dropout": False}, {"dropout": 0.0}),
        ({"fused_qkv": True, "base_num_kv_heads": 2}, {"fused_qkv": True, "kv_heads": 2}),
        ({"decoder_block": "gpt3", "mlp_activations": ["gelu"]},
         {"norm": "layer", "qkv_bias": True, "out_bias": True, "mlp_bias": True}),
        ({"decoder_block": "qwen2", "attention_bias": True}, {"qkv_bias": True, "out_bias": False}),
        ({"decoder_block": "gpt_oss", "sliding_window_size": 64, "num_experts": 4,
          "num_experts_per_tok": 2, "inhomogeneous_layer_cycle_interval": 2,
          "attention_bias": True, "mlp_bias": True, "routed_bias": True},
         {"global_every": 2, "qkv_bias": True, "out_bias": True, "mlp_bias": True,
          "router_bias": True}),
        ({"decoder_block": "mixtral", "mlp_bias": True, "routed_bias": True},
         {"mlp_bias": False, "router_bias": False}),
        ({"decoder_block": "olmo3", "sliding_window_size": 64, "use_qk_norm": True,
          "base_num_decoder_layers": 8, "inhomogeneous_layer_cycle_interval": 4},
         {"qk_norm": True, "qk_norm_heads": "all", "pre_norms": False, "post_norms": True,
          "window": 64, "global_every": 4}),
    ],
)  # fmt: skip
def test_the_block_and_its_keys_are_the_layers(
    keys: dict[str, Any], fields: dict[str, Any]
) -> None:
    model = run(**keys).model
    assert {name: model.flat()[name] for name in fields} == fields


@pytest.mark.parametrize("name", ["gemma4-e2b", "gemma4-e4b", "gemma4-26b", "gemma4-31b"])
def test_gemma_4_is_the_zoos(name: str) -> None:
    """MaxText's kernel is the zoo's; E2B repeats five layers, which divide its 35."""
    given = from_maxtext(None, {"model_name": name, "per_device_batch_size": 1}, pod="v5e-256")
    assert given.model == models.load(name)


def test_rules_that_are_maxtexts_own_change_nothing() -> None:
    own = [
        ["activation_embed", ["tensor", "tensor_transpose"]], ["heads", "tensor"],
        ["mlp", ["fsdp_transpose", "tensor"]],
        ["activation_batch", ["data", "fsdp", "fsdp_transpose", "expert"]], ["norm", "fsdp"],
    ]  # fmt: skip
    assert run(ici_tensor_parallelism=4, logical_axis_rules=own).plan.rules == {}


def test_other_rules_are_the_plans() -> None:
    rules = [["activation_embed", []], ["vocab", "fsdp"], ["mlp", None], ["mlp", ["tensor"]]]
    given = run(ici_tensor_parallelism=4, logical_axis_rules=rules)
    assert given.plan.rules == {"act_embed": (), "vocab": ("fsdp",), "mlp": ()}
    ts.simulate(given.model, given.plan, given.pod)


def test_the_transposed_axis_shards_batch_and_weights() -> None:
    given = run(ici_fsdp_transpose_parallelism=4)
    assert given.plan.rules == {
        "act_batch": ("fsdp", "fsdp_transpose"), "embed": ("fsdp", "fsdp_transpose"),
        "mlp": ("fsdp_transpose",),
    }  # fmt: skip
    ts.simulate(given.model, given.plan, given.pod)


def test_an_override_holds_over_the_rules_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("logical_axis_rules: [[mlp, []], [vocab, [fsdp]]]\n", "utf-8")
    keys = {**SMALL, "logical_axis_rules": [["mlp", ["fsdp"]]]}
    assert from_maxtext(file, keys, pod="v5e-16").plan.rules == {
        "mlp": ("fsdp",), "vocab": ("fsdp",)
    }  # fmt: skip
    keys["override_logical_axis_rules"] = True
    assert from_maxtext(file, keys, pod="v5e-16").plan.rules == {
        "mlp": ("fsdp",), "act_batch": (), "embed": (),
    }  # fmt: skip


def test_a_rule_of_a_part_is_the_same_or_refused() -> None:
    """MaxText 0.2.5 has rules of attention's and experts' own for dimensions that are one here."""
    keys = {"ici_data_parallelism": 4}
    alone = run(logical_axis_rules=[["embed", ["data"]]], **keys)
    assert alone.plan.rules == {"embed": ("data",)}
    assert alone.notes == (
        "the rule of embed holds for embed_attn, embed_moe, embed_router, embed_vocab too, which "
        "MaxText has rules for",
    )
    both = [["embed", ["data"]], ["embed_attn", ["data"]]]
    assert run(logical_axis_rules=both, **keys).plan == alone.plan
    with pytest.raises(ts.TpusimError, match="shards embed_attn otherwise than embed"):
        run(logical_axis_rules=[["embed_attn", ["data"]]], **keys)


def test_rules_of_a_model_are_read() -> None:
    keys = {"model_name": "deepseek3-671b-2dfsdp", "ici_expert_parallelism": 8}
    rules = from_maxtext(None, keys, pod="v5p-128").plan.rules
    assert rules["mlp"] == rules["heads"] == ("expert",)
    assert rules["embed"] == ("fsdp",)


def test_an_axis_across_slices_shards_what_it_does_within() -> None:
    rules = run(num_slices=2, dcn_tensor_parallelism=2).plan.rules
    assert rules["mlp"] == rules["act_heads"] == rules["act_embed"] == ("dcn_tensor",)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"per_device_batchsize": 4}, "no key is called 'per_device_batchsize'; did you mean"),
    ({"model_name": "llama2-7"}, "model_name is 'llama2-7'; did you mean 'llama2-7b'"),
    (
        {"model_name": "qwen3-vl-4b", "override_model_config": True},
        "write use_multimodal=false override_model_config=true",
    ),
    (
        {
            "model_name": "deepseek3-671b-batchsplit",
            "use_batch_split_schedule": False,
            "override_model_config": True,
        },
        "write shard_mode=auto override_model_config=true, where the compiler shards",
    ),
    ({"model_name": "gemma4-12b"}, "gemma4-31b, gemma4-e2b, gemma4-e4b; MaxText 0.2.5 has no"),
    ({"model_name": "zephyr"}, "'zephyr'; MaxText 0.2.5 has no other; give the model's own file"),
    ({"model_name": "llama2-7b"}, "MaxText takes yours with override_model_config=true only"),
    ({"decoder_block": "llama3"}, "decoder_block is 'llama3', which cannot be simulated; did you"),
    ({"decoder_block": "llama4"}, "it has chunked attention"),
    ({"remat_policy": "proj"}, "remat_policy is 'proj'"),
    ({"remat_policy": "custom", "context": "host"}, "context is 'host'"),
    ({"remat_policy": "custom", "decoder_layer_input": "remat"}, "write device or offload"),
    ({"opt_type": "lion"}, "opt_type is 'lion', which cannot be simulated; valid are adam"),
    ({"quantization": "intmp"}, "quantization is 'intmp'"),
    ({"dtype": "float16"}, "dtype is 'float16'"),
    ({"hardware": "gpu"}, "write tpu, which alone can be simulated"),
    ({"parameter_memory_host_offload": True}, "weights on the host cannot be simulated"),
    ({"custom_mesh_and_rule": "pure-fsdp"}, "a mesh and rules by name cannot be simulated"),
    ({"ici_fsdp_parallelism": 4}, "ici_fsdp_parallelism=4 is not the 16 devices of a slice"),
    ({"ici_data_parallelism": -1}, "ici_data_parallelism and ici_fsdp_parallelism are -1"),
    ({"ici_tensor_parallelism": 3}, "so that ici_fsdp_parallelism cannot be filled in"),
    ({"ici_sequence_parallelism": 4}, "sequences sharded over the heads' axis cannot be simulated"),
    ({"ici_tensor_parallelism": 0}, "ici_tensor_parallelism is 0; write a whole number from 1 up"),
    ({"num_slices": 3, "dcn_fsdp_parallelism": 2}, "so that dcn_data_parallelism cannot be filled"),
    ({"per_device_batch_size": 0.3}, "which makes 4.8 sequences on the 16 devices"),
    ({"per_device_batch_size": 0}, "which makes 0 sequences"),
    ({"per_device_batch_size": "many"}, "per_device_batch_size is 'many'; write a number"),
    ({"vocab_size": 2.5}, "vocab_size is 2.5; write a whole number"),
    ({"vocab_size": True}, "vocab_size is true; write a whole number"),
    ({"scan_layers": "maybe"}, "scan_layers is 'maybe'; write true or false"),
    ({"mlp_activations": "silu"}, "mlp_activations is 'silu'; write a list"),
    ({"mlp_activations": ["tanh"]}, "mlp_activations is ['tanh']"),
    ({"attention": ["flash"]}, "attention is ['flash']; write a word"),
    ({"global_parameter_scale": 3}, "write a power of two"),
    ({"base_num_kv_heads": 3}, "4 heads (base_num_query_heads) cannot share 3 K/V heads"),
    ({"decoder_block": "gemma2"}, "sliding_window_size is 0, but"),
    ({"attention_type": "local_sliding", "sliding_window_size": 64}, "decoder_block llama2 do not"),
    ({"attention_type": "full"}, "the layers of decoder_block llama2 do not read it; write global"),
    ({"decoder_block": "deepseek"}, "decoder_block deepseek do not read it; write mla"),
    ({"num_experts": 4}, "decoder_block llama2 has no experts"),
    ({"decoder_block": "gemma2", "sliding_window_size": 64, "use_post_attn_norm": True},
     "use_post_attn_norm and use_post_ffw_norm differ"),
    ({"decoder_block": "default", "share_kv_projections": True}, "keys that are the values of all"),
    ({"ici_pipeline_parallelism": 4}, "4 stages x num_layers_per_pipeline_stage=1 x 1 repeats are"),
    ({"ici_pipeline_parallelism": 2, "num_pipeline_microbatches": 3}, "write a multiple of them"),
    ({"ici_pipeline_parallelism": 2, "pipeline_parallel_layers": 1}, "layers outside the pipeline"),
    ({"ici_pipeline_parallelism": 2, "gradient_accumulation_steps": 2}, "write more num_pip"),
    ({"ici_context_usp_ulysses_parallelism": 2}, "which is for context_parallel_strategy=usp"),
    ({"remat_policy": "minimal_with_quantization"}, "saves quantised operands, which cannot be"),
    ({"dcn_pipeline": 2}, "no key is called 'dcn_pipeline'; did you mean 'dcn_pipeline_parallel"),
    ({"remat": "save_qkv_proj"}, "no key is called 'remat'; did you mean 'remat_policy'?"),
    ({"gradient_accumulation": 2}, "did you mean 'gradient_accumulation_steps'?"),
    ({"decoder_block": "gpt_oss", "sliding_window_size": 64}, "scanned block of decoder_block gpt"),
    ({"shard_optimizer_over_data": True, "ici_data_parallelism": 2}, "ici_fsdp_parallelism=1"),
    ({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9, "sliding_window_size": 64,
      "decoder_block": "gemma4_small"}, "input is 9, but only"),
    ({"trainable_position_size": 9}, "trainable_position_size is 9, but max_target_length 256"),
    ({"final_logits_soft_cap": -1}, "final_logits_soft_cap is -1"),
    ({"logical_axis_rules": "all"}, "logical_axis_rules is 'all'; write a list of rules"),
    ({"logical_axis_rules": [["mlp"]]}, "logical_axis_rules has ['mlp']; write pairs"),
    ({"logical_axis_rules": [["mpl", "fsdp"]]}, "changes 'mpl', which cannot be simulated; did"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ts.TpusimError) as found:
        run(**keys)
    text = str(found.value)
    assert text.startswith("MaxText's defaults: ")
    assert sentence in text
    assert "\n" not in text


def test_slices_may_be_given_as_they_are() -> None:
    pod = ts.Slice("v5e", "4x4", 2, dcn_oversubscription=2.0)
    given = from_maxtext(None, SMALL, pod=pod)
    assert (given.pod, given.plan.mesh) == (pod, {"fsdp": 16, "dcn_data": 2})


def test_a_slice_has_to_be_given() -> None:
    with pytest.raises(ts.TpusimError, match="no slice is given; write compile_topology=v5e-256"):
        from_maxtext(None)
    with pytest.raises(ts.TpusimError, match="is not the name of a slice"):
        from_maxtext(None, pod="v5e256")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["steps"], "'steps' is no override; write KEY=VALUE"),
        (["steps=1", "steps=2"], "steps is given twice"),
        (["steps=[1"], "steps=[1: not valid YAML"),
        (["use_sparse_indexer=true", "use_indexer=true"], "mean the same"),
    ],
)
def test_an_override_is_key_and_value(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ts.TpusimError) as found:
        from_maxtext(None, overrides, pod="v5e-16")
    assert sentence in str(found.value)


def test_overrides_are_typed_as_their_defaults() -> None:
    texts = ["per_device_batch_size=4", "remat_policy=minimal", "logits_via_embedding=True",
             "mlp_activations=[gelu, linear]", "mu_dtype=", "vocab_size=32_768"]  # fmt: skip
    given = from_maxtext("", texts, pod="v5e-16")
    assert (given.plan.global_batch, given.plan.remat.policy) == (64, "minimal")
    assert given.model == Transformer(
        name="maxtext", layers=16, embed=2048, mlp=7168, heads=16, head_dim=128, vocab=32768,
        activation="gelu", tied_embeddings=True,
    )  # fmt: skip


@pytest.mark.parametrize("casts", [True, False])
def test_a_cast_of_the_logits_changes_nothing(casts: bool) -> None:
    """As in MaxText's own program of four layers over `data` 8 on v4: 9.31 GiB with and without."""
    assert run(cast_logits_to_fp32=casts).plan == run().plan
    assert not run(cast_logits_to_fp32=casts).plan.dtypes.logits


def test_layers_are_scanned_unless_the_config_says_otherwise() -> None:
    assert from_maxtext(None, SMALL, pod="v5e-16").plan.scan_layers
    assert not from_maxtext(None, SMALL | {"scan_layers": False}, pod="v5e-16").plan.scan_layers


def test_settings_change_the_plan_alone() -> None:
    settings = ["plan.lowering=ideal", 'plan.placement={ fsdp = ["x", "y"] }']
    given = from_maxtext(None, SMALL, pod="v5e-16", settings=settings).plan
    assert (given.compiler.lowering, given.placement) == ("ideal", {"fsdp": ["x", "y"]})
    assert given.style == "maxtext"
    with pytest.raises(ts.TpusimError, match="is no setting of the plan"):
        from_maxtext(None, SMALL, pod="v5e-16", settings=["slice.name=v4-8"])


def test_one_matrix_makes_the_queries_of_few_heads_of_keys_too() -> None:
    fused, three = (run(base_num_kv_heads=2, fused_qkv=each).model for each in (True, False))
    assert fused == three.replace(fused_qkv=True)
    assert fused.parameter_count == three.parameter_count


def test_what_is_left_out_is_a_note_and_what_changes_nothing_is_listed() -> None:
    notes = run(attn_logits_soft_cap=50, attention_sink=True, steps=10, run_name="mine").notes
    assert notes == (
        "not modelled: the soft cap of attention scores (attn_logits_soft_cap = 50.0)",
        "not modelled: attention sinks (attention_sink = true)",
        "ignored, as no step depends on them: steps, run_name",
    )


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"num_pipeline_microbatches": 8, "megablox": False, "remat_policy": "minimal"},
         "changes nothing here: megablox = false, num_pipeline_microbatches = 8"),
        ({"expert_shard_attention_option": "context"},
         "changes nothing here: expert_shard_attention_option = 'context'"),
        ({"use_tokamax_gmm": True}, "changes nothing here: use_tokamax_gmm = true"),
        ({"attention_bias": True}, "changes nothing here: attention_bias = true"),
        ({"sa_block_kv_compute": 256, "sa_q_layout": "SEQ_MINOR"},
         "not modelled: other tiles and forms of the attention kernel than its blocks "
         "(sa_block_kv_compute = 256, sa_q_layout = 'SEQ_MINOR')"),
    ],
)  # fmt: skip
def test_no_override_is_ignored_in_silence(given: dict[str, object], note: str) -> None:
    assert run(**given).notes == (note,)
    assert run().notes == ()


def test_many_ignored_keys_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    keys = [key for key, why in ignored().items() if "input pipeline" in why or "serving" in why]
    assert len(keys) > 40
    file.write_text("".join(f"{key}: 1\n" for key in keys), "utf-8")
    assert from_maxtext(file, pod="v5e-16").notes == (
        f"ignored, as no step depends on them: {len(keys)} keys (--verbose lists them)",
    )
    data, serving = from_maxtext(file, pod="v5e-16", verbose=True).notes
    assert data.startswith("ignored (the host's input pipeline, or which tokens are in a batch and")
    assert "grain_worker_count" in data
    assert serving.startswith("ignored (decoding and serving, which no training step does): ")


@pytest.mark.parametrize(("factor", "room"), [(-1.0, 0.0), (1.5, 1.5)])
def test_buffers_of_experts_have_room_for_all_unless_a_factor_says_less(
    factor: float, room: float
) -> None:
    keys = {"decoder_block": "mixtral", "num_experts": 8, "num_experts_per_tok": 2}
    plan = run(**keys, ici_expert_parallelism=4, ragged_buffer_factor=factor).plan
    assert plan.experts.buffer == room
    dropping = run(**keys, sparse_matmul=False, capacity_factor=1.25, ragged_buffer_factor=factor)
    assert dropping.plan.experts.buffer == 0

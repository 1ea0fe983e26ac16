"""Hugging Face configs: each family's published one, and the sentence for each way to err."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inputs import Biases, Norms

from tpusim import models
from tpusim.base import FileError, ModelError
from tpusim.models import Transformer, from_hf, hf_dimensions, hf_notes

FOLDER = Path(__file__).parent / "hf"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip


def config(name: str) -> Path:
    return FOLDER / f"{name}.json"


def like(name: str, **changes: Any) -> dict[str, Any]:
    return json.loads(config(name).read_text("utf-8")) | changes


PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.1": 7_241_732_096,
    "gemma-2-9b": 9_241_705_984,
    # all of the checkpoint, less the vision encoder, its projection and its norm
    "gemma-3-12b": 12_187_325_040 - 416_866_032 - (1152 * 3840 + 1152),
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-7b": 7_615_616_512,
    "gpt2": 124_439_808,
    # without the pooler and the head that tells whether sentences follow one another
    "bert-base-uncased": 109_514_298,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "mixtral-8x22b-instruct-v0.1": 140_630_071_296,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    # less the sinks of 64 heads
    "gpt-oss-20b": 20_914_757_184 - 24 * 64,
    "gpt-oss-120b": 116_829_156_672 - 36 * 64,
    "deepseek-v2-lite": 15_706_484_224,
    # the main model, less load-balancing biases of the router
    "deepseek-v3": 671_026_419_200 - 58 * 256,
}
"""Elements of the published checkpoints, less what the notes say is left out."""


def test_each_config_has_its_count() -> None:
    assert set(NAMES) == set(PARAMETERS)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_the_checkpoint(name: str) -> None:
    assert from_hf(config(name)).parameter_count == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "entry", "changes"),
    [
        ("llama-2-7b", "llama2-7b", {}),
        ("llama-3.1-8b", "llama3.1-8b", {}),
        ("gemma-2-9b", "gemma2-9b", {"vocab": 256_128}),
        ("gemma-3-12b", "gemma3-12b", {"vocab": 262_144}),
        ("qwen2.5-7b", "qwen2.5-7b", {}),
        ("qwen3-8b", "qwen3-8b", {}),
        ("mistral-7b-v0.1", "mistral-7b", {}),
        ("mixtral-8x7b-v0.1", "mixtral-8x7b", {}),
        ("mixtral-8x22b-instruct-v0.1", "mixtral-8x22b", {}),
        ("qwen3-30b-a3b", "qwen3-30b-a3b", {}),
        ("qwen3-235b-a22b", "qwen3-235b-a22b", {}),
        ("gpt-oss-20b", "gpt-oss-20b", {}),
        ("gpt-oss-120b", "gpt-oss-120b", {}),
        ("deepseek-v2-lite", "deepseek-v2-lite", {}),
        ("deepseek-v3", "deepseek-v3", {}),
    ],
)
def test_a_config_and_the_zoo_give_one_model(
    name: str, entry: str, changes: dict[str, int]
) -> None:
    """But for rows of the vocabulary, which MaxText counts otherwise for Gemma."""
    model = from_hf(config(name))
    assert replace(model, name=entry, **changes) == models.load(entry)


def test_gpt_3_is_a_wide_gpt_2() -> None:
    """But for its positions, biases and shifts, which the zoo's has not."""
    wide = like("gpt2", n_embd=12288, n_layer=96, n_head=96, vocab_size=50304)
    plain = {"positions": 0, "biases": Biases(), "norms": Norms()}
    assert replace(from_hf(wide), name="gpt3-175b", **plain) == models.load("gpt3-175b")


def test_a_config_is_a_file_its_folder_or_a_mapping(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    of_file = from_hf(folder / "config.json")
    assert of_file == from_hf(str(folder)) == replace(from_hf(LLAMA), name="Llama-3.1-8B")
    assert of_file.parameter_count == PARAMETERS["llama-3.1-8b"]


def test_a_model_is_called_what_its_config_calls_it(tmp_path: Path) -> None:
    assert from_hf(config("mistral-7b-v0.1")).name == "mistralai/Mistral-7B-v0.1"
    assert from_hf(config("gpt2")).name == "gpt2"
    assert from_hf(LLAMA | {"_name_or_path": "/home/me/runs/llama-mine"}).name == "llama-mine"
    assert from_hf(LLAMA | {"_name_or_path": ""}).name == "llama"
    assert from_hf(LLAMA | {"_name_or_path": "/" + "x" * 90}).name == "llama"


@pytest.mark.parametrize(
    ("name", "key", "field", "value"),
    [
        ("llama-3.1-8b", "num_key_value_heads", "kv_heads", 32),
        ("llama-3.1-8b", "tie_word_embeddings", "tied_embeddings", False),
        ("llama-3.1-8b", "hidden_act", "activation", "silu"),
        ("mistral-7b-v0.1", "num_key_value_heads", "kv_heads", 8),
        ("mistral-7b-v0.1", "sliding_window", "window", 4096),
        ("gemma-2-9b", "head_dim", "head_dim", 256),
        ("gemma-2-9b", "hidden_activation", "activation", "gelu"),
        ("gemma-2-9b", "num_key_value_heads", "kv_heads", 4),
        ("qwen3-8b", "head_dim", "head_dim", 128),
        ("qwen3-8b", "use_sliding_window", "window", 0),
        ("qwen2.5-7b", "tie_word_embeddings", "tied_embeddings", False),
        ("gpt2", "activation_function", "activation", "gelu"),
        ("bert-base-uncased", "hidden_act", "activation", "gelu"),
        ("mixtral-8x7b-v0.1", "num_local_experts", "experts", 8),
        ("mixtral-8x7b-v0.1", "num_experts_per_tok", "experts_per_token", 2),
        ("qwen3-30b-a3b", "moe_intermediate_size", "expert_mlp", 768),
        ("qwen1.5-moe-a2.7b", "shared_expert_intermediate_size", "shared_mlp", 5632),
        ("gpt-oss-120b", "num_local_experts", "experts", 128),
        ("gpt-oss-20b", "layer_types", "global_every", 2),
        ("deepseek-v2-lite", "first_k_dense_replace", "dense_layers", 0),
        ("deepseek-v2-lite", "n_shared_experts", "shared_mlp", 2 * 1408),
        ("deepseek-v2-lite", "q_lora_rank", "q_rank", 1536),
        ("deepseek-v3", "first_k_dense_replace", "dense_layers", 3),
        ("deepseek-v3", "qk_nope_head_dim", "head_dim", 192),
    ],
)
def test_a_key_that_is_not_written_has_the_default_of_its_class(
    name: str, key: str, field: str, value: Any
) -> None:
    left = {other: said for other, said in like(name).items() if other != key}
    assert getattr(from_hf(left), field) == value


def test_the_text_part_may_leave_out_even_sizes() -> None:
    """google/gemma-3-4b-it writes neither its heads nor its vocabulary."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024}  # fmt: skip
    model = from_hf({"model_type": "gemma3", "text_config": text})
    zoo = models.load("gemma3-4b")
    assert replace(model, name=zoo.name, vocab=zoo.vocab) == zoo
    assert model.parameter_count == 3_880_263_168


def test_the_first_gemma_needs_its_sizes_alone() -> None:
    """google/gemma-7b: 8,537,680,896 elements."""
    sizes = {"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
             "num_hidden_layers": 28, "num_attention_heads": 16}  # fmt: skip
    assert from_hf({"model_type": "gemma", **sizes}).parameter_count == 8_537_680_896


def test_either_part_may_say_that_embeddings_are_tied() -> None:
    assert not from_hf(like("gemma-3-12b", tie_word_embeddings=False)).tied_embeddings
    assert from_hf(like("gemma-3-12b")).tied_embeddings


def test_a_head_dim_of_its_own_needs_no_division() -> None:
    model = from_hf(LLAMA | {"num_attention_heads": 24, "head_dim": 128})
    assert (model.heads, model.head_dim) == (24, 128)


def test_dimensions_that_follow_are_not_written() -> None:
    """So that a run file which changes the heads gets the head_dim that follows from them."""
    assert "head_dim" not in hf_dimensions(LLAMA)
    assert "kv_heads" not in hf_dimensions(LLAMA | {"num_key_value_heads": None})


def test_a_bert_may_be_a_decoder() -> None:
    assert not from_hf(like("bert-base-uncased")).causal
    assert from_hf(like("bert-base-uncased", is_decoder=True)).causal


def windows(**changes: Any) -> tuple[int, int]:
    model = from_hf(changes)
    return model.attention.window, model.attention.global_every


LOCAL, WHOLE = "sliding_attention", "full_attention"


def test_windows_of_mistral() -> None:
    assert windows(**like("mistral-7b-v0.1")) == (4096, 0)
    assert windows(**like("mistral-7b-v0.1", sliding_window=None)) == (0, 0)


def test_windows_of_gemma() -> None:
    gemma = like("gemma-2-9b", num_hidden_layers=7)
    assert windows(**gemma) == (4096, 2)
    for every in (2, 3, 7):
        types = [WHOLE if (i + 1) % every == 0 else LOCAL for i in range(7)]
        assert windows(**gemma, layer_types=types) == (4096, every)
        assert windows(**gemma, sliding_window_pattern=every) == (4096, every)
    assert windows(**gemma, layer_types=[LOCAL] * 7) == (4096, 0)
    assert windows(**gemma, layer_types=[WHOLE] * 7) == (0, 0)
    assert windows(**gemma, sliding_window_pattern=1) == (0, 0)


def test_windows_of_gpt_oss_alternate() -> None:
    assert windows(**like("gpt-oss-20b")) == (128, 2)
    assert windows(**like("gpt-oss-20b", sliding_window=None)) == (0, 0)


def test_windows_of_qwen_moe() -> None:
    """Of the second, each other layer below `max_window_layers`; of the third, all layers."""
    asked = {"sliding_window": 4096, "use_sliding_window": True}
    assert windows(**like("qwen1.5-moe-a2.7b", **asked | {"max_window_layers": 24})) == (4096, 2)
    assert windows(**like("qwen1.5-moe-a2.7b", **asked | {"max_window_layers": 0})) == (0, 0)
    assert windows(**like("qwen3-30b-a3b", **asked)) == (4096, 0)


def test_which_layers_have_experts() -> None:
    qwen = from_hf(like("qwen3-30b-a3b", decoder_sparse_step=2))
    assert [qwen.moe.has_experts(i) for i in range(4)] == [False, True, False, True]
    assert from_hf(like("qwen3-30b-a3b", mlp_only_layers=[0, 1])).dense_layers == 2
    assert from_hf(like("deepseek-v3", first_k_dense_replace=0)).dense_layers == 0
    assert not from_hf(like("deepseek-v3", n_routed_experts=None)).experts


def test_experts_may_be_counted_by_another_name() -> None:
    """transformers 5 writes a Qwen3 MoE's `num_experts` as `num_local_experts`."""
    qwen = like("qwen3-30b-a3b", num_local_experts=64)
    del qwen["num_experts"]
    assert from_hf(qwen).experts == 64


def test_queries_without_a_rank_are_projected_at_once() -> None:
    assert from_hf(config("deepseek-v2-lite")).q_rank == 0
    assert from_hf(config("deepseek-v3")).q_rank == 1536


def test_a_head_dim_beside_latent_attention_is_its_rotated_part() -> None:
    """transformers writes it so, and it says nothing that the other keys do not."""
    assert from_hf(like("deepseek-v3", head_dim=64)) == from_hf(like("deepseek-v3"))


def test_kimi_k2_is_a_deepseek_v3() -> None:
    """arXiv:2507.20534, Table 2: 1.04 T parameters, 32.6 B active."""
    kimi = like("deepseek-v3", model_type="kimi_k2", num_attention_heads=64, n_group=1,
                num_key_value_heads=64, first_k_dense_replace=1, n_routed_experts=384,
                vocab_size=163840)  # fmt: skip
    model = from_hf(kimi)
    assert model.parameter_count == 1_026_408_209_408
    assert model.active_parameter_count == pytest.approx(32.6e9, rel=0.01)


def test_windows_of_qwen() -> None:
    qwen = like("qwen3-8b", sliding_window=4096, use_sliding_window=True)
    assert windows(**qwen) == (0, 0)
    assert windows(**qwen | {"max_window_layers": 0}) == (4096, 0)
    with pytest.raises(ModelError, match="layer 28 has sliding_attention, which breaks"):
        windows(**qwen | {"max_window_layers": 28})


GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
        "num_global_key_value_heads": 4, "attention_k_eq_v": True, "vocab_size": 262144,
        "sliding_window": 1024, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": "vision",
    },
}  # fmt: skip


def gemma4(**changes: Any) -> dict[str, Any]:
    return GEMMA4 | {"text_config": GEMMA4["text_config"] | changes}  # type: ignore[operator]


def test_gemma_4_has_layers_of_two_shapes() -> None:
    """31B, published as 30.7 billion parameters; its experts, 25.2 billion."""
    assert replace(from_hf(GEMMA4), name="gemma4-31b") == models.load("gemma4-31b")
    assert from_hf(GEMMA4).parameter_count == 30_697_345_280
    moe = gemma4(hidden_size=2816, num_hidden_layers=30, num_attention_heads=16,
                 num_key_value_heads=8, num_global_key_value_heads=2, intermediate_size=2112,
                 num_experts=128, top_k_experts=8, moe_intermediate_size=704)  # fmt: skip
    assert replace(from_hf(moe), name="gemma4-26b") == models.load("gemma4-26b")


def test_small_gemma_4_has_wide_layers_and_embeddings_in_each() -> None:
    small = gemma4(hidden_size=1536, num_hidden_layers=35, num_attention_heads=8,
                   num_key_value_heads=1, num_global_key_value_heads=None, intermediate_size=6144,
                   attention_k_eq_v=False, num_kv_shared_layers=20, use_double_wide_mlp=True,
                   hidden_size_per_layer_input=256, sliding_window=512,
                   layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7)  # fmt: skip
    assert replace(from_hf(small), name="gemma4-e2b") == models.load("gemma4-e2b")
    assert (
        "not modelled: keys and values shared between layers (num_kv_shared_layers = 20)"
    ) in hf_notes(small)


@pytest.mark.parametrize("cap", [0, -30.0, True, "30"])
def test_a_cap_is_a_positive_number(cap: object) -> None:
    with pytest.raises(ModelError, match=r"final_logit_softcapping is .*; write a positive number"):
        from_hf(gemma4(final_logit_softcapping=cap))


def test_what_costs_nothing_is_not_noted() -> None:
    """Scaled rotary positions are no dimensions either."""
    plain = from_hf(LLAMA)
    silent = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "attention_dropout": 0.0}
    assert from_hf(LLAMA | silent) == plain
    assert hf_notes(LLAMA | silent) == ()


def test_what_a_plan_decides_is_noted() -> None:
    """Dtypes and quantised weights of a checkpoint, which change no dimension."""
    stored = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    assert from_hf(LLAMA | stored) == from_hf(LLAMA)
    assert hf_notes(LLAMA | stored) == (
        'not read: torch_dtype = "bfloat16", in which the checkpoint is stored; a plan says in '
        "what a step computes (dtype, bf16 unless given) and keeps its weights (param_dtype, f32)",
        'not read: quantization_config ("fp8"), by which the weights of the checkpoint are stored; '
        'a plan says in what a step multiplies (matmul_dtype, such as "fp8" or "int8")',
    )


@pytest.mark.parametrize(
    ("name", "changes", "notes"),
    [
        ("llama-3.1-8b", {"attention_bias": True, "mlp_bias": True}, []),
        ("mistral-7b-v0.1", {"attention_dropout": 0.1}, ["dropout (attention_dropout = 0.1)"]),
        ("gemma-2-9b", {}, [
            "the soft cap of attention scores (attn_logit_softcapping = 50.0)",
        ]),
        ("gemma-3-12b", {}, ["the encoder of images (vision_config)"]),
        ("qwen2.5-7b", {}, []),
        ("qwen3-8b", {}, []),
        ("mixtral-8x7b-v0.1", {}, []),
        ("qwen3-30b-a3b", {}, []),
        ("qwen1.5-moe-a2.7b", {}, []),
        ("gpt-oss-20b", {}, ["attention sinks"]),
        ("deepseek-v2-lite", {}, []),
        ("deepseek-v2-lite", {"attention_bias": True}, [
            "biases of the attention's matrices (attention_bias = true)",
        ]),
        ("deepseek-v3", {}, [
            "multi-token prediction layers (num_nextn_predict_layers = 1)",
            "routing limited to groups of experts (n_group = 8)",
            "load-balancing biases of the router",
        ]),
        ("gpt2", {}, [
            "dropout (attn_pdrop = 0.1, resid_pdrop = 0.1, embd_pdrop = 0.1)",
        ]),
    ],
)  # fmt: skip
def test_what_is_left_out_is_noted(name: str, changes: dict[str, Any], notes: list[str]) -> None:
    given = [note for note in hf_notes(like(name, **changes)) if not note.startswith("not read")]
    assert given == [f"not modelled: {note}" for note in notes]


def test_soft_caps_that_are_not_written_are_noted_too() -> None:
    left = {key: said for key, said in like("gemma-2-9b").items() if "softcapping" not in key}
    assert hf_notes(left) == hf_notes(config("gemma-2-9b"))


CANNOT = [
    ({"model_type": "llama4", "text_config": {"num_local_experts": 16}},
     "llama4.* chunked attention; the nearest family is Mixtral"),
    ({"architectures": ["DeepseekV32ForCausalLM"], "index_topk": 2048},
     r"V32.* as it has sparse attention with selected keys \(index_topk = 2048\); the nearest "
     r"family is DeepSeek-V3 \(DeepseekV3ForCausalLM\)"),
    (like("qwen3-30b-a3b", linear_num_value_heads=32),
     "linear attention .* nearest family is Qwen3 MoE"),
    ({"architectures": ["MambaForCausalLM"]}, "state-space layers; the nearest family is Llama"),
    (like("gemma-2-9b", use_bidirectional_attention=True), "attention in both directions"),
    (like("gpt2", add_cross_attention=True), "cross-attention"),
    (like("bert-base-uncased", position_embedding_type="relative_key"), "relative positions"),
    (like("gemma-2-9b", layer_types=["chunked_attention"] * 42),
     r'layer_types\[0\] is "chunked_attention", which cannot be simulated; write sliding'),
    (LLAMA | {"hidden_act": "xielu"}, 'hidden_act is "xielu", which .*; write one of relu, relu2'),
]  # fmt: skip


def test_one_expert_is_no_experts() -> None:
    assert from_hf(LLAMA | {"num_local_experts": 1, "num_experts": 0}) == from_hf(LLAMA)


BAD = [
    ({"architectures": ["NovelMoeForCausalLM"], "num_experts": 4, "kv_lora_rank": 8},
     r"'NovelMoeForCausalLM' is unknown, and so how it means its experts \(num_experts = 4\) and "
     r"latent attention \(kv_lora_rank = 8\); docs/models.md lists the \d+ families that are"),
    (LLAMA | {"num_experts": 8},
     "num_experts is 8, but LlamaForCausalLM has no experts; leave it out, or write the arch"),
    (like("mixtral-8x7b-v0.1", kv_lora_rank=512),
     "kv_lora_rank is 512, but MixtralForCausalLM has no latent attention; leave it out"),
    (like("mixtral-8x7b-v0.1", num_experts_per_tok=9),
     r"num_experts_per_tok is 9, but there are 8 experts \(num_local_experts\); write .* 1 to 8"),
    (like("mixtral-8x7b-v0.1", num_local_experts="8"), 'num_local_experts is "8"; write a whole'),
    (like("deepseek-v2-lite", num_experts_per_tok=None), "num_experts_per_tok is missing; write"),
    (like("deepseek-v3", moe_layer_freq=2), "moe_layer_freq is 2; only experts in each layer"),
    (like("deepseek-v3", first_k_dense_replace=61), "none of the 61 layers has experts; write"),
    (like("deepseek-v3", num_key_value_heads=8),
     r"num_key_value_heads is 8, but with latent attention .* the 128 heads .*; write 128"),
    (like("deepseek-v3", kv_lora_rank=0), "kv_lora_rank is 0; write a whole number from 1"),
    (like("deepseek-v3", v_head_dim=None), "v_head_dim is missing; write a whole number from 1"),
    (like("qwen3-30b-a3b", mlp_only_layers=[0, 5]),
     r"mlp_only_layers is \[0, 5\]; only the first layers can be without experts, so write"),
    (like("qwen3-30b-a3b", mlp_only_layers="0"), 'mlp_only_layers is "0"; only the first'),
    ({}, "neither architectures nor model_type says what the model is; docs/models.md lists the"),
    ({"num_experts": 8}, "neither architectures nor"),
    ({"architectures": []}, "neither architectures nor"),
    ({"architectures": "LlamaForCausalLM"}, 'architectures is "LlamaForCausalLM"; write a list'),
    ({"architectures": [3]}, r"architectures is \[3\]; write a list"),
    ({"model_type": 3}, 'model_type is 3; write text, such as "llama"'),
    ({"architectures": ["LLamaForCausalLM"]},
     r"architecture 'LLamaForCausalLM' is unknown; did you mean 'LlamaForCausalLM'\? docs/models"),
    ({"architectures": ["EagleForCausalLM"]}, "'EagleForCausalLM' is unknown; docs/models.md li"),
    ({"model_type": "mistrall"}, r"'mistrall' is unknown; did you mean 'mistral'\?"),
    (LLAMA | {"model_type": "gpt2"},
     "architectures says LlamaForCausalLM and model_type 'gpt2'; write 'llama' or 'internlm3' or"),
    (LLAMA | {"hidden_size": 4096.0}, "hidden_size is 4096.0; write a whole number from 1 to"),
    (LLAMA | {"hidden_size": "4096"}, 'hidden_size is "4096"; write a whole'),
    (LLAMA | {"hidden_size": True}, "hidden_size is true; write a whole"),
    (LLAMA | {"hidden_size": None}, "hidden_size is null; write a whole"),
    (LLAMA | {"hidden_size": 0}, "hidden_size is 0; write a whole"),
    (LLAMA | {"vocab_size": 10**12}, "vocab_size is 1000000000000; write a whole"),
    (LLAMA | {"num_attention_heads": [32]}, r"num_attention_heads is \[32\]; write"),
    (LLAMA | {"num_attention_heads": 24, "num_key_value_heads": 8},
     r"hidden_size 4096 does not divide into 24 heads \(num_attention_heads\); write"),
    (LLAMA | {"num_key_value_heads": 5}, r"32 heads .* 5 K/V heads \(num_key_value_heads\)"),
    (like("gpt2", n_head=10), r"n_embd 768 does not divide into 10 heads \(n_head\)"),
    (LLAMA | {"tie_word_embeddings": "no"}, 'tie_word_embeddings is "no"; write true or false'),
    (LLAMA | {"hidden_act": 3}, "hidden_act is 3, which cannot be simulated; write"),
    (like("gemma-2-9b", layer_types=[LOCAL]), "layer_types is .*; write a list of 42 kinds"),
    (like("gemma-2-9b", layer_types=LOCAL), "write a list of 42 kinds"),
    (like("gemma-2-9b", layer_types=[LOCAL, WHOLE, WHOLE] * 14),
     "layer 2 has full_attention, which breaks the pattern of those before"),
    (like("qwen3-8b", use_sliding_window="yes"), "use_sliding_window is .*; write true or false"),
    (like("gemma-3-12b", text_config=[1]), r"text_config is \[1\]; write an object"),
    (like("gemma-3-12b", text_config={"hidden_size": "x"}), 'text_config.hidden_size is "x"'),
]  # fmt: skip


@pytest.mark.parametrize(("given", "sentence"), CANNOT + BAD)
def test_what_a_config_says_wrong(given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(given), "utf-8")
    with pytest.raises(ModelError, match=sentence) as caught:
        from_hf(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size"])
def test_a_size_that_is_missing_is_not_guessed(key: str) -> None:
    left = {other: said for other, said in LLAMA.items() if other != key}
    with pytest.raises(ModelError, match=f"the config: {key} is missing; write a whole number"):
        from_hf(left)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON: .*line 1"),
        (b"\x89PNG\r\n", r"not a text file \(byte 0 is not UTF-8\)"),
        (b"[1]", "no JSON object; give a config.json"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "too long to be read"),
        (b"[" * 100_000, "too long to be read"),
        (b" " * 2**21, "2 MiB is too large for a config.json"),
    ],
)
def test_what_is_no_config(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=sentence):
        from_hf(tmp_path)


def test_where_there_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"config\.json: cannot be read: No such file"):
        from_hf(tmp_path)
    with pytest.raises(FileError, match="not a regular file"):
        from_hf("/dev/null")
    with pytest.raises(FileError, match=r"cannot be read: .* too long"):
        from_hf("x" * 5000)


def test_a_config_as_the_class_gives_it_is_read_too() -> None:
    """`LlamaConfig(...).to_dict()` names keys that files leave out."""
    plain = {"architectures": None, "_name_or_path": "", "is_decoder": False, "head_dim": 128,
             "is_encoder_decoder": False, "add_cross_attention": False, "dtype": None}  # fmt: skip
    assert from_hf(LLAMA | plain) == from_hf(LLAMA)


def test_a_model_of_a_config_is_a_transformer_like_any() -> None:
    own = Transformer(name="llama", layers=32, embed=4096, mlp=14336, heads=32, kv_heads=8,
                      vocab=128256)  # fmt: skip
    assert from_hf(LLAMA) == own

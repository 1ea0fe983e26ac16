"""Configs whose language model is a part, and values that are given for each layer or as text."""

from dataclasses import replace
from typing import Any

import pytest

from tpusim.base import ModelError
from tpusim.models import from_hf, hf_notes

SMALL: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1000,
}  # fmt: skip

MISTRAL_SMALL_3_2 = {
    "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
    "vision_config": {"model_type": "pixtral", "num_hidden_layers": 24},
    "text_config": {
        "model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 32768,
        "vocab_size": 131072, "sliding_window": None,
    },
}  # fmt: skip
"""mistralai/Mistral-Small-3.2-24B-Instruct-2506: 23.6 billion besides the encoder of images."""

QWEN3_VL_8B = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"],
    "vision_config": {"depth": 27}, "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288,
        "vocab_size": 151936, "head_dim": 128,
    },
}  # fmt: skip
"""Qwen/Qwen3-VL-8B-Instruct: the language model has the dimensions of Qwen3 8B."""

HUNYUAN_A13B = {
    "model_type": "hunyuan_v1_moe", "architectures": ["HunYuanMoEV1ForCausalLM"],
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 8, "intermediate_size": 3072, "vocab_size": 128167, "num_experts": 64,
    "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "moe_intermediate_size": [3072] * 32,
    "tie_word_embeddings": True, "use_qk_norm": True,
}  # fmt: skip
"""tencent/Hunyuan-A13B-Instruct: 80 billion, 13 of them active (its model card)."""


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(MISTRAL_SMALL_3_2, 23_572_403_200), (QWEN3_VL_8B, 8_190_735_360)],
)
def test_the_language_model_is_read_and_the_encoder_noted(
    config: dict[str, Any], parameters: int
) -> None:
    assert from_hf(config).parameter_count == parameters
    assert hf_notes(config) == ("not modelled: the encoder of images (vision_config)",)


@pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config"])
def test_a_part_is_the_model_that_it_would_be_alone(part: str) -> None:
    whole = {"model_type": "other_vl", "architectures": ["OtherVLModel"], "vision_config": {"a": 1}}
    of_part = from_hf({**whole, part: SMALL})
    assert replace(of_part, name="llama") == from_hf(SMALL)


def test_a_part_of_an_unknown_family_is_named() -> None:
    whole = {"model_type": "other_vl", "vision_config": {"a": 1}}
    with pytest.raises(
        ModelError, match=r"text_config: 'qwen4_exp_text' cannot .* linear attention"
    ):
        from_hf({**whole, "text_config": {"model_type": "qwen4_exp_text"}})
    with pytest.raises(ModelError, match=r"text_config.hidden_size is missing"):
        from_hf({**whole, "text_config": {"model_type": "llama", "num_hidden_layers": 2}})


def test_numbers_of_all_layers_are_one_number() -> None:
    """Hunyuan-A13B's experts per token, and any other number of a family."""
    one = {"moe_topk": 8, "num_shared_expert": 1, "moe_intermediate_size": 3072}
    model = from_hf(HUNYUAN_A13B)
    assert model == from_hf(HUNYUAN_A13B | one)
    assert model.parameter_count == pytest.approx(80.4e9, rel=2e-3)
    assert model.active_parameter_count == pytest.approx(13e9, rel=0.05)
    layers = SMALL["num_hidden_layers"]
    for key in ("intermediate_size", "num_attention_heads", "hidden_size", "vocab_size"):
        assert from_hf(SMALL | {key: [SMALL[key]] * layers}) == from_hf(SMALL)


def test_a_wider_mlp_of_the_last_layers_is_read() -> None:
    model = from_hf(SMALL | {"intermediate_size": [1024, 1024, 1024, 2048]})
    assert (model.mlp, model.wide_mlp, model.wide_layers) == (1024, 2048, 1)
    assert model.parameter_count == from_hf(SMALL).parameter_count + 3 * 512 * 1024


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"moe_topk": [8] * 31 + [4]},
            "moe_topk is 8 in layer 0 and 4 in layer 31; layers that differ in it cannot be "
            "simulated, so write one number for all",
        ),
        (
            {"moe_topk": [8] * 3},
            "moe_topk is [8, 8, 8]; write one number, or one for each of the 32 layers",
        ),
    ],
)
def test_layers_that_differ_are_refused_by_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as error:
        from_hf(HUNYUAN_A13B | changes)
    assert str(error.value) == f"the config: {said}"


@pytest.mark.parametrize("no", [False, "false", "False"])
@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias", "is_encoder_decoder"])
def test_text_that_says_false_is_off(key: str, no: Any) -> None:
    assert from_hf(SMALL | {key: no}) == from_hf(SMALL)
    assert hf_notes(SMALL | {key: no}) == ()


def test_text_that_says_true_is_on_and_other_text_is_refused() -> None:
    assert from_hf(SMALL | {"mlp_bias": "true"}) == from_hf(SMALL | {"mlp_bias": True})
    with pytest.raises(ModelError, match='attention_bias is "maybe"; write true or false'):
        from_hf(SMALL | {"attention_bias": "maybe"})

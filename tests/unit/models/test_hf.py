"""Hugging Face configs: each family's published one, and the sentence for each way to err."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tpusim import models
from tpusim.errors import FileError, ModelError
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


def biases(layers: int, embed: int, mlp: int) -> int:
    """Of four projections, two matrices of an MLP and two norms a layer: GPT-2 and BERT."""
    return layers * (4 * embed + mlp + embed + 2 * embed)


PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.1": 7_241_732_096,
    "gemma-2-9b": 9_241_705_984,
    # all of the checkpoint, less the vision encoder, its projection and its norm
    "gemma-3-12b": 12_187_325_040 - 416_866_032 - (1152 * 3840 + 1152),
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-7b": 7_615_616_512 - 28 * (3584 + 2 * 512),
    "gpt2": 124_439_808 - 1024 * 768 - biases(12, 768, 3072) - 768,
    # less positions, segments, their norm, biases, and the dense layer before the logits with its
    # norm and bias; one scale more, as the last norm stands behind the layers and not in them
    "bert-base-uncased": 109_514_298
    - (512 + 2 + 2) * 768
    - biases(12, 768, 3072)
    - (768 * 768 + 3 * 768 + 30522)
    + 768,
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
        ("qwen3-8b", "qwen3-8b", {}),
    ],
)
def test_a_config_and_the_zoo_give_one_model(
    name: str, entry: str, changes: dict[str, int]
) -> None:
    """But for rows of the vocabulary: MaxText's counts differ from the configs' for Gemma."""
    assert replace(from_hf(config(name)), name=entry, **changes) == models.load(entry)


def test_gpt_3_is_a_wide_gpt_2() -> None:
    wide = like("gpt2", n_embd=12288, n_layer=96, n_head=96, vocab_size=50304)
    assert replace(from_hf(wide), name="gpt3-175b") == models.load("gpt3-175b")


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
    return model.window, model.global_every


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


def test_windows_of_qwen() -> None:
    qwen = like("qwen3-8b", sliding_window=4096, use_sliding_window=True)
    assert windows(**qwen) == (0, 0)
    assert windows(**qwen | {"max_window_layers": 0}) == (4096, 0)
    with pytest.raises(ModelError, match="layer 28 has sliding_attention, but each 1th"):
        windows(**qwen | {"max_window_layers": 28})
